"""Asks an installed engine whether it builds a drafter's class and loads its tensors.

The engine runs in a process of its own (`vllm_process`, `sglang_process`) with a limit of time. It
sees configs, and names, types and shapes of tensors, which is what headers of files hold; no weight
is read. So any class that it registers is checked by its own rules, without a table of them here.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from driftscope.boundary.text import dumps
from driftscope.inspect.checkpoints import DrafterFiles, heads_wanted
from driftscope.inspect.checks.result import CheckResult, Inspected, error
from driftscope.inspect.checks.tensors import some
from driftscope.inspect.drafter_classes import IN_THE_TARGET, SMALL_LLAMA, Family, method_of
from driftscope.inspect.files import CAREFUL, Opening, find_tensors

MOST_SECONDS = 180.0
"""Time for an engine to start, and for each answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedEngine:
    """An engine that can be asked."""

    name: str
    package: str
    environment: Mapping[str, str]

    @property
    def command(self) -> Sequence[str]:
        """Command of its process."""
        return (sys.executable, "-m", f"driftscope.inspect.{self.package}_process")

    @property
    def is_installed(self) -> bool:
        """Whether it is installed beside driftscope."""
        return find_spec(self.package) is not None and find_spec("torch") is not None


VLLM = AskedEngine(
    name="vLLM",
    package="vllm",
    environment={"VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"},
)
SGLANG = AskedEngine(
    name="SGLang",
    package="sglang",
    environment={"SGLANG_PLUGINS": "none", "TORCHDYNAMO_DISABLE": "1"},
)


def installed_engine() -> AskedEngine | None:
    """Return the engine to ask: vLLM, or SGLang where only that is installed; None without."""
    return next((engine for engine in (VLLM, SGLANG) if engine.is_installed), None)


_STANDIN_LAYERS = 64
"""Layers of the target that an engine is told of if none is given: more than any captured layer."""
_DRAFTED = 3
"""Drafted tokens that an engine is told of if the config does not limit them."""


_NOT_REGISTERED = "_raise_for_unsupported"
"""Function of vLLM that refuses an architecture, whatever the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswer:
    """An engine's answer about a drafter that it was asked to build."""

    engine: str
    """Name and version."""
    results: tuple[CheckResult, ...]
    """Tensors that it refuses, and parameters that it leaves without weights."""
    parameters: Mapping[str, tuple[int, ...]]
    """Parameters of the class that it built, with their shapes."""
    unknown: str
    """Why it could not judge the checkpoint here; "" if it did."""


class EngineProcess:
    """A process with an engine, started by the first question.

    ```
    with EngineProcess() as process:
        answer = process.ask(inspected)
    ```
    """

    def __init__(
        self,
        engine: AskedEngine = VLLM,
        command: Sequence[str] = (),
        most_seconds: float = MOST_SECONDS,
    ) -> None:
        self._engine, self._command = engine, command or engine.command
        self._most_seconds = most_seconds
        self._process: subprocess.Popen[str] | None = None
        self._name = engine.name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def ask(self, inspected: Inspected, opening: Opening = CAREFUL) -> EngineAnswer:
        """Return what the engine makes of a drafter. Raises CheckpointError for one without
        tensors."""
        given = inspected.target is not None or _is_part_of_target(inspected.drafter)
        with tempfile.TemporaryDirectory(prefix="driftscope-") as scratch:
            question = _question(inspected, opening, Path(scratch))
            self._start()
            answer = self._exchange(dumps(question))
        if answer is None:
            name = self._engine.name
            reason = f"{name} stopped, or gave no answer within {self._most_seconds:g} s"
            return EngineAnswer(engine=self._name, results=(), parameters={}, unknown=reason)
        return _answer(answer, self._name, target_given=given)

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._process = subprocess.Popen(  # noqa: S603  this Python and a module of ours
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **self._engine.environment, "HF_HUB_OFFLINE": "1"},
        )
        hello = self._read()
        self._name = f"{self._engine.name} {(hello or {}).get('version', '')}".rstrip()

    def _exchange(self, question: str) -> dict[str, Any] | None:
        process = self._process
        if process is None or process.stdin is None:
            return None
        try:
            process.stdin.write(f"{question}\n")
            process.stdin.flush()
        except OSError:
            self._stop()
            return None
        return self._read()

    def _read(self) -> dict[str, Any] | None:
        """Return one line of the process as JSON; None, and the process is stopped, without one."""
        stdout = self._process.stdout if self._process else None
        if stdout is None:
            return None
        ready, _, _ = select.select([stdout], [], [], self._most_seconds)
        line = stdout.readline() if ready else ""
        if not line:
            self._stop()
            return None
        found: dict[str, Any] = json.loads(line)
        return found

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        process.wait()


def _is_part_of_target(drafter: DrafterFiles) -> bool:
    if _method(drafter) == "dspark":
        return str(drafter.raw.get("model_type")) in IN_THE_TARGET
    return _method(drafter) == "mtp" and "backbone_hidden_size" not in drafter.raw


def _method(drafter: DrafterFiles) -> str:
    return method_of(drafter.format.architecture or "")


def _question(inspected: Inspected, opening: Opening, scratch: Path) -> dict[str, Any]:
    drafter, target = inspected.drafter, inspected.target
    own = _is_part_of_target(drafter)
    method = _method(drafter)
    speculative: dict[str, Any] = {"method": method}
    if own:
        folder = drafter.folder
        heads = heads_wanted(drafter.raw) or 1
        speculative["num_speculative_tokens"] = heads if method == "mtp" else _drafted(drafter)
    else:
        folder = target.folder if target else _standin(drafter, scratch)
        speculative |= {"model": str(drafter.folder), "num_speculative_tokens": _drafted(drafter)}
        row = drafter.format.row
        if row is not None and row.parallel and row.family is not Family.BLOCKS:
            speculative["parallel_drafting"] = True
    files = find_tensors(drafter.folder, opening)
    stored = {
        name: (list(tensor.shape), tensor.dtype)
        for file in files.files
        if file.exists()
        for name, tensor in files.read(file).items()
    }
    return {
        "target": str(folder.absolute()),
        "speculative": speculative,
        "folders": sorted({str(folder.absolute()), str(drafter.folder.absolute())}),
        "tensors": stored,
    }


def _drafted(drafter: DrafterFiles) -> int:
    """Return a number of drafted tokens that the config permits."""
    for place in (drafter.fields, drafter.dflash_config):
        block = place.get("block_size", place.get("dspark_block_size"))
        if isinstance(block, int) and block > 1:
            return block - 1
    return _DRAFTED


def _standin(drafter: DrafterFiles, scratch: Path) -> Path:
    """Write the config of a target of the drafter's sizes, for a drafter without one."""
    fields = {
        **SMALL_LLAMA,
        "hidden_size": drafter.target_hidden_size,
        "vocab_size": drafter.vocab_size,
        "num_hidden_layers": _STANDIN_LAYERS,
        "max_position_embeddings": drafter.size("max_position_embeddings", 2048),
    }
    (scratch / "config.json").write_text(dumps(fields))
    return scratch


def _answer(answer: Mapping[str, Any], engine: str, *, target_given: bool) -> EngineAnswer:
    refusals = answer["refusals"]
    of_files = answer["stage"] == "weights"
    certain = [
        found
        for found in refusals
        if found["certain"]
        and (target_given or of_files or found["place"].endswith(_NOT_REGISTERED))
    ]
    unknown = ""
    if refusals and not certain:
        first = refusals[0]
        unknown = f"{engine} stopped at {first['place']}: {first['reason']}"
        if first["certain"]:
            unknown += "; with --target it would be known whether the config is at fault"
    results = [_refused(found, answer, engine) for found in certain]
    loader = f"{engine}, load_weights of {answer['class']}" if answer.get("class") else engine
    if cut := answer["cut"]:
        results.append(
            error(
                id="wrong_shape",
                title="tensors have other shapes than the config says",
                expected="tensors that the engine takes whole",
                rule=f"{loader}: cuts them without an error",
                found=f"numbers that it takes: {some(_shares(cut))}",
                change="set the sizes in config.json to those that the weights were trained with",
            )
        )
    if lacking := answer["unfilled"]:
        more = f"numbers for {len(lacking)} more parameters; without them they stay random"
        results.append(
            error(
                id="missing_tensor",
                title="tensors are missing",
                expected=more,
                rule=loader,
                found="numbers of the engine's parameters that the files have: "
                f"{some(_shares(lacking))}",
                change="save the checkpoint again, whole",
            )
        )
    return EngineAnswer(
        engine=engine,
        results=tuple(results),
        parameters={name: tuple(shape) for name, shape in answer.get("parameters", {}).items()},
        unknown=unknown,
    )


def _refused(found: Mapping[str, Any], answer: Mapping[str, Any], engine: str) -> CheckResult:
    what = {
        "config": "config.json",
        "model": f"to build {answer.get('architecture')}",
        "weights": f"the tensor {found['tensor']}" if found["tensor"] else "the weights",
    }[answer["stage"]]
    return error(
        id="refused_by_engine",
        title=f"{engine.partition(' ')[0]} refuses {what}",
        expected="files that it loads",
        rule=f"{engine}, {found['place']}",
        found=found["reason"],
    )


def _shares(parts: Mapping[str, tuple[int, int]]) -> list[str]:
    return [f"{name} {taken} of {all_}" for name, (taken, all_) in parts.items()]
