"""Grafana dashboards and Prometheus rules, made from the instruments' own names and words."""
