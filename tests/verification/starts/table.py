"""Start real engines whose probe is broken in one way each, and compare their tokens with those of
an engine without the plugin. `make starts`.

    PYTHONPATH=tests python -m verification.starts.table [WORDS OF A ROW]

prints a line for each start: whether it served, tokens equal to those without the plugin, lines in
the log that the probe wrote, verified rounds that it recorded, and the first line of the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue
from typing import Any

from support.engine_process.job import CORES, MAX_TOKENS, Job, engine, environment, prompts, run_job

from driftscope.errors import DriftscopeError
from driftscope.trace.reader import read_trace
from driftscope_probes.vllm.attach import WRONG_TOKENS
from verification.starts.rows import CUSTOM, NONE, PARALLEL, ROWS, Row
from verification.zoo import ZOO

READY_S = 600
POLL_S = 0.5
END_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Answers of a server."""

    tokens: list[list[int]]
    page: str
    """Metrics of the probe; empty without DRIFTSCOPE_PROMETHEUS."""


def tokens_over_http(job: Job, folder: Path, core: str) -> Answers:
    """Start a server for a job, ask it for each prompt in turn, and stop it.

    Raises RuntimeError if it does not come up.
    """
    folder.mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (folder / "log.txt").open("wb") as sink:
        process = subprocess.Popen(
            _command(job, port),
            env=environment(job, folder, core),
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(process, f"http://127.0.0.1:{port}/health")
        asked = [_complete(port, each) for each in prompts(job.requests)]
        return Answers(tokens=asked, page=_page(job.env.get("DRIFTSCOPE_PROMETHEUS", "")))
    finally:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            process.send_signal(signal.SIGINT)
            process.wait(END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _command(job: Job, port: int) -> list[str]:
    llm = {**engine(job), **job.llm}
    options = {
        "model": llm["model"],
        "dtype": llm["dtype"],
        "max-model-len": llm["max_model_len"],
        "max-num-seqs": llm["max_num_seqs"],
        "num-gpu-blocks-override": llm["num_gpu_blocks_override"],
        "speculative-config": json.dumps(llm["speculative_config"]),
        "served-model-name": "tiny",
        "host": "127.0.0.1",
        "port": port,
    }
    listed = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    return [*server, *listed, "--enforce-eager", "--no-enable-prefix-caching"]


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=2).close()
            return
        time.sleep(POLL_S)
    raise RuntimeError("the server did not come up")


def _complete(port: int, prompt: list[int]) -> list[int]:
    body = {
        "model": "tiny",
        "prompt": prompt,
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, Any] = json.load(response)
    tokens: list[int] = answer["choices"][0]["token_ids"]
    return tokens


def _page(port: str) -> str:
    if not port:
        return ""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        page: bytes = response.read()
    return page.decode()


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

    def as_told(self, row: Row) -> bool:
        """Return whether the start served identical tokens and said what `row` expects."""
        told = [line for line in self.lines if row.said and row.said in line]
        if row.said and row.said in self.log and not self.lines:
            told = [row.said]  # vLLM's own line about a plugin that it could not load
        expected = 1 if row.said else 0
        return (
            self.served
            and self.same
            and len(told) == expected == max(len(self.lines), len(told))
            and (self.rounds > 0) == row.records
        )


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
            return tokens_over_http(replace(job, processes=True), folder, core).tokens
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
                tokens = tokens_over_http(job, folder, core).tokens
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


def main() -> None:
    """Print the table; exit with 1 if a start is not as it should be."""
    words = " ".join(sys.argv[1:])
    rows = {name: row for name, row in ROWS.items() if words in name}
    wrong = []
    print(f"{'start':50} {'served':>6} {'tokens':>9} {'rounds':>6} {'lines':>5}  first line")
    with tempfile.TemporaryDirectory(prefix="driftscope-starts-") as folder:
        for name, one in Starts(Path(folder)).run(rows):
            print(_line(name, rows[name], one), flush=True)
            if not one.as_told(rows[name]):
                wrong.append(name)
                sys.stderr.write(f"--- {name}\n{one.log[-3000:]}\n")
    print(f"{len(rows) - len(wrong)} of {len(rows)} starts are as they should be")
    if wrong:
        print("not so: " + ", ".join(wrong))
        raise SystemExit(1)


def _line(name: str, row: Row, one: Started) -> str:
    stand_in = f" (stands in for {row.stands_in_for})" if row.stands_in_for else ""
    return (
        f"{name:50} {'yes' if one.served else 'NO':>6} "
        f"{'identical' if one.same else 'DIFFER':>9} {one.rounds:6} {len(one.lines):5}  "
        f"{(one.lines or ('-',))[0].removeprefix(MARK)[:90]}{stand_in}"
    )


if __name__ == "__main__":
    main()
