"""`driftscope serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_TRACE = Path("driftscope-runs/{time}")


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Model to serve, as for `vllm serve`.")],
    trace: Annotated[
        Path, typer.Option(help="Run directory; {time} and {pid} are replaced.")
    ] = DEFAULT_TRACE,
    every: Annotated[
        int | None,
        typer.Option(min=1, help="Record the chains of each n-th draft step; 1 records all."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Record as many as this share of the time per token pays (default 1%)."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Record requests with this workload label only; repeatable."),
    ] = None,
    control: Annotated[
        bool,
        typer.Option(
            "--control",
            help="Let `driftscope probe` reach the workers by URL. Sets VLLM_SERVER_DEV_MODE=1, "
            "which also lets anyone who reaches the port call any worker method, put the engine to "
            "sleep, drop caches and replace weights.",
        ),
    ] = False,
    sink_tokens: Annotated[
        str | None,
        typer.Option(
            help="The sink set: the first n slots (default 4), or slots such as 0,1,17, or auto: "
            "looked for in the first recorded chains."
        ),
    ] = None,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Also record the drafted token ids.")
    ] = False,
    otlp: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send metrics and spans to this OpenTelemetry collector, such as "
            "http://localhost:4318. OTEL_* variables say the rest.",
        ),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Answer Prometheus there, at /metrics; without HOST only this machine "
            "(127.0.0.1), with 0.0.0.0 all.",
        ),
    ] = None,
) -> None:
    """Serve MODEL with vLLM and record its drafter.

    Every other option goes to vLLM unchanged, such as --speculative-config and --port.
    Replaces this process with vLLM's server, so signals and the exit code are the server's.
    """
    from driftscope.errors import UsageError
    from driftscope.trace.format.control_file import ControlValueError
    from driftscope_probes.server.vllm_server import Recording, replace_with_server

    if any("," in each for each in label or ()):
        raise UsageError("--label: a label with a comma cannot be given at the start; see `probe`")
    try:
        recording = Recording(
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
    replace_with_server(model, context.args, recording, control=control)
