"""Starts of real engines whose probe is broken in one way each, and of those without the plugin."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue
from typing import Any

from support.engine_process.job import CORES, MAX_TOKENS, Job, engine, environment, prompts, run_job
from support.engine_process.serving import MODEL, running
from support.waiting import free_port

from driftscope.errors import DriftscopeError
from driftscope.trace.reader import read_trace
from driftscope_probes.vllm.attach import WRONG_TOKENS
from verification.starts.rows import CUSTOM, NONE, PARALLEL, Row
from verification.zoo import ZOO


def tokens_over_http(job: Job, folder: Path, core: str) -> list[list[int]]:
    """Start vLLM's server for a job, ask it for each prompt in turn, and stop it.

    Raises RuntimeError if it does not come up.
    """
    folder.mkdir(exist_ok=True)
    port = free_port()
    environ = environment(job, folder, core)
    with running(_command(job, port), environ, port, folder / "run", folder / "log.txt") as server:
        asked = [
            server.complete(str(at), prompt=ids, max_tokens=MAX_TOKENS, return_token_ids=True)
            for at, ids in enumerate(prompts(job.requests))
        ]
    return [answer["choices"][0]["token_ids"] for answer in asked]


def _command(job: Job, port: int) -> list[str]:
    llm = {**engine(job), **job.llm}
    options = {
        "model": llm["model"],
        "dtype": llm["dtype"],
        "max-model-len": llm["max_model_len"],
        "max-num-seqs": llm["max_num_seqs"],
        "num-gpu-blocks-override": llm["num_gpu_blocks_override"],
        "speculative-config": json.dumps(llm["speculative_config"]),
        "served-model-name": MODEL,
        "host": "127.0.0.1",
        "port": port,
    }
    listed = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    return [*server, *listed, "--enforce-eager", "--no-enable-prefix-caching"]


WITHOUT_PLUGIN = {"VLLM_PLUGINS": ""}
REQUESTS = 4
MARK = "driftscope: "
"""Begin of each line that the probe logs."""
_PARALLEL = {"method": "draft_model", "num_speculative_tokens": 4, "parallel_drafting": True}
_CUSTOM = {
    "method": "custom_class",
    "model": "support.custom_proposer.RepeatingProposer",
    "num_speculative_tokens": 4,
}
Tokens = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Outcome of a start."""

    served: bool
    same: bool
    """Whether every token is that of an engine without the plugin."""
    lines: tuple[str, ...]
    """Lines of the log that the probe wrote, but for the one about vLLM's own tokens."""
    rounds: int
    """Verified rounds in the run directory."""
    log: str


class Starts:
    """Runs starts below a folder; engines without the plugin are run once for each kind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        model = folder / "parallel"
        ZOO["draft_model"].build(model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "pard_token": 5}))
        self._drafters: dict[str, Any] = {
            NONE: {"speculative_config": None},
            PARALLEL: {"speculative_config": {**_PARALLEL, "model": str(model)}},
            CUSTOM: {"speculative_config": _CUSTOM},
        }
        self._tokens: dict[tuple[str, str, bool], Tokens] = {}

    def run(self, rows: Mapping[str, Row]) -> Iterator[tuple[str, Started]]:
        """Run the rows, one per core; yield what became of each, in order."""
        cores: Queue[str] = Queue()
        for core in CORES:
            cores.put(core)

        def on_a_core(action: Any, *args: Any) -> Any:
            core = cores.get()
            try:
                return action(*args, core)
            finally:
                cores.put(core)

        kinds = {_kind(row): row for row in rows.values()}
        with ThreadPoolExecutor(len(CORES)) as pool:
            off = pool.map(lambda row: on_a_core(self._without, row), kinds.values())
            self._tokens.update(zip(kinds, off, strict=True))
            started = pool.map(lambda item: on_a_core(self._one, *item), rows.items())
            yield from zip(rows, started, strict=True)

    def _without(self, row: Row, core: str) -> Tokens:
        folder = self._folder / "-".join(("off", *map(str, _kind(row)))).replace(" ", "-")
        job = replace(self._job(row), probe={}, processes=False, fresh=False, env=WITHOUT_PLUGIN)
        if row.http:
            return tokens_over_http(replace(job, processes=True), folder, core)
        return run_job(job, folder, core).tokens()

    def _one(self, name: str, row: Row, core: str) -> Started:
        folder = self._folder / name.replace(" ", "-").replace("/", "")
        folder.mkdir()
        with row.place(folder) as changes:
            job = self._job(row)
            trace = {"TRACE": str(folder / "run"), **row.settings}
            env = {f"DRIFTSCOPE_{key}": value for key, value in trace.items()} | dict(changes)
            if row.breaks:
                job = replace(job, main="broken_start_main.py")
                env["DRIFTSCOPE_TEST_BREAK"] = row.breaks
            return self._started(replace(job, env=env), row, folder, core)

    def _started(self, job: Job, row: Row, folder: Path, core: str) -> Started:
        tokens: Tokens | None = None
        log = folder / "log.txt"
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            if row.http:
                tokens = tokens_over_http(job, folder, core)
            else:
                tokens = run_job(job, folder, core).tokens()
        text = log.read_text(errors="replace")
        lines = [
            line[line.index(MARK) :]
            for line in text.splitlines()
            if MARK in line and WRONG_TOKENS not in line
        ]
        return Started(
            served=tokens is not None,
            same=tokens == self._tokens[_kind(row)],
            lines=tuple(lines),
            rounds=_rounds(Path(job.env["DRIFTSCOPE_TRACE"])),
            log=text,
        )

    def _job(self, row: Row) -> Job:
        return Job(
            drafter="eagle31",
            runner=row.runner,
            processes=row.processes,
            fresh=row.processes,
            requests=REQUESTS,
            llm=self._drafters.get(row.drafter, {}),
        )


def _kind(row: Row) -> tuple[str, str, bool]:
    return row.runner, row.drafter or "eagle3.1", row.http


def _rounds(run: Path) -> int:
    try:
        return read_trace(run).verify.num_rows
    except DriftscopeError:
        return 0
