"""Lines and answers of engines with known figures, as their writers format them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

# vllm/v1/spec_decode/metrics.py: of 0.8, of 0.9, and of 0.10 to 0.33.
V1 = (
    "INFO 05-12 08:00:{at:02d} [metrics.py:{line}] SpecDecoding metrics: Mean acceptance length: "
    "{length:.2f}, Accepted throughput: {speed:.2f} tokens/s, Drafted throughput: 90.00 tokens/s, "
    "Accepted: {accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: "
    "{rates}, Avg Draft acceptance rate: {share:.1f}%"
)
V1_09 = (
    "INFO 05-12 08:00:{at:02d} [metrics.py:{line}] SpecDecoding metrics: Draft acceptance rate: "
    "{share:.1f}%, Mean acceptance length: {length:.2f}, Accepted: {accepted} tokens, Drafted: "
    "{drafted} tokens, Per-position acceptance rate: {rates}"
)
V1_08 = (
    "INFO 05-12 08:00:{at:02d} [metrics.py:{line}] SpecDecoding metrics: Draft acceptance rate: "
    "{share:.1f}%, Accepted: {accepted} tokens, Drafted: {drafted} tokens"
)
LOAD = (
    "INFO 05-12 08:00:{at:02d} [loggers.py:257] Engine {engine:03d}: Avg prompt throughput: 12.1 "
    "tokens/s, Avg generation throughput: 60.2 tokens/s, Running: {running} reqs, Waiting: 0 reqs, "
    "GPU KV cache usage: {usage:.1f}%, Prefix cache hit rate: 0.0%"
)
LOAD_33 = LOAD.replace("Prefix cache", "External prefix cache hit rate: 1.0%, Prefix cache")


def vllm(*rates: float, rounds: int = 500, at: int = 0, form: str = V1, cut: float = 1.0) -> str:
    """Return a line of vLLM about rounds with these rates by position, that verified a share `cut`
    of their drafts."""
    accepted, drafted = round(rounds * sum(rates)), round(rounds * len(rates) * cut)
    return form.format(
        at=at % 60,
        line=100,
        length=1 + accepted / rounds,
        speed=accepted / 10,
        accepted=accepted,
        drafted=drafted,
        rates=", ".join(f"{rate:.3f}" for rate in rates),
        share=100 * accepted / drafted,
    )


def load(
    at: int = 0, running: int = 8, engine: int = 0, usage: float = 5.0, form: str = LOAD
) -> str:
    """Return vLLM's line about the load."""
    return form.format(at=at % 60, running=running, engine=engine, usage=usage)


def decode(
    length: float, at: int = 0, running: int = 8, k: int = 3, rank: str = "", **more: Any
) -> str:
    """Return a decode line of SGLang 0.5."""
    middle = "".join(f"{name}: {value}, " for name, value in more.items())
    return (
        f"[2026-09-05 10:{at // 60:02d}:{at % 60:02d}{rank}] Decode batch, #running-req: "
        f"{running}, #token: {2000 + at}, token usage: 0.11, accept len: {length:.2f}, accept "
        f"rate: {(length - 1) / k:.2f}, {middle}cuda graph: True, gen throughput (token/s): "
        "610.20, #queue-req: 0"
    )


def llamacpp(accepted: int, generated: int, end: str = "", head: str = "", id_: int = 0) -> str:
    """Return llama.cpp's lines about one request; `end` follows the counts."""
    return (
        f"{head}slot print_timing: id {id_:2d} | task {id_} | draft acceptance = "
        f"{accepted / generated:0.5f} ({accepted:5d} accepted / {generated:5d} generated){end}"
    )


def lines(rows: Sequence[str], prefix: str = "", end: str = "\n") -> str:
    """Return rows as a text, each after a prefix."""
    return "".join(f"{prefix}{row}{end}" for row in rows)


def response(histogram: Sequence[int], drafted: int | None = None, **more: Any) -> dict[str, Any]:
    """Return an answer of vLLM whose rounds by accepted tokens are `histogram`."""
    rounds, k = sum(histogram), len(histogram) - 1
    counts = {
        "acceptance_histogram": list(histogram),
        "num_spec_steps": rounds,
        "num_accepted_draft_tokens": sum(n * times for n, times in enumerate(histogram)),
        "num_draft_tokens": k * rounds if drafted is None else drafted,
        "num_spec_tokens": k,
        **more,
    }
    answer = {"id": "a", "object": "chat.completion"}
    return {**answer, "metrics": {"speculative_decoding": counts}}


def write(path: Path, content: str | bytes | Sequence[str]) -> Path:
    """Write a text, bytes, or lines; return the path."""
    if not isinstance(content, str | bytes):
        content = lines(content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
