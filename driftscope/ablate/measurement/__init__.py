"""Measuring: prompts in each way of writing them, and the counts of each prompt."""
