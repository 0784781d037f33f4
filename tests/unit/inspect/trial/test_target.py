"""A target is loaded without running a line of Python that lies in its folder."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from driftscope.errors import CheckpointError
from driftscope.inspect.trial.target import Teacher
from driftscope_lab.trio import trio_path

_MODULE = """open({ran!r}, "w")
from transformers import LlamaConfig, LlamaForCausalLM, LlamaTokenizerFast
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
class OwnTokenizer(LlamaTokenizerFast):
    pass
def generate(*_, **__):
    pass
"""
_MODEL = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
_TOKENIZER = {"AutoTokenizer": ["own.OwnTokenizer", "own.OwnTokenizer"]}


@pytest.mark.parametrize(
    ("file", "fields", "module", "loads"),
    [
        ("config.json", {"model_type": "own", "auto_map": _MODEL}, "own.py", False),
        ("config.json", {"auto_map": _MODEL}, "own.py", True),
        ("tokenizer_config.json", {"auto_map": _TOKENIZER, "tokenizer_class": "Own"}, "own.py", 0),
        ("config.json", {}, "custom_generate/generate.py", True),
    ],
    ids=["unknown model", "known model", "tokenizer", "custom generate"],
)
def test_code_of_a_checkpoint_never_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
    fields: dict[str, Any],
    module: str,
    loads: bool,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 8))
    folder, ran = Path(shutil.copytree(trio_path() / "target", tmp_path / "own")), tmp_path / "ran"
    (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **fields}))
    (folder / module).parent.mkdir(exist_ok=True)
    (folder / module).write_text(_MODULE.format(ran=str(ran)))
    if loads:
        Teacher(folder)
    else:
        with pytest.raises(CheckpointError, match="code of its own, which driftscope never runs"):
            Teacher(folder)
    assert not ran.exists() and not capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("generation_config.json", "eos_token_id", 10**400),
        ("generation_config.json", "bos_token_id", "x" * 5000),
        ("tokenizer_config.json", "bos_token", "x" * 5000),
    ],
)
def test_settings_that_load_and_do_not_run_are_one_error(
    tmp_path: Path, file: str, name: str, value: object
) -> None:
    folder = Path(shutil.copytree(trio_path() / "target", tmp_path / "own"))
    (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), name: value}))
    teacher = Teacher(folder)
    prompt = teacher.encode([{"role": "user", "content": "the river"}])
    with pytest.raises(CheckpointError, match="transformers cannot run this target"):
        list(teacher.passages({"a": prompt}, {1}))
