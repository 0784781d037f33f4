"""Passes over a run's rows: each is a query that yields sums by request or by group of requests.

Everything else in `driftscope.analysis` is arithmetic on these small tables. A query reads views
with the names of `driftscope.analysis.query.record_views` and is built once per shape of run.
"""
