"""Grafana dashboards and Prometheus rules, generated from the instruments' names and
descriptions."""
