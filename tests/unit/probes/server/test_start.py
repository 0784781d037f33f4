"""The drafter's name in the name of a run directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftscope_probes.server.start import drafter_name, with_drafter


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (
            ["--speculative-config", '{"method": "eagle3", "model": "org/E3-LLaMA"}'],
            "E3-LLaMA",
        ),
        (['--speculative-config={"model": "/models/a b/"}'], "a-b"),
        (["-sc", '{"method": "ngram"}'], "ngram"),
        (["--speculative_config", '{"model": "d"}'], "d"),
        (["--speculative-config.model", "org/d", "--port", "1"], "d"),
        (["--speculative-config", "no JSON"], "drafter"),
        (["--speculative-config"], "drafter"),
        (["--config", "serve.yaml"], "drafter"),
        (["-sc", '{"model": "../../.."}'], "drafter"),
        (["-sc", '{"model": "' + "x" * 300 + '"}'], "x" * 40),
    ],
)
def test_the_last_part_of_the_drafter_s_path(options: list[str], name: str) -> None:
    assert drafter_name(options) == name
    assert with_drafter(Path("runs/{time}-{drafter}"), options) == Path(f"runs/{{time}}-{name}")
