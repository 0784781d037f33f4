"""Prompts from files that people have; nothing of theirs comes with driftscope.

=====================================  ==========================================================
`*.parquet` with `turns`               SPEED-Bench (evaluation licence: read it)
`*.jsonl` with `turns`                 Spec-Bench, MT-Bench
`*.jsonl` with `prompt`                RedHatAI/speculator_benchmarks, and any such file
`*.json` with `conversations`          ShareGPT
`*.jsonl` with `messages`              OpenAI requests: batch files, fine-tuning files, request logs
`*.json` with `benchmarks`             guidellm's report: the prompts of its successful requests
`*.json` with `input_lens`             `vllm bench serve --save-result --save-detailed`: as long
=====================================  ==========================================================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from driftscope.boundary.bounds import MAX_INPUT_BYTES
from driftscope.boundary.file_input import open_regular, parse_json, read_bytes, read_json
from driftscope.errors import UsageError
from driftscope.workloads.suites.prompt import Prompt
from driftscope.workloads.suites.readers.results import guidellm_rows, vllm_bench_rows
from driftscope.workloads.suites.readers.rows import prompt_of

Row = Mapping[str, Any]


def read_prompts(path: Path) -> list[Prompt]:
    """Return the prompts in a file of any of the formats above; raises UsageError.

    A row without a prompt is skipped; a file without any prompt is refused.
    """
    try:
        rows = list(_READERS[path.suffix.lower()](path))
    except KeyError as error:
        raise UsageError(
            f"{path}: no reader for {path.suffix or 'files without an ending'}; known are "
            f"{', '.join(_READERS)}"
        ) from error
    except (ValueError, OSError, RecursionError) as error:
        raise UsageError(f"{path}: not readable ({' '.join(str(error).split())[:200]})") from error
    candidates = [prompt_of(row, f"{path.stem}-{number}") for number, row in enumerate(rows)]
    prompts = _distinct([prompt for prompt in candidates if prompt is not None])
    if not prompts:
        raise UsageError(
            f"{path}: no prompt in its {len(rows)} rows; known are turns, prompt, conversations, "
            "messages and body (see `driftscope replay --help`)"
        )
    return prompts


def _distinct(prompts: list[Prompt]) -> list[Prompt]:
    """Return the first of the prompts with each key: a key pairs a prompt with itself."""
    return list({prompt.key: prompt for prompt in reversed(prompts)}.values())[::-1]


def _parquet(path: Path) -> Iterable[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[Row] = pq.read_table(pa.py_buffer(read_bytes(path))).to_pylist()
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error
    return rows


def _jsonl(path: Path) -> Iterable[Row]:
    with (
        open_regular(path) as descriptor,
        os.fdopen(os.dup(descriptor), encoding="utf-8") as handle,
    ):
        for number, line in enumerate(handle, start=1):
            if line.strip():
                try:
                    yield _mapping(parse_json(line))
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from error


def _json(path: Path) -> Iterable[Row]:
    value = read_json(path, limit=MAX_INPUT_BYTES)
    if isinstance(value, dict) and "benchmarks" in value:
        return guidellm_rows(value)
    if isinstance(value, dict) and "input_lens" in value:
        return vllm_bench_rows(value)
    if isinstance(value, dict):
        value = value.get("requests") or value.get("data") or [value]
    if not isinstance(value, list):
        raise ValueError("neither a list nor an object")
    return [_mapping(row) for row in value]


def _mapping(row: Any) -> Row:
    if not isinstance(row, dict):
        raise ValueError("a row that is not an object")
    return row


_READERS: dict[str, Callable[[Path], Iterable[Row]]] = {
    ".parquet": _parquet,
    ".jsonl": _jsonl,
    ".json": _json,
}
