"""An ablation that is interrupted keeps what it measured, and ends as if it had not been."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import TARGET
from typer.testing import CliRunner, Result

from driftscope.ablate.run import PromptMeter
from driftscope.cli import run_reports
from driftscope.cli.app import app
from driftscope.errors import UsageError
from driftscope.inspect.trial.target import BATCH
from driftscope_lab.trio import trio_path

pytestmark = pytest.mark.slow

PROMPTS, STOPPED = BATCH + 4, BATCH + 2
SOME = ("--prompts", "trio", "--k", "3", "--most-prompts", str(PROMPTS), "--positions", "4")


def _ablate(*options: str) -> Result:
    drafter = str(trio_path() / "eagle3")
    named = ("--interventions", "hide-sink,served-dtype", *options)
    return CliRunner().invoke(app, ["ablate", drafter, "--target", str(TARGET), *SOME, *named])


def _stopping(prompts: Sequence[Any], _what: str) -> Iterator[Any]:
    """A bar during which somebody presses Ctrl-C."""
    yield from prompts[:STOPPED]
    raise KeyboardInterrupt


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the output of an ablation that was interrupted."""
    output = tmp_path / "why"
    with monkeypatch.context() as patch:
        patch.setattr(run_reports, "steps", _stopping)
        done = _ablate("-o", str(output))
    assert done.exit_code == 130
    assert f"{output}.work keeps what is measured" in done.stderr
    return output


def test_it_goes_on_and_gives_the_same_result(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    whole = PromptMeter.measured

    def counted(self: PromptMeter, passage: Any, writing: Any) -> Any:
        measured.append(passage.key)
        return whole(self, passage, writing)

    monkeypatch.setattr(PromptMeter, "measured", counted)
    done = _ablate("-o", str(stopped))
    assert done.exit_code == 0, done.output
    assert len(measured) == PROMPTS - STOPPED
    assert not stopped.with_name("why.work").exists()
    assert sorted(path.name for path in stopped.iterdir()) == ["ablation.json", "manifest.json"]
    assert (stopped / "ablation.json").read_text() == _ablate("--json").stdout


def test_another_request_is_refused(stopped: Path) -> None:
    done = _ablate("-o", str(stopped), "--positions", "5")
    assert isinstance(done.exception, UsageError)
    assert "another --positions" in str(done.exception)
    assert stopped.with_name("why.work").exists()


def test_without_an_output_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_reports, "steps", _stopping)
    done = _ablate()
    assert done.exit_code == 130
    assert "nothing is kept: name an --output" in done.stderr


def test_a_recorded_run_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"mode": "eager"}))
    done = _ablate("-o", str(tmp_path))
    assert isinstance(done.exception, UsageError)
    assert "holds a run of a server" in str(done.exception)
    (tmp_path / "file").write_text("mine")
    done = _ablate("-o", str(tmp_path / "file"))
    assert isinstance(done.exception, UsageError) and "is a file" in str(done.exception)
    assert (tmp_path / "file").read_text() == "mine"
