"""Jobs for real vLLM engines, isolated from each other, two at a time."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

from support.engine_process.forks import Forks

from driftscope_lab.trio import CONDITIONS, encode, load_prompts, trio_path

HERE = Path(__file__).parent
K = 8
PROMPTS = 10
MAX_TOKENS = 48
BLOCKS = 64
"""Blocks of KV cache: 8192 tokens, more than all requests of a step need. vLLM fills its cache with
zeros, which takes a second for each GiB."""
CORES = ("0", "1")
ENGINE_TIMEOUT_S = 420


EVERY_KIND = bool(os.environ.get("DRIFTSCOPE_TEST_EVERY_KIND"))
"""Whether tests take every engine that is known of a kind, and not those that cover all options;
`make kinds` and the like."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """An engine to start and its requests. `runner` is "v1" or "v2"."""

    drafter: str
    """Name of a shipped drafter, or the path of another."""
    method: str = "eagle3"
    """Method by which vLLM drafts."""
    target: str = "target"
    """Target model: "target" for the shipped one, or the path of another."""
    runner: str = "v1"
    compiled: bool = False
    probe: dict[str, str] = field(default_factory=dict)
    """DRIFTSCOPE_* settings without the prefix; {}: no probe."""
    sizes: tuple[int, ...] = (8,)
    """Batch sizes: the whole prompt set is generated once for each."""
    requests: int = PROMPTS
    """Number of prompts in the set."""
    vllm_path: str | None = None
    """Folder with another vLLM version that precedes the installed one."""
    device: str = "cpu"
    """Device: "cpu", where V2's kernels run in Triton's interpreter, or "cuda"."""
    llm: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    situations: tuple[Any, ...] = ()
    """Situations for situations_main.py, instead of batches for engine_main.py."""
    env: dict[str, str] = field(default_factory=dict)
    processes: bool = False
    """Whether engine core and workers are processes of their own, as for users; each imports vLLM.
    Otherwise the front end's process does everything."""
    fresh: bool = False
    """Whether the front end's process imports vLLM itself, as for users. Otherwise it is a fork of
    a process that has imported vLLM."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Results of a job."""

    job: Any
    """The `Job`, or that of another engine."""
    run: Path
    """Run directory, if the probe was on."""
    batches: list[dict[str, Any]]
    log: str
    metrics: dict[str, Any] = field(default_factory=dict)

    def tokens(self, batch: int = 0) -> list[list[int]]:
        """Return the output token ids of each request of a batch, in order of the prompts."""
        return [request["token_ids"] for request in self.batches[batch]["requests"]]

    def names(self, batch: int = 0) -> list[str]:
        """Return the ids of a batch's requests, without what vLLM's engine adds to them."""
        return [request["id"].partition("-")[0] for request in self.batches[batch]["requests"]]


def prompts(count: int = PROMPTS) -> list[list[int]]:
    """Return held-out prompts as token ids, half in each condition."""
    return [list(ids) for ids in _all_prompts()[:count]]


@functools.cache
def _all_prompts() -> list[list[int]]:
    return [encode(p.text(CONDITIONS[i % 2])) for i, p in enumerate(load_prompts())]


def run_job(job: Job, folder: Path, core: str = "0") -> Outcome:
    """Run a job in `folder`; raises RuntimeError with the log's end when the engine fails."""
    folder.mkdir(parents=True, exist_ok=True)
    spec, result, log = folder / "job.json", folder / "result.json", folder / "log.txt"
    spec.write_text(json.dumps(_description(job)))
    main = HERE / ("situations_main.py" if job.situations else "engine_main.py")
    arguments, env = [str(spec), str(result)], environment(job, folder, core)
    if _forked(job):
        code = forks(job.runner).run(main, arguments, env, log, ENGINE_TIMEOUT_S)
    else:
        code = _run_alone(main, arguments, env, log)
    text = log.read_text(errors="replace")
    if code != 0 or not result.exists():
        raise RuntimeError(f"engine ended with {code}:\n{text[-6000:]}")
    return Outcome(job=job, run=folder / "run", log=text, **json.loads(result.read_text()))


def _run_alone(main: Path, arguments: list[str], env: dict[str, str], log: Path) -> int:
    with log.open("wb") as sink:
        return subprocess.run(
            [sys.executable, str(main), *arguments],
            env=env,
            stdout=sink,
            stderr=subprocess.STDOUT,
            timeout=ENGINE_TIMEOUT_S,
            check=False,
        ).returncode


@functools.cache
def _forks(runner: str) -> Forks:
    started = Forks(environment(Job(drafter="", runner=runner), Path(), "0"))
    atexit.register(started.close)
    return started


_STARTING = threading.Lock()


def forks(runner: str) -> Forks:
    """Return a process that forks engines; whether Triton is present is decided when vLLM is
    imported."""
    with _STARTING:
        return _forks(runner)


_UNPROBED: dict[str, Outcome] = {}
"""Outcomes of jobs without the probe, by job."""


def run_jobs(
    jobs: dict[str, Job], folder: Path, side_by_side: Sequence[str] = CORES
) -> dict[str, Outcome]:
    """Return the outcomes in the jobs' order; raise the error of the first job that failed, if any.

    Jobs run in parallel, one per core. A job without the probe runs once in this process: its
    answers are the same each time.
    """
    cores: Queue[str] = Queue()
    for core in side_by_side[: os.cpu_count() or 1]:
        cores.put(core)

    def one(item: tuple[str, Job]) -> Outcome | Exception:
        name, job = item
        known = json.dumps(dataclasses.asdict(job))
        if known in _UNPROBED:
            return _UNPROBED[known]
        core = cores.get()
        try:
            outcome = run_job(job, folder / name, core)
            if not job.probe:
                _UNPROBED[known] = outcome
            return outcome
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return error
        finally:
            cores.put(core)

    for runner in {job.runner for job in jobs.values() if _forked(job)}:
        forks(runner)
    order = sorted(jobs.items(), key=lambda item: _slowness(item[1]), reverse=True)
    with ThreadPoolExecutor(cores.qsize()) as pool:
        found = dict(zip(dict(order), pool.map(one, order), strict=True))
    outcomes = {}
    for name in jobs:
        outcome = found[name]
        if isinstance(outcome, Exception):
            raise outcome
        outcomes[name] = outcome
    return outcomes


def _forked(job: Job) -> bool:
    return not job.fresh and job.device == "cpu" and job.vllm_path is None


def _slowness(job: Job) -> tuple[bool, ...]:
    """Return the sort key that starts slow jobs first, so that no core runs one alone at the
    end."""
    return job.runner == "v2", job.compiled, job.processes or not _forked(job)


def environment(job: Job, folder: Path, core: str) -> dict[str, str]:
    """Return the engine's environment, without the caller's DRIFTSCOPE_* settings."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DRIFTSCOPE_")}
    env |= {
        "VLLM_USE_V2_MODEL_RUNNER": "1" if job.runner == "v2" else "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": core,
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1" if job.processes else "0",
    }
    env.pop("OMP_NUM_THREADS", None)
    if not job.processes:  # no other process binds the cores then
        env["OMP_NUM_THREADS"] = "1"
    path = [p for p in (job.vllm_path, str(HERE.parents[1]), env.get("PYTHONPATH")) if p]
    if job.runner == "v2" and job.device == "cpu":
        env |= {"DRIFTSCOPE_TEST_TRITON_ON_CPU": "1", "TRITON_INTERPRET": "1"}
        path.insert(0, str(HERE / "triton_on_cpu"))
    env["PYTHONPATH"] = os.pathsep.join(path)
    if job.probe:
        settings = {"TRACE": str(folder / "run"), **job.probe}
        env |= {f"DRIFTSCOPE_{name}": value for name, value in settings.items()}
    return env | job.env


def _description(job: Job) -> dict[str, Any]:
    sampling = {
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "detokenize": False,
        **job.sampling,
    }
    asked = prompts(job.requests)
    batches = [{"size": size, "prompts": asked, "sampling": sampling} for size in job.sizes]
    return {
        "llm": {**engine(job), **job.llm},
        "batches": batches,
        "situations": [dataclasses.asdict(situation) for situation in job.situations],
    }


def engine(job: Job) -> dict[str, Any]:
    return {
        "model": str(trio_path() / job.target),
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_seqs": 8,
        "num_gpu_blocks_override": BLOCKS,
        "enforce_eager": not job.compiled,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "skip_tokenizer_init": True,
        "speculative_config": {
            "method": job.method,
            "model": str(trio_path() / job.drafter),
            "num_speculative_tokens": K,
        },
    }
