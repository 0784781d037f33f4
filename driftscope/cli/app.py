"""The `driftscope` command: its subcommands, and the exit codes of errors.

Command modules contain signatures and import what they need when they run, so that `--help` is
instant.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

import driftscope
from driftscope.boundary.terminal_text import shown
from driftscope.cli.advise import advise
from driftscope.cli.analyze import analyze
from driftscope.cli.bench import bench
from driftscope.cli.check import check
from driftscope.cli.compare import compare
from driftscope.cli.dashboards import dashboards
from driftscope.cli.demo import demo
from driftscope.cli.doctor import doctor
from driftscope.cli.export import export
from driftscope.cli.findings import findings
from driftscope.cli.probe import probe
from driftscope.cli.replay import replay
from driftscope.cli.serve import serve
from driftscope.cli.shared.exit_codes import EPILOG
from driftscope.cli.shared.unforeseen_error import unforeseen
from driftscope.cli.watch import watch
from driftscope.errors import EXIT_ERROR, DriftscopeError

app = typer.Typer(
    name="driftscope",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"driftscope {driftscope.__version__}")
        raise typer.Exit


@app.callback(epilog=EPILOG)
def driftscope_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """See why speculative decoding stops paying: attention drift of a live drafter in vLLM."""


for command in (
    demo,
    analyze,
    check,
    advise,
    findings,
    compare,
    replay,
    watch,
    export,
    dashboards,
    doctor,
):
    app.command(epilog=EPILOG)(command)
app.command(
    epilog=EPILOG,
    # vLLM's options pass through untouched.
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(serve)
app.command(
    epilog=EPILOG,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(bench)
app.add_typer(probe, name="probe", epilog=EPILOG)


def main() -> None:
    """Run the command line; print an error as one line and exit with its exit code."""
    try:
        app()
    except DriftscopeError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", EXIT_ERROR)
    except MemoryError:
        _fail("out of memory; analyse a part of the run with --where or --since", EXIT_ERROR)
    except Exception as error:  # last resort: any defect of driftscope
        _fail(unforeseen(error), EXIT_ERROR)


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"driftscope: error: {shown(' '.join(message.split()))}\n")
    sys.exit(code)
