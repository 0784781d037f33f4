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
        int, typer.Option(min=1, help="Record the chains of each n-th draft step.")
    ] = 1,
    sink_tokens: Annotated[
        int | None, typer.Option(min=1, help="The sink set: the first n slots (default 4).")
    ] = None,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Also record the drafted token ids.")
    ] = False,
) -> None:
    """Serve MODEL with vLLM and record its drafter.

    Every other option goes to vLLM unchanged, such as --speculative-config and --port.
    Replaces this process with vLLM's server, so signals and the exit code are the server's.
    """
    from driftscope_probes.serving import Recording, replace_with_server

    replace_with_server(
        model,
        context.args,
        Recording(trace=trace, every=every, sink_tokens=sink_tokens, token_ids=token_ids),
    )
