"""The `--cluster` option: which requests count as independent of each other."""

from __future__ import annotations

from typing import Annotated

import typer

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
