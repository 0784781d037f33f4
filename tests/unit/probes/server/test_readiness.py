"""Whether a server could be recorded, read from vLLM's source files without an import."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from driftscope_probes.engine import HookPoint
from driftscope_probes.server import doctor
from driftscope_probes.server.doctor import (
    Check,
    drafter_classes,
    examine_server,
    is_in_source,
    verdict,
)
from driftscope_probes.vllm.support import HOOKS

REGISTRY = """
_SPECULATIVE_DECODING_MODELS = {
    "LlamaForCausalLMEagle3": ("llama_eagle3", "Eagle3LlamaForCausalLM"),
    "Strange": ("strange", "StrangeForCausalLM"),
}
"""


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Source files with every hook, none of which may be imported."""
    folder = tmp_path / "vllm"
    _write(folder, "vllm.model_executor.models.registry", REGISTRY)
    classes: dict[tuple[str, str], set[str]] = {}
    for hook in (hook for hooks in HOOKS.values() for hook in hooks):
        first, _, rest = hook.name.partition(".")
        classes.setdefault((hook.module, first), set()).update([rest] if rest else [])
    for (module, name), methods in classes.items():
        body = [f"    def {method}(self): ..." for method in sorted(methods)] or ["    pass"]
        text = "\n".join([f"class {name}:", *body])
        _write(folder, module, f"raise ImportError\n{text}\n")
    monkeypatch.setattr(doctor, "vllm_folder", lambda: folder)
    monkeypatch.setattr(doctor, "_version", lambda _: "0.32.0")
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    return folder


def _write(folder: Path, module: str, text: str) -> None:
    path = folder.joinpath(*module.split(".")[1:]).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def _drafter(folder: Path, architecture: str) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    return str(folder)


def _checks(**speculation: object) -> list[Check]:
    return list(examine_server("some/model", ["--speculative-config", json.dumps(speculation)]))


def _answer(**speculation: object) -> str:
    return verdict([each for each in _checks(**speculation) if each.topic != "plugin"]).detail


def test_a_supported_drafter_is_ready(vllm: Path, tmp_path: Path) -> None:
    model = _drafter(tmp_path / "drafter", "LlamaForCausalLMEagle3")
    answer = _answer(method="eagle3", model=model)
    assert answer.startswith("ready: vLLM 0.32.0, tested; ")
    assert "hooks hold" in answer and "EAGLE-3 / 3.1 is recorded: masses" in answer


def test_a_drafter_of_another_class_is_not(vllm: Path, tmp_path: Path) -> None:
    model = _drafter(tmp_path / "drafter", "Strange")
    answer = _answer(method="eagle3", model=model)
    assert answer == (
        "not ready because of drafter: StrangeForCausalLM with method eagle3 is not supported"
    )


def test_a_method_that_is_not_recorded(vllm: Path) -> None:
    assert "not ready because of drafter: method eagle9" in _answer(method="eagle9", model="x")


def test_a_method_without_a_model_is_recorded_by_counts(vllm: Path) -> None:
    assert "n-gram is recorded: acceptance, timing" in _answer(method="ngram")


def test_a_drafter_on_another_machine_is_checked_later(vllm: Path) -> None:
    answer = _answer(method="deepseek_mtp")
    assert (
        answer.startswith("ready: ") and "the class is checked when the server loads it" in answer
    )


def test_without_a_drafter_there_is_nothing_to_record(vllm: Path) -> None:
    checks = [each for each in examine_server("m", []) if each.topic != "plugin"]
    assert verdict(checks).detail == ("not ready because of drafter: the options name no drafter")


def test_a_vllm_without_a_hook_is_not_ready(vllm: Path) -> None:
    path = vllm / "v1" / "core" / "sched" / "scheduler.py"
    path.write_text(path.read_text().replace("update_from_output", "other"))
    answer = _answer(method="ngram")
    assert "not ready because of hooks: vLLM has no vllm.v1.core.sched.scheduler" in answer
    assert "Scheduler.update_from_output" in answer


def test_a_method_may_be_inherited_and_a_function_stand_alone(tmp_path: Path) -> None:
    _write(tmp_path, "vllm.a", "class A(B):\n    pass\ndef f(): ...\nclass C:\n    x: int = 1\n")

    def held(name: str) -> bool:
        return is_in_source(HookPoint(module="vllm.a", name=name, purpose=""), tmp_path)

    assert held("A.anything") and held("f") and held("C.x") and held("C")
    assert not held("C.y") and not held("g")


@pytest.mark.parametrize("text", ["", "def broken(:", "_SPECULATIVE_DECODING_MODELS = other()"])
def test_a_registry_of_another_form_has_no_classes(tmp_path: Path, text: str) -> None:
    _write(tmp_path, "vllm.model_executor.models.registry", text)
    assert drafter_classes(tmp_path) == {}
