"""Replacement for the package arctic-inference, which only `make kinds` installs.

It has what vLLM's SuffixDecodingProposer calls, and looks tokens up in the request's own past.
"""
