"""Stands in for the package arctic-inference, which these tests do not install.

What vLLM's SuffixDecodingProposer calls is there; it looks tokens up in the request's own past.
"""
