"""The `driftscope serve` command."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

import typer

from driftscope.cli import options
from driftscope.distributions import LAB_TARGETS

DEFAULT_TRACE = Path("driftscope-runs/{time}-{drafter}")


def serve(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Model to serve, as for the engine's own server; `trio` is the small shipped "
            "one, with its drafter, and `smollm2` SmolLM2-135M-Instruct, fetched once.",
        ),
    ],
    engine: Annotated[
        Literal["vllm", "sglang"],
        typer.Option(help="Engine that serves; `trio` and `smollm2` are vLLM's."),
    ] = "vllm",
    no_speculation: Annotated[
        bool,
        typer.Option(
            "--no-speculation",
            help="Serve without a drafter and record requests and step times, to compare with.",
        ),
    ] = False,
    trace: Annotated[
        Path,
        typer.Option(
            metavar="RUN",
            envvar="DRIFTSCOPE_TRACE",
            help="Run directory; {time}, {drafter} and {pid} are replaced.",
        ),
    ] = DEFAULT_TRACE,
    every: options.EveryOption = None,
    budget: options.BudgetOption = None,
    label: options.LabelsOption = None,
    sink_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="SLOTS",
            help="The sink set: the first n slots (default 4), or slots such as 0,1,17, or auto to "
            "search for it in the first recorded chains.",
        ),
    ] = None,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Also record the drafted token ids.")
    ] = False,
    otlp: options.OtlpOption = None,
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve metrics for Prometheus on this port, at /metrics; without HOST only to "
            "this machine (127.0.0.1), with 0.0.0.0 to all.",
        ),
    ] = None,
) -> None:
    """Serve MODEL with vLLM, or with SGLang, and record its drafter, or its speed without one.

    Every other option goes to the engine unchanged, such as vLLM's --speculative-config and --port.
    Replaces this process with the engine's server, so signals and the exit code are the server's.
    """
    from driftscope.errors import UsageError
    from driftscope.trace.control import ControlValueError
    from driftscope_probes.server.start import RecordingOptions, replace_process

    if any("," in text for text in label or ()):
        raise UsageError(
            "--label: a label with a comma cannot be set at the start; use "
            "`driftscope probe set --label`"
        )
    try:
        recording = RecordingOptions(
            trace=trace,
            every=every,
            budget=budget,
            labels=tuple(label) if label else None,
            sink_tokens=sink_tokens,
            token_ids=token_ids,
            otlp=otlp,
            prometheus=prometheus,
        )
    except ControlValueError as error:
        raise UsageError(f"--{error}") from error
    options = list(context.args)
    if model.startswith("-") or model.isdecimal():
        raise UsageError(
            "MODEL comes before the engine's options: driftscope serve MODEL --port 8000"
        )
    if model not in LAB_TARGETS and not Path(model).exists():
        for near in get_close_matches(model, LAB_TARGETS):
            raise UsageError(f"{model}: no such folder; did you mean {near}?")
    if model in LAB_TARGETS:
        if engine == "sglang":
            raise UsageError(f"--engine sglang: {' and '.join(LAB_TARGETS)} are for vLLM only")
        model, options = _lab_model(model, options, speculation=not no_speculation)
    replace_process(engine, model, options, recording, speculation=not no_speculation)


def _lab_model(name: str, options: list[str], *, speculation: bool) -> tuple[str, list[str]]:
    """Return path and options of a model of the lab; variables that vLLM needs for it are set in
    this process's environment unless they are set already."""
    import os

    from driftscope.distributions import needs_lab

    with needs_lab():
        from driftscope_lab.models import MODELS

    known = MODELS[name]
    for variable, value in known.environment.items():
        os.environ.setdefault(variable, value)
    if speculation:
        options = known.with_speculation(options)
    return str(known.prepared()), known.completed(options)
