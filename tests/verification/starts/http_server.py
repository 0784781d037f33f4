"""vLLM's HTTP server without `driftscope serve`, as one that only has the plugin installed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.engine_process.job import MAX_TOKENS, Job, engine, environment, prompts

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
