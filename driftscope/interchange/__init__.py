"""Files in the formats of other tools, from a recorded run."""
