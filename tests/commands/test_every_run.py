"""Every command on every kind of run, with warnings as errors: no traceback, no warning, and JSON
that a strict parser reads.

In this process, since each command in its own would take an hour; `test_under_python_w_error` runs
the commands themselves under `python -W error`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from support.command import assert_fails, run_command, run_python, strict_json
from support.odd_runs import ODD, RECORDED, ROOT

from driftscope.errors import EXIT_ERROR, EXIT_GATE_FAILED, EXIT_NO_DATA, EXIT_OK, EXIT_USAGE

pytestmark = pytest.mark.slow

ABSURD = re.compile(r"(?<![\w-])-?(nan|inf)(?![\w-])|\d{5,}(\.\d+)?%", re.IGNORECASE)
"""Text that no figure may look like; OpenMetrics may say +Inf, its word for a last bucket."""
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
)
PLAIN = ROOT / "reports" / "gallery" / "traces" / "without"
WORSE = "acceptance.mean_length < 0.9 * baseline.acceptance.mean_length"
RULES = [f"--fail-on={rule}" for rule in ("high", WORSE, "runs_part")]


def _commands(run: Path, usual: Path, out: Path) -> dict[str, list[list[object]]]:
    """Return the commands of each kind; `usual` is a run without anything odd."""
    page = ("-o", out / "r.html", "--json")
    profile = ("--format", "speculation-profile", "-o", out / "profile.json")
    return {
        "analyze": [["analyze", run, usual, "--baseline", PLAIN, "--by", "context", *page]],
        "compare": [["compare", usual, run], ["advise", run, usual, "--baseline", PLAIN, "--json"]],
        "check": [["check", run, "--baseline", usual, *RULES, "--json"]],
        "watch": [
            ["watch", run, "--once"],
            ["export", run, *profile],
            ["probe", "status", run, "--json"],
        ],
        # Other outputs of what the commands above compute of the same runs.
        "others": [
            ["analyze", run, "--baseline", PLAIN, "--format", "markdown", "-o", out / "r.md"],
            ["compare", run, run, "--json"],
            ["compare", run, PLAIN, "--json"],
            ["advise", run],
        ],
    }


KINDS = _commands(Path(), Path(), Path())


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


IN_MAKE_SAME = [name for name in RECORDED if not name.endswith(("drifting", "run-killed"))]
"""Recorded runs whose answers `make same` compares."""


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.nightly] * (kind == "others")) for kind in KINDS]
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
    for command in _commands(run, usual, tmp_path)[kind]:
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
            VALIDATOR.validate(strict_json(out))
    for report in tmp_path.glob("*.html"):
        page = report.read_text(encoding="utf-8")
        blocks = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
        assert blocks and all(map(strict_json, blocks))


def test_a_replay_can_be_neither_advised_on_nor_watched(runs: Callable[[str], Path]) -> None:
    replay = runs("replay")
    for command, words in (
        (["advise", replay], "recorded by no probe, so it has no step times"),
        (["advise", runs("usual"), replay], "recorded by no probe, so it has no step times"),
        (["watch", replay, "--once"], "recorded by no probe, so there is no engine to watch"),
    ):
        assert_fails(run_command(*command), EXIT_NO_DATA, words)


@pytest.mark.parametrize("name", ["nothing-accepted", "batches-nothing-accepted"])
def test_a_drafter_of_which_nothing_is_accepted_is_advised_off(
    runs: Callable[[str], Path], name: str
) -> None:
    first, second, *others = run_command("advise", runs(name)).stdout.splitlines()
    assert first.endswith("K = 0: no --speculative-config") and "at least" in second
    assert "keep K" not in "".join(others)


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
    for command in commands:
        done = run_python("-W", "error", "-m", "driftscope", *command, timeout_s=300)
        assert done.returncode in (EXIT_OK, EXIT_NO_DATA), done.stderr
        assert "Traceback" not in done.stderr
