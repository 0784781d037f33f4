"""The shipped drafters, each broken in one way, recorded on the reference engine."""
