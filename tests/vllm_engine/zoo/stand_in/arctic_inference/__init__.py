"""Stands in for the package arctic-inference, which only `make kinds` installs.

What vLLM's SuffixDecodingProposer calls is there; it looks tokens up in the request's own past.
"""
