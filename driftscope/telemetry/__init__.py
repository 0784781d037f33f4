"""What a run says to the outside: OpenTelemetry metrics and spans, Prometheus, dashboards, alerts.

`instruments` holds every name, unit, description and bucket; `feed` turns batches of a trace into
figures, the same code for a live engine and for a recorded run.
"""
