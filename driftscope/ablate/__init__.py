"""Interventions on a drafter outside any engine: change one thing, keep all else, count again."""
