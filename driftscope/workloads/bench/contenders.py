"""Benchmark several servers, one after another, under the same suite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from driftscope.trace.format.manifest import MANIFEST
from driftscope.workloads.bench.managed_server import Contender, Running, running
from driftscope.workloads.client.replay import Done, Order, Watcher, replay

READY_S = 900.0
"""Longest start-up time of a server, in seconds: enough for a large model that is read from a cold
disk and compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of one replay against one server."""

    label: str
    server: Path | None
    """Run directory of the server; None without speculation."""
    client: Path
    done: Done


def bench(
    contenders: Sequence[Contender],
    order: Order,
    folder: Path,
    *,
    rounds: int = 1,
    watcher: Watcher | None = None,
) -> Iterator[Result]:
    """Serve each contender and replay `order` to it; yield each result when its replay ends.

    With `rounds` above 1 all contenders are served in turn, repeatedly, so that slow changes over
    time affect all of them equally. Stops after a replay that the user stopped. Raises
    DriftscopeError.
    """
    for number in range(1, rounds + 1):
        for contender in contenders:
            label = contender.label if rounds == 1 else f"{contender.label} ({number})"
            place = folder / label.replace("/", "_")
            with running(contender, place, ready_s=READY_S) as server:
                done = replay(_order(order, contender, server, place / "client"), watcher)
            recorded = (server.trace / MANIFEST).is_file()
            yield Result(
                label=label, server=server.trace if recorded else None, client=done.run, done=done
            )
            if done.stopped:
                return


def _order(order: Order, contender: Contender, server: Running, run: Path) -> Order:
    note: dict[str, Any] = {
        **order.note,
        "contender": contender.label,
        "speculation": dict(contender.speculation) if contender.speculation else None,
        "drafter_bytes": _weights(contender),
        "server_start_s": round(server.start_s, 1),
    }
    return replace(order, url=server.url, run=run, note=note)


def _weights(contender: Contender) -> int | None:
    """Return the size in bytes of the drafter's weight files; None if it is not a local folder."""
    folder = Path(str((contender.speculation or {}).get("model", "")))
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")] if folder.name else []
    return sum(sizes) or None
