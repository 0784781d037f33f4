"""Starts of a real vLLM whose probe is broken in one way each; `make starts` prints a table."""
