"""The `driftscope` command: its subcommands, and the exit codes of errors.

Command modules contain signatures and import what they need when they run, so that `--help` is
instant.
"""

from __future__ import annotations

import atexit
import codecs
import io
import os
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import typer

from driftscope.boundary.text import shown
from driftscope.cli.ablate import ablate
from driftscope.cli.advise import advise
from driftscope.cli.analyze import analyze
from driftscope.cli.check import check
from driftscope.cli.compare import compare
from driftscope.cli.dashboards import dashboards
from driftscope.cli.doctor import doctor
from driftscope.cli.export import export
from driftscope.cli.findings import findings
from driftscope.cli.ingest import ingest
from driftscope.cli.inspect import inspect
from driftscope.cli.options import EXIT_CODES, Command, epilog
from driftscope.cli.pays import pays
from driftscope.cli.probe import probe
from driftscope.cli.replay import replay
from driftscope.cli.runs import ls, prune, rm
from driftscope.cli.serve import serve
from driftscope.cli.watch import watch
from driftscope.distributions import half_missing
from driftscope.errors import EXIT_ERROR, EXIT_OK, EXIT_USAGE, DriftscopeError
from driftscope.version import __version__

app = typer.Typer(
    name="driftscope",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"driftscope {__version__}")
        raise typer.Exit


@app.callback(epilog=EXIT_CODES)
def driftscope_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """See why speculative decoding stops paying: attention drift of a drafter in vLLM or SGLang."""


BEGIN = "Begin"
BEFORE = "Before a server starts"
RECORD = "Record a live engine"
READ = "Read runs"
KEEP = "Find and remove runs"
SEND = "Send prompts"
WATCH = "Monitor"
_DRAFTED = """MODEL --speculative-config '{"method": "eagle3", "model": "DRAFTER", \
"num_speculative_tokens": 4}'"""
COMMANDS: Sequence[tuple[str, Callable[..., Any] | typer.Typer, str]] = (
    (BEGIN, doctor, f"doctor {_DRAFTED}"),
    (BEGIN, pays, "pays trio"),
    (BEGIN, findings, "findings sink_lost"),
    (BEFORE, inspect, "inspect DRAFTER --target TARGET"),
    (BEFORE, ablate, "ablate DRAFTER --target TARGET"),
    (RECORD, serve, f"serve {_DRAFTED}"),
    (RECORD, probe, "probe status latest"),
    (RECORD, watch, "watch latest"),
    (READ, analyze, "analyze latest"),
    (READ, compare, "compare OLD_RUN NEW_RUN"),
    (READ, advise, "advise latest"),
    (READ, check, "check latest --fail-on high"),
    (READ, ingest, "ingest vllm-bench.json records.jsonl"),
    (READ, export, "export latest --format speculation-profile -o profile.json"),
    (KEEP, ls, "ls"),
    (KEEP, rm, "rm driftscope-runs/20260101-120000-eagle3"),
    (KEEP, prune, "prune --older-than 30d --keep 5"),
    (SEND, replay, "replay http://localhost:8000 --suite template"),
    (WATCH, dashboards, "dashboards -o monitoring"),
)
"""Commands in the order in which `driftscope --help` lists them: group, command and example."""
PASSES_OPTIONS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""vLLM's options pass through untouched."""
TO_VLLM = (serve, pays, doctor)
for group, command, example in COMMANDS:
    shown_in_help: dict[str, Any] = {"epilog": epilog(example), "rich_help_panel": group}
    if isinstance(command, typer.Typer):
        app.add_typer(command, name="probe", **shown_in_help)
        continue
    # Each paragraph is one line, so that a terminal breaks it where it ends.
    paragraphs = (command.__doc__ or "").split("\n\n")
    app.command(
        cls=Command,
        help="\n\n".join(" ".join(part.split()) for part in paragraphs),
        context_settings=PASSES_OPTIONS_ON if command in TO_VLLM else None,
        **shown_in_help,
    )(command)


USAGE_ERROR: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)
"""Base class of the errors of an argument parser, which typer does not export."""
_ONLY_HELP = "NoArgsIsHelpError"
"""Name of the error of a command that prints its help if it is given no argument."""
COMPLETION = "_DRIFTSCOPE_COMPLETE"
"""Variable by which a shell asks for completions."""
_MISSING = "MissingParameter"
"""Name of the error of an argument that is not given."""
_MISPLACED = (_MISSING, "UsageError")
"""Names of the errors of an argument too few or too many."""


def run() -> NoReturn:
    """Run the command line as a process of its own."""
    for name in ("stdout", "stderr"):  # None if it is closed; a file would then get its number
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    try:
        main()
    except SystemExit as ended:
        if not isinstance(ended.code, int):
            raise
        end_process(ended.code)


_PLAIN = "driftscope-plain"
_PLAIN_TEXT = {"×": "x", "–": "-", "−": "-", "→": "->", "…": "...", "█": "#"}
"""Replacements of characters that the encoding of the output lacks."""


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_PLAIN_TEXT.get(character, "?") for character in text), error.end


_OF_NUMPY = r"(invalid value|divide by zero|overflow|underflow) |Mean of empty|Degrees of|All-NaN"
"""Beginnings of numpy's warnings of a figure that is not finite, which is shown as unknown."""


def main() -> NoReturn:
    """Run the command line; print an error as one line and exit with its exit code."""
    warnings.filterwarnings("ignore", _OF_NUMPY, RuntimeWarning)
    codecs.register_error(_PLAIN, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors=_PLAIN)
    try:
        code = app(prog_name="driftscope", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else EXIT_OK)
    except USAGE_ERROR as error:
        _fail_usage(error)
    except typer.Abort:
        _fail("stopped", EXIT_ERROR)
    except DriftscopeError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", EXIT_ERROR)
    except MemoryError:
        _fail("out of memory; analyse a part of the run with --where or --since", EXIT_ERROR)
    except ModuleNotFoundError as error:
        line = half_missing(error)
        _fail(line or unforeseen(error), EXIT_USAGE if line else EXIT_ERROR)
    except KeyError as error:
        if COMPLETION in os.environ:
            _fail(f"{COMPLETION} is for a shell's completion, which sets {error}", EXIT_USAGE)
        _fail(unforeseen(error), EXIT_ERROR)
    except Exception as error:  # last resort: any defect of driftscope
        _fail(unforeseen(error), EXIT_ERROR)


def _fail_usage(error: Any) -> NoReturn:
    """Print what is wrong with the arguments. They are shown as they were given, so that the
    parser's own message could steer a terminal."""
    if type(error).__name__ == _ONLY_HELP:
        error.show()
        sys.exit(error.exit_code)
    examples = {example.partition(" ")[0]: example for _, _, example in COMMANDS}
    name = next((word for word in sys.argv[1:2] if word in examples), "")
    words = error.format_message().rstrip(".").replace(": Value error, ", ": ")
    kind, about = type(error).__name__, getattr(error, "param", None)
    if name and kind in _MISPLACED:
        words += f"; example: driftscope {examples[name]}"
    if kind == _MISSING and getattr(about, "metavar", None) == "RUN":
        words += "; `driftscope ls` lists the runs, and `latest` names the newest"
    _fail(f"{words}; see {f'driftscope {name}'.strip()} --help", error.exit_code)


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"driftscope: error: {shown(' '.join(message.split()))}\n")
    sys.exit(code)


def end_process(code: int) -> NoReturn:
    """End the process with `code`, after its threads, its exit functions and its output.

    The interpreter is not torn down: while Arrow's threads run, that now and then aborts a process
    whose work is done (apache/arrow issue 34314), and a gate would exit with -6 instead of 0.
    `multiprocessing` ends its children in the same way.
    """
    stdlib: Any = threading
    stdlib._shutdown()
    stdlib = atexit
    stdlib._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # its reader is gone, or it is closed
            code = code or 1
    os._exit(code)


DEBUG = "DRIFTSCOPE_DEBUG"
"""Environment variable; if it is 1, the exception is raised again with its traceback."""


def unforeseen(error: Exception) -> str:
    """Return one line on `error`, which names a file that keeps its traceback.

    Raises `error` again if the environment variable DEBUG is set to 1.
    """
    if os.environ.get(DEBUG) == "1":
        raise error
    kind = type(error).__name__
    return (
        f"{kind}: {error}. This is a bug in driftscope; please report it with "
        f"{_traceback_file(error)} ({DEBUG}=1 prints it)"
    )


def _traceback_file(error: Exception) -> str:
    """Write the traceback of `error` to a temporary file; return its name, or what failed."""
    text = "".join(traceback.format_exception(error))
    try:
        handle, name = tempfile.mkstemp(prefix="driftscope-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return "its traceback, which could not be written to a file"
    return name
