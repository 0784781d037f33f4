"""`driftscope demo` before and around its engines; the engines have tests of their own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.command import Driftscope

from driftscope.cli.demo import PROMPTS
from driftscope.errors import DriftscopeError
from driftscope_lab.demo import BATCH, DRAFTERS, LABELS, requests
from driftscope_lab.demo.launch import Engine, run_drafters
from driftscope_lab.trio import trio_path


def test_without_an_engine_it_says_what_to_install(without_engines: Driftscope) -> None:
    done = without_engines("demo")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("driftscope: error: the demo needs torch: pip install")


def test_what_is_in_the_way_is_not_deleted(driftscope: Driftscope, tmp_path: Path) -> None:
    precious = tmp_path / "out" / "runs" / "eagle3" / "thesis.tex"
    precious.parent.mkdir(parents=True)
    precious.write_text("years")
    done = driftscope("demo", "-o", "out")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "is not a driftscope run; give -o another folder" in line
    assert precious.read_text() == "years"


def test_both_conditions_meet_the_same_traffic_in_turn() -> None:
    items = requests()
    assert Counter(item.label for item in items) == dict.fromkeys(LABELS.values(), 64)
    assert [item.label for item in items[:4]] == [*LABELS.values()] * 2
    assert BATCH % len(LABELS) == 0
    assert all(item.token_ids for item in items)
    assert requests(PROMPTS) == items, "all that are shipped, unless fewer are asked for"
    assert requests(3) == items[: 3 * len(LABELS)]


def test_every_drafter_of_the_demo_is_shipped() -> None:
    for folder in DRAFTERS.values():
        assert (trio_path() / folder / "model.safetensors").is_file()


def test_an_engine_that_fails_is_told_with_its_log(tmp_path: Path) -> None:
    engine = Engine(name="imaginary", reason="a test")
    with pytest.raises(DriftscopeError) as caught:
        run_drafters(engine, tmp_path, 1, lambda _: None)
    message = str(caught.value)
    assert "the eagle3" in message
    assert "engine ended with code 1" in message
    log = message.partition("its log is ")[2].partition(";")[0]
    assert Path(log).parent == tmp_path / "logs"
    assert "KeyError: 'imaginary'" in Path(log).read_text()
