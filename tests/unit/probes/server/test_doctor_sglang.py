"""Whether an SGLang server can be recorded, from a small copy of how SGLang's source is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from driftscope_probes.server import doctor_sglang
from driftscope_probes.server.doctor import SGLANG, verdict
from driftscope_probes.server.doctor_sglang import (
    algorithms,
    draft_classes,
    examine_sglang_server,
    model_classes,
)
from driftscope_probes.sglang.plugin import HOOKS

INSTALLED = Path(__file__).parents[4] / ".venv/sglang-0.5.23/lib/python3.11/site-packages/sglang"
SOURCES = {
    "speculative/spec_info": "class SpeculativeAlgorithm(Enum):\n"
    "    EAGLE = auto()\n    EAGLE3 = auto()\n    DFLASH = auto()\n    NGRAM = auto()\n",
    "speculative/spec_registry": '_RESERVED_ALIASES = frozenset({"NEXTN"})\n',
    "models/llama_eagle3": "class LlamaForCausalLMEagle3: ...\n"
    "EntryClass = [\n    LlamaForCausalLMEagle3,\n]\n",
    "models/llama_eagle": "class LlamaForCausalLMEagle: ...\nEntryClass = LlamaForCausalLMEagle\n",
    "models/mimo_mtp": "class MiMoMTP: ...\nEntryClass = MiMoMTP\n",
    "models/other": "EntryClass = [OtherNextN, DFlashDraftModel, LlamaForCausalLM]\n",
    "configs/model_config": "class ModelConfig:\n"
    "    def _config_draft_model(self):\n"
    "        if is_draft and self.hf_config.architectures[0] in ["
    '"MiMoForCausalLM", "MiMo9ForCausalLM"]:\n'
    '            self.hf_config.architectures[0] = "MiMoMTP"\n'
    '        if self.hf_config.architectures[0] == "OtherForCausalLM":\n'
    '            self.hf_config.architectures[0] = "OtherNextN"\n'
    "            self.hf_config.num_nextn_predict_layers = 1\n",
}


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "sglang"
    sources = dict(SOURCES)
    for hook in (hook for hooks in HOOKS.values() for hook in hooks):
        module = "/".join(hook.module.split(".")[2:])
        name, _, method = hook.name.partition(".")
        body = f"    def {method}(self): ..." if method else "    pass"
        if f"class {name}" not in sources.get(module, ""):
            sources[module] = sources.get(module, "") + f"class {name}(Base):\n{body}\n"
    for module, text in sources.items():
        path = folder / "srt" / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(doctor_sglang, "package_folder", lambda _: folder)
    monkeypatch.setattr(doctor_sglang, "installed_version", lambda _: "0.5.23")
    return folder


@pytest.mark.parametrize(
    ("algorithm", "architecture", "words"),
    [
        ("EAGLE3", "LlamaForCausalLMEagle3", "LlamaForCausalLMEagle3 is recorded: acceptance"),
        ("NEXTN", "MiMo9ForCausalLM", "MiMoMTP is recorded"),
        ("EAGLE", "OtherForCausalLM", "OtherNextN is recorded"),
        ("NGRAM", "", "inside not recorded: NGRAM drafts without a model"),
        ("DFLASH", "DFlashDraftModel", "not ready because of drafter: the probe hooks no worker"),
        ("EAGEL", "MiMoForCausalLM", "SGLang has no speculative algorithm EAGEL"),
        ("EAGLE3", "LlamaForCausalLM", "LlamaForCausalLM as it is named, which is no drafter's"),
        ("EAGLE", "Strange", "SGLang looks up Strange for Strange, which it does not register"),
    ],
)
def test_a_drafter_is_read_as_sglang_reads_it(
    sglang: Path, tmp_path: Path, algorithm: str, architecture: str, words: str
) -> None:
    config = {"architectures": [architecture]} if architecture else {}
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = ["--speculative-algorithm", algorithm]
    options += [f"--speculative-draft-model-path={tmp_path}"] if architecture else []
    checks = examine_sglang_server("some/model", options)
    answer = verdict([check for check in checks if check.topic != "plugin"], SGLANG).detail
    assert words in answer
    assert answer.startswith("ready") == ("recorded" in words and "no worker" not in words)


def test_a_tree_and_a_server_without_a_drafter_are_recorded_without_the_inside(
    sglang: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["MiMoForCausalLM"]}))
    options = ["--speculative-algorithm", "EAGLE", "--speculative-eagle-topk", "4"]
    *_, drafter = examine_sglang_server(str(tmp_path), options)
    assert drafter.ok and "trees are not looked into" in drafter.detail
    *_, drafter = examine_sglang_server(str(tmp_path), [])
    assert drafter.ok and drafter.detail.startswith("no drafter")


def test_a_hook_that_moved_is_named(sglang: Path) -> None:
    (sglang / "srt" / "managers" / "scheduler.py").write_text("")
    checks = {check.topic: check for check in examine_sglang_server("some/model", [])}
    assert checks["hooks"].ok is False and "Scheduler.send_abort_output" in checks["hooks"].detail


def test_the_registries_are_read_from_source(sglang: Path) -> None:
    assert {"LlamaForCausalLMEagle3", "OtherNextN", "MiMoMTP"} <= model_classes(sglang)
    assert algorithms(sglang) == {"EAGLE", "EAGLE3", "DFLASH", "NGRAM", "NEXTN"}
    assert draft_classes(sglang)["MiMo9ForCausalLM"] == "MiMoMTP"


@pytest.mark.skipif(not INSTALLED.is_dir(), reason="SGLang is not installed in .venv/sglang-*")
def test_the_installed_sglang_is_read_as_it_is_written() -> None:
    registered, drafts = model_classes(INSTALLED), draft_classes(INSTALLED)
    assert {"EAGLE", "EAGLE3", "NEXTN", "DFLASH", "NGRAM"} <= algorithms(INSTALLED)
    assert {
        "LlamaForCausalLMEagle3",
        "MiMoMTP",
        "DFlashDraftModel",
        "Gemma4AssistantForCausalLM",
    } <= registered
    assert len(drafts) > 30 and set(drafts.values()) <= registered
    assert drafts["DeepseekV3ForCausalLM"] == "DeepseekV3ForCausalLMNextN"
    assert drafts["MiMoV2FlashForCausalLM"] == "MiMoV2MTP"
