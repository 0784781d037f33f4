"""Jobs for real SGLang engines, which run in an environment of their own (`make sglang`)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from support.engine_process import job as vllm
from support.engine_process.job import prompts
from support.waiting import free_port

from driftscope_lab.trio import trio_path

VERSION = "0.5.23"
HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ENVIRONMENT = Path(os.environ.get("DRIFTSCOPE_SGLANG_VENV") or ROOT / ".venv" / f"sglang-{VERSION}")
STAND_INS = HERE.parent / "sglang_standin" / "site"
K = 5
MAX_TOKENS = 40
TIMEOUT_S = 300
SETTLE_S = 3.0
"""Time for the writers' threads to write what they have: SGLang kills its processes at the end."""
BACKEND = "intel_amx"
"""SGLang's CPU backend. It has to be named for prefill and decode: on a CPU without AMX SGLang
replaces the backend that is named for both at once."""
_CRASH = "Scheduler hit an exception"
_IN_CONFIG = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, kw_only=True)
class Job:
    """An engine to start and its requests."""

    target: ClassVar = "target"
    method: ClassVar = "eagle3"
    drafter: str
    """Name of a shipped drafter; "": no speculation."""
    probe: dict[str, str] = field(default_factory=dict)
    """DRIFTSCOPE_* settings without the prefix; {}: no probe."""
    sizes: tuple[int, ...] = (2,)
    """Batch sizes: the whole prompt set is generated once for each."""
    requests: int = 4
    engine: dict[str, Any] = field(default_factory=dict)
    """Further arguments of SGLang's Engine."""
    sampling: dict[str, Any] = field(default_factory=dict)
    own: tuple[dict[str, Any], ...] = ()
    """Sampling parameters of single requests, in order."""
    models: Callable[[Path], dict[str, Any]] | None = None
    """Builds models in a folder, and returns further arguments of SGLang's Engine for them."""
    abort: int | None = None
    """Number of the request that is aborted while others are served; all are sent at once."""
    env: dict[str, str] = field(default_factory=dict)
    weights: Callable[[Path], Path] | None = None
    """Builds a checkpoint in a folder, whose weights the target gets before the second batch."""


class Outcome(vllm.Outcome):
    """Results of a job."""

    def names(self, batch: int = 0) -> list[str]:
        """Return SGLang's ids of a batch's requests."""
        return [meta["id"] for meta in self.meta(batch)]

    def meta(self, batch: int = 0) -> list[dict[str, Any]]:
        """Return SGLang's `meta_info` of each request of a batch."""
        return [request["meta"] for request in self.batches[batch]["requests"]]


def installed() -> bool:
    """Return whether `make sglang` has built SGLang's environment."""
    return (ENVIRONMENT / "installed").exists()


def run_job(job: Job, folder: Path) -> Outcome:
    """Run a job in `folder`; raises RuntimeError with the log's end when the engine fails."""
    folder.mkdir(parents=True, exist_ok=True)
    spec, result, log = folder / "job.json", folder / "result.json", folder / "log.txt"
    spec.write_text(json.dumps(_description(job, folder)))
    with _started(job, folder, [str(HERE / "engine_main.py"), str(spec), str(result)]) as process:
        # After a crash SGLang waits a minute for a core dump.
        _wait(process, TIMEOUT_S, lambda: _CRASH in log.read_text(errors="replace"))
    text = log.read_text(errors="replace")
    if not result.exists():
        raise RuntimeError(f"engine ended with {process.returncode}:\n{text[-6000:]}")
    return Outcome(job=job, run=folder / "run", log=text, **json.loads(result.read_text()))


@contextlib.contextmanager
def _started(job: Job, folder: Path, words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process of SGLang's Python, whose output is in `folder`/log.txt; end it and all that
    it started."""
    with (folder / "log.txt").open("wb") as sink:
        process = subprocess.Popen(
            [str(ENVIRONMENT / "bin/python"), *words],
            env=environment(job, folder),
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def _wait(process: subprocess.Popen[bytes], limit_s: float, is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds or the process has ended."""
    until = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < until and not is_so():
        time.sleep(0.5)


@contextlib.contextmanager
def serving(job: Job, folder: Path) -> Iterator[str]:
    """Serve a job's engine, started as users start it; yield the server's address."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    options = {**engine(job, folder), **job.engine, "host": "127.0.0.1", "port": port}
    flags = (
        word
        for name, value in options.items()
        if value is not False
        for word in (f"--{name.replace('_', '-')}", *([] if value is True else [str(value)]))
    )

    def is_ready() -> bool:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return True
        return False

    with _started(job, folder, ["-m", "sglang.launch_server", *flags]) as process:
        _wait(process, TIMEOUT_S, is_ready)
        assert is_ready(), f"the server did not start (it ended with {process.returncode})"
        yield address
        time.sleep(SETTLE_S)


def ask(address: str, body: dict[str, Any]) -> Any:
    """Return the answer of the server's /generate."""
    content = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/generate", content, headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def environment(job: Job, folder: Path) -> dict[str, str]:
    """Return the engine's environment, without the caller's DRIFTSCOPE_* settings."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DRIFTSCOPE_")}
    env |= {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(STAND_INS), env.get("PYTHONPATH")))),
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    if job.probe:
        settings = {"TRACE": str(folder / "run"), **job.probe}
        env |= {f"DRIFTSCOPE_{name}": value for name, value in settings.items()}
    return env | job.env


def shifted_drafter(name: str, folder: Path) -> Path:
    """Return a copy of a shipped drafter whose captured layers are numbered as SGLang counts.

    SGLang adds 1 to the numbers in the config, vLLM does not.
    """
    path = folder / name
    shutil.copytree(trio_path() / name, path, dirs_exist_ok=True)
    config = json.loads((path / "config.json").read_text())
    for part in (config, config["eagle_config"]):
        part[_IN_CONFIG] = [layer - 1 for layer in part[_IN_CONFIG]]
    (path / "config.json").write_text(json.dumps(config))
    return path


def _description(job: Job, folder: Path) -> dict[str, Any]:
    asked = prompts(job.requests)
    built = {} if job.models is None else job.models(folder / "models")
    sampling = {"temperature": 0, "max_new_tokens": MAX_TOKENS, "ignore_eos": True, **job.sampling}
    own = [*job.own, *({} for _ in range(len(asked) - len(job.own)))]
    return {
        "engine": {**engine(job, folder), **built, **job.engine},
        "weights": None if job.weights is None else str(job.weights(folder / "weights")),
        "batches": [
            {"size": size, "prompts": asked, "sampling": sampling, "own": own, "abort": job.abort}
            for size in job.sizes
        ],
    }


def engine(job: Job, folder: Path) -> dict[str, Any]:
    """Return the arguments of SGLang's Engine."""
    plain = {
        "model_path": str(trio_path() / "target"),
        "device": "cpu",
        "dtype": "float32",
        "skip_tokenizer_init": True,
        "prefill_attention_backend": BACKEND,
        "decode_attention_backend": BACKEND,
        "max_total_tokens": 8192,
        "max_running_requests": 8,
        "context_length": 1024,
        "mem_fraction_static": 0.2,
        "disable_cuda_graph": True,
        "log_level": "info",
    }
    if not job.drafter:
        return plain
    return {
        **plain,
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": str(shifted_drafter(job.drafter, folder)),
        "speculative_num_steps": K,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": K + 1,
    }
