"""Every command on every kind of run, with warnings as errors: no traceback, no warning, and JSON
that a strict parser reads.

In this process, since each command in its own would take an hour; `test_under_python_w_error` runs
the commands themselves under `python -W error`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import jsonschema
import pytest
from support.command import assert_fails, run_command
from support.odd_runs import ODD, RECORDED, ROOT

from driftscope.errors import EXIT_ERROR, EXIT_GATE_FAILED, EXIT_NO_DATA, EXIT_OK, EXIT_USAGE

pytestmark = pytest.mark.slow

ABSURD = re.compile(r"(?<![\w-])-?(nan|inf)(?![\w-])|\d{5,}(\.\d+)?%", re.IGNORECASE)
"""Text that no figure may look like; OpenMetrics may say +Inf, its word for a last bucket."""
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
)
PLAIN = ROOT / "reports" / "gallery" / "traces" / "without"
Commands = Callable[[Path, Path, Path], list[list[object]]]


def _reports(run: Path, usual: Path, out: Path) -> list[list[object]]:
    """`usual` is a run without anything odd."""
    options = ("--baseline", PLAIN, "--by", "context", "-o", out / "r.html", "--json")
    return [["analyze", run, usual, *options]]


def _comparisons(run: Path, usual: Path, out: Path) -> list[list[object]]:
    return [
        ["compare", usual, run],
        ["advise", run, usual, "--baseline", PLAIN, "--json"],
    ]


def _gates(run: Path, usual: Path, out: Path) -> list[list[object]]:
    worse = "acceptance.mean_length < 0.9 * baseline.acceptance.mean_length"
    rules = [word for rule in ("high", worse, "runs_part") for word in ("--fail-on", rule)]
    return [["check", run, "--baseline", usual, *rules, "--json"]]


def _looks(run: Path, usual: Path, out: Path) -> list[list[object]]:
    return [
        ["watch", run, "--once"],
        ["export", run, "--format", "speculation-profile", "-o", out / "profile.json"],
        ["probe", "status", run, "--json"],
    ]


def _other_outputs(run: Path, usual: Path, out: Path) -> list[list[object]]:
    """Other outputs of what the commands above compute of the same runs."""
    return [
        ["analyze", run, "--baseline", PLAIN, "--format", "markdown", "-o", out / "r.md"],
        ["compare", run, run, "--json"],
        ["compare", run, PLAIN, "--json"],
        ["advise", run],
    ]


COMMANDS: dict[str, Commands] = {
    "analyze": _reports,
    "compare": _comparisons,
    "check": _gates,
    "watch": _looks,
    "others": _other_outputs,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Recorded runs where they lie, simulated ones once each."""
    folder = tmp_path_factory.mktemp("runs")

    def path_of(name: str) -> Path:
        if name in RECORDED:
            return ROOT / name
        run = folder / name
        return run if run.exists() else ODD[name](run)

    return path_of


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


IN_MAKE_SAME = [name for name in RECORDED if not name.endswith(("drifting", "run-killed"))]
"""Recorded runs whose answers `make same` compares."""


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.nightly] * (kind == "others")) for kind in COMMANDS],
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] * (name in IN_MAKE_SAME))
        for name in (*RECORDED, *ODD)
    ],
)
def test_every_command_ends_as_it_should(
    runs: Callable[[str], Path], tmp_path: Path, name: str, kind: str
) -> None:
    run, usual = runs(name), runs("usual")
    expected = {EXIT_OK, EXIT_NO_DATA}
    if kind == "check":
        expected |= {EXIT_GATE_FAILED}
    if name.startswith("replay") or name.endswith("without"):
        # a rule about acceptance, a probe's run beside it, a second run without speculation
        expected |= {EXIT_USAGE, EXIT_ERROR}
    for command in COMMANDS[kind](run, usual, tmp_path):
        done = run_command(*command)
        code, out, err = done.returncode, done.stdout, done.stderr
        assert code in expected, f"{command}: {err}"
        assert "Warning" not in err
        if code in (EXIT_ERROR, EXIT_USAGE):
            assert err.startswith("driftscope: error: ")
        said = (out + err).replace(str(run), "").replace(str(tmp_path), "")
        said = re.sub(r"\\u[0-9a-f]{4}", " ", said)  # JSON's escapes are no digits
        assert not (found := ABSURD.search(said)), f"{command}: {found and found[0]}"
        if "--json" in command and out:
            for document in _documents(out):
                VALIDATOR.validate(document)
    for report in tmp_path.glob("*.html"):
        _strict(report.read_text(encoding="utf-8"))


def _documents(out: str) -> list[Any]:
    """Return the document that was printed, or one for each line of `watch`."""
    with contextlib.suppress(json.JSONDecodeError):
        return [json.loads(out, parse_constant=_refuse)]
    return [json.loads(line, parse_constant=_refuse) for line in out.splitlines()]


def _strict(page: str) -> None:
    """The data inside a report is JSON that every parser reads."""
    blocks = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert blocks
    for block in blocks:
        json.loads(block, parse_constant=_refuse)


def test_a_replay_can_be_neither_advised_on_nor_watched(runs: Callable[[str], Path]) -> None:
    replay = runs("replay")
    for command, words in (
        (["advise", replay], "a replay, which has no step times"),
        (["advise", runs("usual"), replay], "a replay, which has no step times"),
        (["watch", replay, "--once"], "is a replay, which has no engine to watch"),
    ):
        assert_fails(run_command(*command), EXIT_NO_DATA, words)


@pytest.mark.parametrize("name", ["nothing-accepted", "batches-nothing-accepted"])
def test_a_drafter_of_which_nothing_is_accepted_is_advised_off(
    runs: Callable[[str], Path], name: str
) -> None:
    said = run_command("advise", runs(name)).stdout
    first, second, *_ = said.splitlines()
    assert first.endswith("K = 0: no --speculative-config")
    assert "at least" in second
    assert "keep K" not in said
    content = json.loads(run_command("advise", runs(name), "--json").stdout)
    assert content["overall"]["best_k"] == 0
    assert content["useless"] is True
    assert content["least_gain"] > 0.5, "the drafter takes more than a third of these steps"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("one-request-with-all-the-weight", "one request dominates the acceptance"),
        ("one-batch-of-noise", "the acceptance of 4 requests leaves"),
        ("times-of-noise", "the step times leave"),
    ],
)
def test_advice_without_support_is_cannot_tell(
    runs: Callable[[str], Path], name: str, why: str
) -> None:
    said = run_command("advise", runs(name)).stdout
    assert "not known which K is fastest" in said
    content = json.loads(run_command("advise", runs(name), "--json").stdout)
    assert content["doubt"].startswith(why)
    assert "record" in content["doubt"]
    assert content["command"] is None
    for time in content["overall"]["tpot_s"]:
        assert (time["value"] is None) is (time["interval"] is None)


def test_a_run_that_one_request_decides_says_so(
    runs: Callable[[str], Path], tmp_path: Path
) -> None:
    run, report = runs("one-request-with-all-the-weight"), tmp_path / "r.html"
    out = run_command("analyze", run, "-q", "-o", report, "--json").stdout
    content = json.loads(out)
    assert content["runs"][0]["acceptance"]["mean_length_interval"] is None
    assert any("no 95% interval" in note["statement"] for note in content["notes"])
    assert "no 95% interval" in report.read_text(encoding="utf-8")
    code = run_command("check", run, "--fail-on", "acceptance.mean_length < 99").returncode
    assert code == EXIT_NO_DATA, "an estimate without an interval decides nothing"


@pytest.mark.parametrize("name", ["reports/gallery/traces/drifting", "one-request", "replay"])
def test_under_python_w_error(runs: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """The commands themselves, each in a process of its own."""
    run = runs(name)
    commands: list[list[object]] = [
        ["analyze", run, "-o", tmp_path / "r.html"],
        ["advise", run],
        ["watch", run, "--once"],
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "driftscope", *map(str, command)],
            capture_output=True,
            text=True,
            env=environ,
            check=False,
            timeout=300,
        )
        assert done.returncode in (EXIT_OK, EXIT_NO_DATA), done.stderr
        assert "Traceback" not in done.stderr
