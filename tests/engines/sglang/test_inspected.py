"""`driftscope inspect` asks a real SGLang whether it builds a drafter and loads its tensors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.checkpoints import changed
from support.sglang_process.job import ENVIRONMENT, VERSION, installed

from driftscope.inspect.checkpoints import open_drafter
from driftscope.inspect.checks.result import Inspected
from driftscope.inspect.engine_loading import SGLANG, EngineProcess
from driftscope_lab.trio import trio_path

O_PROJ = "midlayer.self_attn.o_proj.weight"
pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(not installed(), reason="`make sglang` builds SGLang's environment"),
    pytest.mark.nightly,
]


@pytest.fixture(scope="module")
def sglang() -> Iterator[EngineProcess]:
    command = (str(ENVIRONMENT / "bin/python"), "-m", SGLANG.module)
    with EngineProcess(SGLANG, command) as process:
        yield process


@pytest.mark.parametrize("name", ["eagle3", "eagle31"])
def test_a_shipped_drafter_is_loaded_whole(sglang: EngineProcess, name: str) -> None:
    answer = sglang.ask(Inspected(drafter=open_drafter(str(trio_path() / name))))
    assert (answer.engine, answer.unknown, answer.results) == (f"SGLang {VERSION}", "", ())
    assert "model.fc.weight" in answer.parameters


def test_a_lost_tensor_and_one_of_another_shape_are_named(
    sglang: EngineProcess, tmp_path: Path
) -> None:
    lost = changed(tmp_path / "lost", weights=lambda state: state.pop(O_PROJ))
    (error,) = sglang.ask(Inspected(drafter=open_drafter(str(lost)))).results
    assert error.id == "missing_tensor" and "o_proj" in error.there
    cut = changed(tmp_path / "cut", weights=lambda state: state.update({O_PROJ: torch.ones(8, 8)}))
    (error,) = sglang.ask(Inspected(drafter=open_drafter(str(cut)))).results
    assert error.id == "refused_by_engine" and O_PROJ in error.title
