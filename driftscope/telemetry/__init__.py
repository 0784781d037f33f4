"""Export of a run's figures: OpenTelemetry metrics and spans, Prometheus, dashboards and alerts.

`instruments` holds every name, unit, description and bucket; `count` turns batches of a
trace into figures, the same code for a live engine and for a recorded run.
"""
