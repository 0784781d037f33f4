"""`python -m driftscope`: the same command as `driftscope`."""

from driftscope.cli.app import run

run()
