"""Jobs for real SGLang engines, which run in an environment of their own (`make sglang`)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.engine_process.job import prompts

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
    largest_id: int | None = None
    """Largest token id of the models' vocabulary; prompts are folded into it."""
    abort: int | None = None
    """Number of the request that is aborted while others are served; all are sent at once."""
    env: dict[str, str] = field(default_factory=dict)
    weights: Callable[[Path], Path] | None = None
    """Builds a checkpoint in a folder, whose weights the target gets before the second batch."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Results of a job."""

    job: Job
    run: Path
    batches: list[dict[str, Any]]
    log: str

    def tokens(self, batch: int = 0) -> list[list[int]]:
        """Return the output token ids of each request of a batch, in order of the prompts."""
        return [request["token_ids"] for request in self.batches[batch]["requests"]]

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
    command = [str(ENVIRONMENT / "bin/python"), str(HERE / "engine_main.py"), spec, result]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            env=environment(job, folder),
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait(process, log)
        finally:
            end(process)
    text = log.read_text(errors="replace")
    if not result.exists():
        raise RuntimeError(f"engine ended with {process.returncode}:\n{text[-6000:]}")
    return Outcome(job=job, run=folder / "run", log=text, **json.loads(result.read_text()))


def _wait(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for the end, or for a crash: after one SGLang waits a minute for a core dump."""
    until = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < until:
        if _CRASH in log.read_text(errors="replace"):
            return
        time.sleep(0.5)


def end(process: subprocess.Popen[bytes]) -> None:
    """End an engine with all its processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


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
    if job.largest_id is not None:
        asked = [[token % (job.largest_id + 1) for token in ids] for ids in asked]
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
