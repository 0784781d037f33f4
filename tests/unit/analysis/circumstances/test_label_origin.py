"""Labels of replayed suites are not compared with the traffic's."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.simulate import Prompts, Truth, simulate

from driftscope.analysis.circumstances import TRAFFIC, origin_of, origins
from driftscope.pipeline import Inputs, analyze


@pytest.mark.parametrize(
    ("label", "origin"),
    [
        ("chat", TRAFFIC),
        ("replay", TRAFFIC),
        ("replay/alone", TRAFFIC),
        ("my/replay/x", TRAFFIC),
        ("replay/template/no BOS", "replay/template/"),
        ("replay/template/a/b", "replay/template/"),
    ],
)
def test_the_origin_of_a_label(label: str, origin: str) -> None:
    assert origin_of(label) == origin


def test_a_request_of_a_suite_names_the_suite() -> None:
    label_of = pytest.importorskip("driftscope.workloads.client.replay").label_of
    assert label_of("template", "no BOS") == "replay/template/no BOS"
    assert origin_of(label_of("my/own", "as asked")) == "replay/my-own/"
    assert len(label_of("s" * 300, "c")) == 256
    assert origins(["b", "replay/a/x", "c", "replay/a/y"]) == (TRAFFIC, "replay/a/")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "compared"),
    [
        (("code", "prose"), True),
        (("replay/template/regular", "replay/template/no BOS"), True),
        (("code", "replay/template/no BOS"), False),
        (("replay/template/regular", "replay/agent/tools"), False),
    ],
)
def test_only_labels_of_one_origin_are_compared(
    tmp_path: Path, labels: tuple[str, str], compared: bool
) -> None:
    """Half of the requests accept far less, under another label: known truth."""
    best, worst = labels
    truth = Truth(
        requests=80,
        rounds=20,
        prompts=(Prompts(label=best, share=0.5), Prompts(label=worst, share=0.5, shift=-1.5)),
    )
    run = simulate(tmp_path / "run", truth)
    found = {each.id for each in analyze(Inputs(sources=[run], labels=["run"])).findings}
    assert ("template_sensitivity" in found) is compared
