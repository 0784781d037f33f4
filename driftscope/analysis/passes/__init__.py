"""The passes over a run's rows: each yields sums by request or by group of requests.

Everything else in `driftscope.analysis` is arithmetic on these small tables. A query reads views of
the names of `driftscope.analysis.query.record_views` and is built once per shape of run.
"""
