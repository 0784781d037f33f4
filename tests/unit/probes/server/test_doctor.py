"""What `driftscope doctor` finds: with everything installed, in source files, and without."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.command import run_python

from driftscope_probes.server import doctor
from driftscope_probes.server.doctor_sglang import (
    algorithms,
    draft_classes,
    model_classes,
)
from driftscope_probes.sglang.plugin import HOOKS as SGLANG_HOOKS
from driftscope_probes.sglang.plugin import TESTED
from driftscope_probes.start_guard import HookPoint
from driftscope_probes.vllm.plugin import HOOKS

VLLM_SOURCES = {
    "model_executor.models.registry": """
_SPECULATIVE_DECODING_MODELS = {
    "LlamaForCausalLMEagle3": ("llama_eagle3", "Eagle3LlamaForCausalLM"),
    "StrangeEagle3": ("strange", "StrangeForCausalLM"),
    "Eagle3LlamaForCausalLM": ("llama_eagle3", "Eagle3LlamaForCausalLM"),
    "PeagleQwen3ForCausalLM": ("qwen3_eagle3", "Eagle3LlamaForCausalLM"),
    "DFlashDraftModel": ("qwen3_dflash", "DFlashQwen3ForCausalLM"),
    "Glm4MoeMTPModel": ("glm4_moe_mtp", "Glm4MoeMTP"),
    "MiMoMTPModel": ("mimo_mtp", "MiMoMTP"),
}
""",
    "engine.arg_utils": """
for name in ("--speculative-config", "-sc", "--spec-method", "--spec-model", "--spec-tokens"):
    parser.add_argument(name)
""",
}
SPECULATIVE_CONFIG = """
A_Types = Literal["mtp", "x_mtp"]
SpeculativeMethod = Literal["eagle3", "ngram", "suffix", A_Types]
RejectionSampleMethod = Literal["standard", "block"]
class SpeculativeConfig:
    num_speculative_tokens: int = 0
    model: str | None = None
    method: SpeculativeMethod | None = None
    rejection_sample_method: RejectionSampleMethod = "standard"
"""


def _engine(
    folder: Path, prefix: str, hooks: dict[str, tuple[HookPoint, ...]], sources: dict[str, str]
) -> Path:
    """Write source files with every hook, none of which may be imported."""
    texts, classes = dict(sources), dict[tuple[str, str], list[str]]()
    for hook in (hook for seam in hooks.values() for hook in seam):
        name, _, method = hook.name.partition(".")
        body = classes.setdefault((hook.module.removeprefix(prefix), name), ["    pass"])
        body.append(f"    def {method or 'f'}(self): ...")
    for (module, name), body in classes.items():
        if f"class {name}" not in texts.get(module, ""):
            text = "\n".join([f"class {name}:", *body])
            texts[module] = texts.get(module, "raise ImportError") + f"\n{text}\n"
    for module, text in texts.items():
        _write(folder, module, text)
    return folder


def _write(folder: Path, module: str, text: str) -> None:
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = _engine(tmp_path / "vllm", "vllm.", HOOKS, VLLM_SOURCES)
    monkeypatch.setattr(doctor, "package_folder", lambda _: folder)
    monkeypatch.setattr(doctor, "installed_version", lambda _: "0.32.0")
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    return folder


def _checks(
    model: object, options: Sequence[str] = (), engine: Any = doctor.VLLM
) -> dict[str, Any]:
    found = doctor.examine_server(engine or doctor.VLLM, str(model), list(options))
    return {check.topic: check for check in found}


def _verdict(checks: dict[str, Any], engine: Any = doctor.VLLM) -> str:
    answered = [check for topic, check in checks.items() if topic != "plugin"]
    return doctor.verdict(answered, engine).detail


def _answer(target: str = "some/model", **speculation: object) -> str:
    given = {"num_speculative_tokens": 3, **speculation}
    return _verdict(_checks(target, ["--speculative-config", json.dumps(given)]))


def _configured(folder: Path, config: dict[str, Any]) -> str:
    """Write the config of a model and return its folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


AGREES = "as far as the first recorded chain agrees"


@pytest.mark.parametrize(
    ("method", "architecture", "words"),
    [
        ("eagle3", "LlamaForCausalLMEagle3", ("vLLM 0.32.0, tested; ", "hooks hold", "attention")),
        ("eagle3", "StrangeEagle3", ("EAGLE-3 / 3.1 (StrangeForCausalLM): attention", AGREES)),
        ("extract_hidden_states", "", ("_states is of no known kind: its acceptance and timing",)),
        ("ngram", "", ("n-gram: acceptance and timing",)),
        ("deepseek_mtp", "", ("MTP: attention", AGREES)),
    ],
)
def test_whether_a_drafter_is_ready_to_be_recorded(
    vllm: Path, tmp_path: Path, method: str, architecture: str, words: tuple[str, ...]
) -> None:
    config = {"architectures": [architecture]}
    model = {"model": _configured(tmp_path / "drafter", config)} if architecture else {}
    answer = _answer(method=method, **model)
    assert all(word in answer for word in words)
    assert answer.startswith("ready")


def test_a_draft_model_is_any_model_with_the_vocabulary_of_its_target(
    vllm: Path, tmp_path: Path
) -> None:
    target, small, other = (
        _configured(tmp_path / name, {**LLAMA, **sizes})
        for name, sizes in (
            ("target", {"vocab_size": 128}),
            ("small", {"vocab_size": 128}),
            ("other", {"text_config": {"vocab_size": 100}}),
        )
    )
    answers = [
        _answer(target, method="draft_model", model=model, **more)
        for model, more in ((small, {}), (other, {}), (other, {"use_heterogeneous_vocab": True}))
    ]
    assert answers[0].startswith("ready") and "draft model (LlamaForCausalLM)" in answers[0]
    assert "a vocabulary of 100 tokens, the target of 128" in answers[1]
    assert answers[2].startswith("ready")


def test_a_drafter_whose_weights_are_a_pointer_is_not_ready(vllm: Path, tmp_path: Path) -> None:
    model = _configured(tmp_path / "drafter", {"architectures": ["LlamaForCausalLMEagle3"]})
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    Path(model, "model.safetensors").write_text(pointer)
    answer = _answer(method="eagle3", model=model)
    assert answer.startswith("not ready") and "a pointer of Git LFS" in answer


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("midlayer.hidden_norm", "fc"), "ready"),
        (("layers.0.hidden_norm", "fc"), "ready"),
        (("layers.0.mlp.up_proj", "fc"), "those of eagle, not of eagle3"),
        (("model.layers.0.mlp.up_proj", "lm_head"), "those of no EAGLE drafter"),
    ],
    ids=["EAGLE-3", "in speculators' names", "EAGLE-1", "PARD"],
)
def test_the_tensors_of_another_method_are_not_ready(
    vllm: Path, tmp_path: Path, names: tuple[str, ...], words: str
) -> None:
    model = _configured(tmp_path / "drafter", LLAMA)
    tensors = {f"{name}.weight": np.ones(2, np.float32) for name in names}
    save_file(tensors, Path(model, "model.safetensors"))
    answer = _answer(method="eagle3", model=model)
    assert words in answer and answer.startswith("ready") is (words == "ready")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--runner", "pooling"], "not ready because of target: a pooling model"),
        (["--decode-context-parallel-size", "2"], "ready, but a drafter of method ngram with"),
        (["-dcp=2"], "nothing inside it"),
        (["-dcp", "1", "--runner", "generate"], "ready: vLLM"),
    ],
)
def test_an_engine_that_generates_nothing_or_splits_a_context(
    vllm: Path, options: list[str], words: str
) -> None:
    given = {"method": "ngram", "num_speculative_tokens": 3}
    answer = _verdict(_checks("a/b", ["--speculative-config", json.dumps(given), *options]))
    assert words in answer


def test_a_drafter_that_is_not_here_is_not_examined(vllm: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "has no config.json" in _answer(method="eagle3", model=str(tmp_path))
    (tmp_path / "params.json").write_text("{}")  # as Mistral publishes models
    answers = [_answer(method="eagle3", model=model) for model in (str(tmp_path), "some/drafter")]
    assert all(
        answer.startswith("ready") and "its class is not examined" in answer for answer in answers
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "eagel3"}, "not ready because of drafter: vLLM has no method"),
        ({"method": "standard"}, "no method standard"),
        ({"method": "x_mtp"}, ""),
        ({"rejection_sample_method": "nonsense"}, "no rejection_sample_method nonsense"),
        ({"rejection_sample_methd": "block"}, "has no rejection_sample_methd"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0"),
        ({"num_speculative_tokens": float("nan")}, "num_speculative_tokens is nan"),
        ({"num_speculative_tokens": None}, "asks for num_speculative_tokens with method ngram"),
        ({"model": ["a"]}, "model is ['a']"),
        ({"model": "/nowhere"}, "/nowhere does not exist"),
        ({"model": "/dev/null"}, "/dev/null is no folder and no file"),
        ({"model": " "}, "model is ' '"),
        ({"method": "suffix"}, "suffix decoding needs Arctic Inference"),
        ({"num_speculative_tokens": "3", "rejection_sample_method": "block"}, ""),
    ],
)
def test_an_option_that_vllm_refuses_is_not_ready(
    vllm: Path, given: dict[str, object], words: str
) -> None:
    _write(vllm, "config.speculative", SPECULATIVE_CONFIG)
    answer = _answer(**{"method": "ngram", **given})
    assert words in answer and answer.startswith("not ready" if words else "ready")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--speculative-model", "[ngram]"], "vLLM has no option --speculative-model"),
        (["--speculative_algorithm=EAGLE3"], "vLLM has no option --speculative-algorithm"),
        (["--num-speculative-tokens", "5"], "vLLM has no option --num-speculative-tokens"),
        (["--spec-method", "ngram", "--spec-tokens", "5"], "n-gram: acceptance and timing"),
        (["--spec-model", "ngram"], "vLLM asks for num_speculative_tokens with method ngram"),
        (["--spec-model", "/nowhere"], "/nowhere does not exist"),
        (["--spec-model", "org/some"], "or else takes it for a draft model"),
        (["--config", "serve.yaml"], "as in the file of --config, which is not examined here"),
        (["--port", "1"], "the options name no drafter"),
    ],
)
def test_options_are_those_that_vllm_takes(vllm: Path, options: list[str], words: str) -> None:
    assert words in _checks("org/target", options)["drafter"].detail


@pytest.mark.parametrize(
    ("target", "words"), [("", "it has no name"), ("/dev/null", "/dev/null is no folder")]
)
def test_a_target_that_cannot_be_a_model_is_not_ready(vllm: Path, target: str, words: str) -> None:
    check = _checks(target)["target"]
    assert check.ok is False and check.detail.startswith(words)


SPECULATOR = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "transformer_layer_config": {"model_type": "llama"},
    "speculators_config": {
        "proposal_methods": [{"speculative_tokens": 3}],
        "verifier": {"name_or_path": "some/target"},
    },
}
PEAGLE = {
    **SPECULATOR,
    "speculators_model_type": "peagle",
    "transformer_layer_config": {"model_type": "qwen3"},
}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
GLM = {
    "architectures": ["Glm4MoeForCausalLM"],
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_nextn_predict_layers": 1,
}
MIMO_TARGET = {**GLM, "architectures": ["MiMoForCausalLM"]}


@pytest.mark.parametrize(
    ("config", "method", "words"),
    [
        (SPECULATOR, "eagle3", "ready: "),
        ({**SPECULATOR, "architectures": ["Eagle3DraftModel"]}, "eagle3", "ready: "),
        (LLAMA, "eagle3", "ready: "),
        ({"speculators_model_type": "dflash2"}, "dflash", "DFlash2DraftModel, which it does not"),
        ({**SPECULATOR, "speculators_model_type": "new"}, "eagle3", "vLLM has no class for it"),
        ({"architectures": ["GptOssForCausalLM"]}, "eagle3", "looks up Eagle3GptOssForCausalLM"),
        (GLM, "mtp", "lacks MTP heads that its config names: 1 heads, and it has 0"),
        (MIMO_TARGET, "mtp", "lacks MTP heads that its config names"),
        (LLAMA, "mtp", "LlamaForCausalLM with method mtp"),
        ({"architectures": ["DeepseekV4ForCausalLM"]}, "mtp", "looks up DeepSeekV4MTPModel"),
    ],
)
def test_a_drafters_config_is_read_as_the_engine_reads_it(
    vllm: Path, tmp_path: Path, config: dict[str, Any], method: str, words: str
) -> None:
    folder = _configured(tmp_path / "drafter", config)
    name = "midlayer.hidden_norm.weight" if method == "eagle3" else "model.norm.weight"
    weights = {name: np.ones(8, np.float32)}
    save_file(weights, tmp_path / "drafter" / "model.safetensors")
    answer = _answer(method=method, model=folder)
    assert words in answer and answer.startswith("ready" if words == "ready: " else "not ready")


@pytest.mark.parametrize(
    ("config", "kind"),
    [(SPECULATOR, "EAGLE-3 / 3.1"), (PEAGLE, "P-EAGLE")],
    ids=["eagle3", "peagle"],
)
def test_a_speculator_is_served_alone_with_the_target_that_it_names(
    vllm: Path, tmp_path: Path, config: dict[str, Any], kind: str
) -> None:
    checks = _checks(_configured(tmp_path, config))
    assert checks["target"].detail.startswith("some/target ")
    assert checks["drafter"].ok and checks["drafter"].detail.startswith(f"{kind} (")


def test_a_vllm_without_a_hook_is_not_ready(vllm: Path) -> None:
    path = vllm / "v1" / "core" / "sched" / "scheduler.py"
    path.write_text(path.read_text().replace("update_from_output", "other"))
    answer = _answer(method="ngram")
    assert "not ready because of hooks: vLLM has no vllm.v1.core.sched.scheduler" in answer
    assert "Scheduler.update_from_output" in answer


@pytest.mark.parametrize(
    ("name", "held"),
    [("A.anything", True), ("f", True), ("C.x", True), ("C", True), ("C.y", False), ("g", False)],
)
def test_a_method_may_be_inherited_and_a_function_stand_alone(
    tmp_path: Path, name: str, held: bool
) -> None:
    _write(tmp_path, "a", "class A(B):\n    pass\ndef f(): ...\nclass C:\n    x: int = 1\n")
    assert doctor.is_in_source(HookPoint(module="vllm.a", name=name, purpose=""), tmp_path) is held


@pytest.mark.parametrize("text", ["", "def broken(:", "_SPECULATIVE_DECODING_MODELS = other()"])
def test_a_registry_of_another_form_has_no_classes(tmp_path: Path, text: str) -> None:
    _write(tmp_path, "model_executor.models.registry", text)
    assert doctor.drafter_classes(tmp_path) == {}


@pytest.mark.parametrize(("version", "ok"), [(TESTED[0], True), ("0.5.14", False)])
def test_only_tested_versions_are_ready(
    monkeypatch: pytest.MonkeyPatch, version: str, ok: bool
) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda _: version)
    check = doctor.version_check(doctor.SGLANG)
    assert check.ok is ok and version in check.detail
    answer = doctor.verdict([check], doctor.SGLANG)
    assert answer.ok is ok and answer.detail.startswith("ready" if ok else "not ready")


def test_a_seam_that_moved_is_named() -> None:
    hooks = (
        HookPoint(module="json", name="dumps", purpose="one that is there"),
        HookPoint(module="json", name="JSONEncoder.moved", purpose="one that is not"),
    )
    there, gone = doctor.hook_checks("worker", hooks, doctor.SGLANG)
    assert there.ok and there.detail == "dumps: works (one that is there)"
    assert gone.ok is False and "JSONEncoder.moved: not found" in gone.detail
    assert doctor.SGLANG.name in (gone.hint or "")


def test_without_sglang_it_says_where_to_install_the_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    checks = {check.topic: check for check in doctor.examine(doctor.SGLANG)}
    check = checks[doctor.SGLANG.name]
    assert check.ok is False and "driftscope-probe" in (check.hint or "")


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    return run_python("-m", "driftscope", "doctor", "--json", timeout_s=180)


@pytest.fixture(scope="module")
def checks(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.process
def test_json_has_what_the_report_of_a_bug_needs(
    done: subprocess.CompletedProcess[str], checks: list[dict[str, Any]]
) -> None:
    """The exit code says whether a live vLLM can be recorded."""
    for check in checks:
        assert set(check) == {"topic", "ok", "detail", "hint", "unknown"}
        assert check["ok"] in (True, False, None)
    topics = {check["topic"] for check in checks}
    assert topics >= {"Python", "driftscope", "torch", "vLLM", "plugin", "settings"}
    assert topics >= {"device", "runner", "attention backends", "recorded"}
    problems = [check for check in checks if check["ok"] is False]
    assert done.returncode == (1 if problems else 0), problems


@pytest.mark.process
@pytest.mark.parametrize("seam", HOOKS)
def test_every_hook_holds_in_the_installed_vllm(checks: list[dict[str, Any]], seam: str) -> None:
    found = [check for check in checks if check["topic"] == f"hook {seam}"]
    assert len(found) == len(HOOKS[seam])
    for check in found:
        # Without Triton V2 is not needed, and not judged.
        assert check["ok"] is True or (seam == "v2" and check["ok"] is None), check["detail"]


@pytest.fixture
def problems(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Return the details of the checks by topic, of problems and of facts, with these variables."""

    def found(ok: bool | None = False, **environ: str) -> dict[str, str]:
        for name in [name for name in os.environ if name.startswith("DRIFTSCOPE_")]:
            monkeypatch.delenv(name)
        for name, value in environ.items():
            monkeypatch.setenv(f"DRIFTSCOPE_{name}", value)
        return {check.topic: check.detail for check in doctor.start_checks() if check.ok is ok}

    return found


def test_settings_in_force_are_named(problems: Callable[..., dict[str, str]]) -> None:
    assert "off" in problems(None)["settings"]
    every = problems(None, TRACE="/runs/a", EVERY="16")
    assert every["settings"] == "recording every 16. draft step to /runs/a"
    governed = "recording draft steps within 1 % of the time per token to /runs/a"
    assert problems(None, TRACE="/runs/a")["settings"] == governed
    assert "DRIFTSCOPE_EVERY='often'" in problems(TRACE="/runs/a", EVERY="often")["settings"]


def test_what_would_keep_a_start_from_recording(
    problems: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    run = str(tmp_path / "run")
    assert "did you mean DRIFTSCOPE_EVERY?" in problems(TRACE=run, EVRY="4")["settings"]
    (tmp_path / "file").touch()
    below = problems(TRACE=str(tmp_path / "file" / "run"))
    assert "cannot write a trace there" in below["run directory"]
    used = tmp_path / "used"
    used.mkdir()
    (used / "manifest.json").write_text("{}")
    assert "already holds a run" in problems(TRACE=str(used))["run directory"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert "Address already in use" in problems(TRACE=run, PROMETHEUS=port)["Prometheus"]
    assert "settings" not in problems(DISABLE="banana", EVERY="often")
    assert not (tmp_path / "run").exists(), "nothing is left behind"


def test_a_package_that_does_not_import(
    problems: Callable[..., dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrapt.py").write_text("raise RuntimeError('no such symbol')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wrapt")
    assert "RuntimeError: no such symbol" in problems()["wrapt"]


def test_a_plugin_that_an_engine_is_told_to_leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ("an entry point",))
    for engine in (doctor.VLLM, doctor.SGLANG):
        monkeypatch.setenv(engine.allowed, "another")
        plugin = doctor.plugin_check(engine)
        assert plugin.ok is False and plugin.hint == f"add driftscope to {engine.allowed}"
        assert f"{engine.allowed}=another" in plugin.detail


INSTALLED = Path(__file__).parents[4] / ".venv/sglang-0.5.23/lib/python3.11/site-packages/sglang"
SGLANG_SOURCES = {
    "speculative.spec_info": "class SpeculativeAlgorithm(Enum):\n"
    "    EAGLE = auto()\n    EAGLE3 = auto()\n    DFLASH = auto()\n    NGRAM = auto()\n",
    "speculative.spec_registry": '_RESERVED_ALIASES = frozenset({"NEXTN"})\n',
    "models.llama_eagle3": "EntryClass = [\n    LlamaForCausalLMEagle3,\n]\n",
    "models.mimo_mtp": "EntryClass = MiMoMTP\n",
    "models.other": "EntryClass = [OtherNextN, DFlashDraftModel, LlamaForCausalLM]\n",
    "configs.model_config": """
class ModelConfig:
    def _config_draft_model(self):
        if is_draft and self.hf_config.architectures[0] in ["MiMoForCausalLM", "MiMo9ForCausalLM"]:
            self.hf_config.architectures[0] = "MiMoMTP"
        if self.hf_config.architectures[0] == "OtherForCausalLM":
            self.hf_config.architectures[0] = "OtherNextN"
            self.hf_config.num_nextn_predict_layers = 1
""",
}


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "sglang"
    _engine(folder / "srt", "sglang.srt.", SGLANG_HOOKS, SGLANG_SOURCES)
    monkeypatch.setattr(doctor, "package_folder", lambda _: folder)
    monkeypatch.setattr(doctor, "installed_version", lambda _: "0.5.23")
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
    path = _configured(tmp_path, {"architectures": [architecture]})
    options = ["--speculative-algorithm", algorithm]
    options += [f"--speculative-draft-model-path={path}"] if architecture else []
    answer = _verdict(_checks("some/model", options, doctor.SGLANG), doctor.SGLANG)
    assert words in answer
    assert answer.startswith("ready") == ("recorded" in words and "no worker" not in words)


def test_a_tree_and_a_server_without_a_drafter_are_recorded_without_the_inside(
    sglang: Path, tmp_path: Path
) -> None:
    path = _configured(tmp_path, {"architectures": ["MiMoForCausalLM"]})
    options = ["--speculative-algorithm", "EAGLE", "--speculative-eagle-topk", "4"]
    drafter = _checks(path, options, doctor.SGLANG)["drafter"]
    assert drafter.ok and "trees are not looked into" in drafter.detail
    drafter = _checks(path, engine=doctor.SGLANG)["drafter"]
    assert drafter.ok and drafter.detail.startswith("no drafter")


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
