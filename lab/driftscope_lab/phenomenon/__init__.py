"""The published effect, looked for in the shipped models: conditions, runs, figures, criteria."""
