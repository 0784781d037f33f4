"""Drafter checkpoints with one planted mistake each, and healthy ones, given to `inspect`."""
