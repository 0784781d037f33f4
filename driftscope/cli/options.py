"""Arguments and options that several commands share, and the completion of runs in a shell."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from driftscope import errors
from driftscope.analysis.condition_columns import COLUMNS
from driftscope.distributions import LAB_DRAFTERS, LAB_TARGETS
from driftscope.trace.runs import DEFAULT_FOLDERS, LATEST, search

if TYPE_CHECKING:
    from driftscope.analysis.query.query_engine import QueryEngine


EXIT_CODES = (
    f"Exit codes: {errors.EXIT_OK} fine, {errors.EXIT_ERROR} error, {errors.EXIT_USAGE} usage, "
    f"{errors.EXIT_GATE_FAILED} gate failed, {errors.EXIT_NO_DATA} no data, "
    f"{errors.EXIT_UNKNOWN} unknown kind of input."
)


class Command(TyperCommand):
    """Command whose help does not ask for a value after a flag, as typer's `--json <bool>` does."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters; an option without a value has no word for one."""
        parameters = super().get_params(ctx)
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
        return parameters


def epilog(example: str) -> str:
    """Return the end of a command's help: an example and the exit codes."""
    return f"Example: driftscope {example}\n\n{EXIT_CODES}"


class Format(StrEnum):
    """Format of the report."""

    HTML = "html"
    JSON = "json"
    MARKDOWN = "markdown"


Word = tuple[str, str]
"""A word and its explanation, which zsh and fish show."""


def runs(incomplete: str) -> list[Word]:
    """Return `latest`, the runs in the usual folders, and the folders below what is typed."""
    known = [(str(run), "run") for folder in DEFAULT_FOLDERS for run in sorted(search(folder))]
    if known:
        known = [(LATEST, "the newest run"), *known]
    fitting = [word for word in known if word[0].startswith(incomplete)]
    shown = {word for word, _ in fitting}
    return fitting + [(name, "folder") for name in _folders(incomplete) if name not in shown]


def _folders(incomplete: str) -> Iterator[str]:
    """Yield the folders that a half-typed path can mean, with a slash at the end."""
    head, _, begun = incomplete.rpartition("/")
    prefix = f"{head}/" if "/" in incomplete else ""
    try:
        with os.scandir(Path(prefix or ".")) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        return
    yield from (
        f"{prefix}{name}/"
        for name in names
        if name.startswith(begun) and (begun or not name.startswith("."))
    )


def named_run(value: Path | None) -> Path | None:
    """Return the run that one argument names."""
    if value is None:
        return None
    from driftscope.trace.runs import resolve_run

    return resolve_run(value)


def named_run_or_inspection(value: Path | None) -> Path | None:
    """Return the run that one argument names; a JSON document is returned as it is."""
    return value if is_inspection(value) else named_run(value)


def is_inspection(value: Path | None) -> bool:
    """Whether a path names a document of `driftscope inspect --json`, not a run."""
    return value is not None and value.suffix.lower() == ".json" and not value.is_dir()


def named_runs(value: list[Path] | None) -> list[Path] | None:
    """Return the runs that a list of arguments names."""
    return None if value is None else [run for text in value if (run := named_run(text))]


RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN",
        help="Run directories, or `latest`.",
        callback=named_runs,
        autocompletion=runs,
    ),
]
RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Run directory, or `latest`.",
        callback=named_run,
        autocompletion=runs,
    ),
]
BaselineOption = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN",
        callback=named_run,
        autocompletion=runs,
        help="Run to compare speed and findings with, for example one without speculation.",
    ),
]
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+(/.*)?")


def named_target(value: str) -> str:
    """Return the run that a target names, or the URL of a server."""
    return url if is_url(url := with_scheme(value)) else str(named_run(Path(value)))


def with_scheme(value: str) -> str:
    """Return HOST:PORT as a URL; anything else as it is."""
    known = _HOST_AND_PORT.fullmatch(value) and not Path(value).exists()
    return f"http://{value}" if known else value


def is_url(value: str) -> bool:
    """Whether a value is the URL of a server."""
    return value.startswith(("http://", "https://"))


def lab_folder(value: str | None) -> str | None:
    """Return the folder of a target or drafter of the lab that is named, fetched first if need be;
    any other name, and a name that is a folder here, as it is."""
    if value is None or value not in (*LAB_TARGETS, *LAB_DRAFTERS) or Path(value).exists():
        return value
    from driftscope.distributions import needs_lab

    with needs_lab():
        from driftscope_lab import models
    return str(models.lab_folder(value))


def real_folder(value: Path) -> Path:
    """Return the folder to write into; raises UsageError for -, which cannot hold files."""
    if value == Path("-"):
        from driftscope.errors import UsageError

        raise UsageError("-: several files are written; give a folder")
    return value


def page_file(value: Path | None) -> Path | None:
    """Return the file of an HTML page; raises UsageError for one that is to be JSON."""
    if value is not None and value.suffix.lower() == ".json":
        from driftscope.errors import UsageError

        raise UsageError(f"-o {value}: is an HTML page; `--json > {value}` writes the document")
    return value


def numbers(text: str | None, option: str, *, whole: bool = False) -> list[float]:
    """Return the numbers above 0 of a text such as "2,4,8"; [] for None. Raises UsageError."""
    try:
        resolve_run = [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        resolve_run = [0.0]
    if any(
        not 0 < number < math.inf or (whole and number != int(number)) for number in resolve_run
    ):
        from driftscope.errors import UsageError

        words = "whole numbers from 1" if whole else "numbers above 0"
        raise UsageError(f"{option} {text}: give {words}, separated by commas")
    return resolve_run


DUCKDB = "duckdb"
DrafterArgument = Annotated[
    str,
    typer.Argument(
        metavar="DRAFTER",
        help="Folder of the drafter, or a repository in the local cache; eagle3 and eagle31 are "
        "the trio's, smollm2-eagle3 and smollm2-eagle31 SmolLM2's.",
        callback=lab_folder,
    ),
]
TARGET = typer.Option(
    metavar="TARGET",
    help="Folder of its target, or a repository in the cache; trio is the small shipped one, "
    "smollm2 SmolLM2-135M-Instruct, fetched once.",
    callback=lab_folder,
)
PromptsOption = Annotated[
    str, typer.Option(metavar="SET", help="A shipped set of prompts, or a file of prompts.")
]
PageOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        callback=page_file,
        help="Also write an HTML page; a file is replaced.",
    ),
]
KOption = Annotated[
    int, typer.Option("--k", "-k", metavar="N", min=1, max=32, help="Tokens per draft.")
]
EveryOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Record the chains of each n-th draft step; 1 records all."
    ),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE",
        help="Record as many chains as fit into this share of the time per token (default 1%).",
    ),
]
LabelsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LABEL", help="Record requests with this workload label only; repeatable."
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
NamesOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Name of a run, once per run; default: directory name."),
]
OtlpOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Send metrics and spans to this OpenTelemetry collector, such as "
        "http://localhost:4318. Default: OTEL_EXPORTER_OTLP_ENDPOINT.",
    ),
]
ConcurrencyOption = Annotated[
    str | None,
    typer.Option(metavar="1,4,16", help="Numbers of concurrent requests; each is one load level."),
]
RateOption = Annotated[
    str | None,
    typer.Option(metavar="R,...", help="Requests per second, sent at random times."),
]
RepeatOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Number of times that each prompt is sent."),
]
LimitOption = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Largest number of prompts.")
]
WarmupOption = Annotated[
    int,
    typer.Option(
        metavar="N", min=0, help="Warm-up requests before each level, which no figure counts."
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=0.1, help="Seconds allowed for one complete answer."),
]
KeepTextsOption = Annotated[
    bool,
    typer.Option(
        "--keep-texts",
        help="Keep prompts and answers in the run, in texts.jsonl, which only you can read; "
        "reports show those of requests whose rounds a probe recorded.",
    ),
]
PickleOption = Annotated[
    bool,
    typer.Option(
        "--allow-pickle", help="Load the tensors of PyTorch pickles; code in them is refused."
    ),
]
DownloadOption = Annotated[
    bool, typer.Option("--download", help="Download repositories that the cache lacks.")
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="Where queries run: duckdb in this process, spark://HOST:PORT on a cluster that reads "
        "the runs under the same paths, or spark://local[2].",
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="COLUMN",
        help="Column of requests whose equal values are not independent: session, conversation, "
        "pair, prompt_digest, label or request; default: the first of the first four that the "
        "recording has.",
    ),
]
"""Option for the requests that are not independent of each other."""
WhereOption = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="EXPR",
        help="Only rows that meet a condition such as \"label = 'chat' and context > 4096\", over "
        f"{', '.join(COLUMNS)}; docs/conditions.md has the language.",
    ),
]
"""Option for the rows to keep of every run."""


def maker_of(name: str) -> Callable[[], QueryEngine]:
    """Return the function that makes the engine for one run's queries. It raises what `engine_of`
    raises."""
    return partial(engine_of, name)


def engine_of(name: str) -> QueryEngine:
    """Return the engine for a run's queries. Raises UsageError for an unknown engine."""
    from driftscope.analysis.query.query_engine import DuckDB
    from driftscope.distributions import needs
    from driftscope.errors import UsageError

    if name == DUCKDB:
        return DuckDB()
    if name.startswith("spark://"):
        with needs("spark"):
            from driftscope.analysis.query.query_engine import Spark

            return Spark(name)
    raise UsageError(f"--engine {name!r}: neither duckdb nor spark://HOST:PORT or spark://local[N]")
