"""What cannot be recorded stops the engine's start with one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_engine.job import Job, run_job

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize(
    ("llm", "words"),
    [
        ({"speculative_config": None}, "this engine does not speculate"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4,
                                    "prompt_lookup_max": 3}},
            "speculation method 'ngram' is not supported",
        ),
    ],
)  # fmt: skip
def test_an_engine_without_a_supported_drafter(
    tmp_path: Path, llm: dict[str, object], words: str
) -> None:
    job = Job(drafter="eagle31", probe={"EVERY": "1"}, llm=llm)
    with pytest.raises(RuntimeError, match="engine ended"):
        run_job(job, tmp_path)
    log = (tmp_path / "log.txt").read_text(errors="replace")
    assert f"ProbeError: {words}" in log or words in log


def test_a_setting_that_is_no_number(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="engine ended"):
        run_job(Job(drafter="eagle31", probe={"EVERY": "often"}), tmp_path)
    log = (tmp_path / "log.txt").read_text(errors="replace")
    assert "DRIFTSCOPE_EVERY='often': give a whole number from 1" in log


def test_a_directory_that_already_holds_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "manifest.json").write_text("{}")
    with pytest.raises(RuntimeError, match="engine ended"):
        run_job(Job(drafter="eagle31", probe={"EVERY": "1"}), tmp_path)
    log = (tmp_path / "log.txt").read_text(errors="replace")
    assert "already holds a run" in log
