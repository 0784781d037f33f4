"""Public cases as their owners would type them: `make cases`."""
