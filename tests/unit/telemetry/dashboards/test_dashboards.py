"""Dashboards, rules and runbooks: valid for the real tools, and right over known series."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from support.promtool import check_rules_with, promtool
from support.runs import Spec, write_run
from support.simulate import Truth, simulate
from typer.testing import CliRunner
from verification.alert_rules.scenarios import SCENARIOS

from driftscope.cli.app import app
from driftscope.errors import UsageError
from driftscope.telemetry.dashboards import recording as r
from driftscope.telemetry.dashboards.alerts import alerts
from driftscope.telemetry.dashboards.files import RULES, write
from driftscope.telemetry.dashboards.reference import SEEN, Compared, growth, length
from driftscope.telemetry.dashboards.rule_options import Thresholds, Times
from driftscope.telemetry.export import recorded_run
from driftscope.trace.read.reader import read_trace
from driftscope.vocabulary import Region

ROOT = Path(__file__).parents[4]
TIMES = Times(
    window="5m", chain_window="5m", past="30m", gap="10m", hold="2m", keep="5m", evaluate="1m"
)
GOOD, BAD, AGAIN = 60, 30, 60
"""Minutes of three phases; in the middle one something is wrong with engine a."""
AT_GOOD, AT_BAD, AT_END = "59m", "76m", "149m"
ENGINE = 'job="j", instance="{}", gen_ai_request_model="m", driftscope_drafter="d"'

RATES = {
    "driftscope_rounds_total": (600, 600),
    "driftscope_tokens_accepted_total": (1200, 1200),
    "driftscope_acceptance_length_sum": (1800, 600),
    "driftscope_acceptance_length_count": (600, 600),
    "driftscope_chains_recorded_total": (600, 600),
    "driftscope_rounds_rejected_total": (60, 60),
    'driftscope_steps_undrafted_total{driftscope_reason="k_zero"}': (150, 150),
    'driftscope_rounds_reached_total{driftscope_depth="1"}': (480, 480),
    'driftscope_rounds_reached_total{driftscope_depth="2"}': (60, 6),
    'driftscope_attention_mass_sum{driftscope_depth="2", driftscope_class="self"}': (60, 120),
    'driftscope_attention_mass_count{driftscope_depth="2", driftscope_class="self"}': (600, 600),
    'driftscope_hidden_rms_sum{driftscope_depth="2", driftscope_place="fed"}': (1800, 1800),
    'driftscope_hidden_rms_count{driftscope_depth="2", driftscope_place="fed"}': (600, 600),
    "driftscope_hidden_growth_sum": (720, 1800),
    "driftscope_hidden_growth_count": (600, 600),
    'driftscope_confidence_top1_sum{driftscope_depth="2"}': (300, 300),
    'driftscope_confidence_top1_count{driftscope_depth="2"}': (600, 600),
    "driftscope_draft_duration_seconds_sum": (2.4, 24.0),
    "driftscope_draft_duration_seconds_count": (600, 600),
    "driftscope_verify_duration_seconds_sum": (6.0, 6.0),
    "driftscope_verify_duration_seconds_count": (600, 600),
    'driftscope_probe_time_seconds_total{driftscope_source="worker0"}': (0.6, 0.6),
    "driftscope_step_time_seconds_total": (60, 60),
    "gen_ai_server_time_to_first_token_seconds_sum": (3, 3),
    "gen_ai_server_time_to_first_token_seconds_count": (60, 60),
    "gen_ai_server_time_per_output_token_seconds_sum": (0.6, 0.6),
    "gen_ai_server_time_per_output_token_seconds_count": (60, 60),
    'driftscope_rows_dropped_total{driftscope_source="worker0", driftscope_cause="queue_full"}': (
        0,
        10,
    ),
    'driftscope_rows_dropped_total{driftscope_source="worker0", driftscope_cause="disk_limit"}': (
        0,
        10,
    ),
    'driftscope_probe_errors_total{driftscope_source="worker0", driftscope_hook="draft"}': (0, 10),
}
"""Counters by what they gain in a minute, when all is well and when it is not."""
BEHIND = 'driftscope_export_behind_seconds{driftscope_signal="metrics"}'
UP = 'driftscope_probe_up{driftscope_source="engine0", driftscope_reason=""}'

FIRES = {
    # Nothing is accepted, so that drafting is lost time as well.
    "acceptance_length_sum": {
        "DriftscopeAcceptanceFell",
        "DriftscopeFleetOutlier",
        "DriftscopeSlowerThanNone",
    },
    "hidden_growth_sum": {"DriftscopeHiddenGrowth"},
    'reached_total{driftscope_depth="2"': {"DriftscopeDeadDepths"},
    "draft_duration_seconds_sum": {"DriftscopeSlowerThanNone"},
    "queue_full": {"DriftscopeProbeDropping"},
    "probe_errors": {"DriftscopeProbeDropping"},
    "disk_limit": {"DriftscopeTraceFull"},
    "export_behind": {"DriftscopeExportBehind"},
    "probe_up": {"DriftscopeProbeDown"},
}
"""Faults by a part of their series, with the alerts that must fire."""
LASTING = {"disk_limit": {"DriftscopeTraceFull"}}
"""Alerts that still fire at the end: a trace that is full stays full."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dashboards")
    write(folder, TIMES, Thresholds())
    return folder


def _series(wrong: str) -> list[dict[str, str]]:
    out = []
    for engine in "abc":
        for name, (good, bad) in RATES.items():
            rates = (good, bad if wrong and wrong in name and engine == "a" else good, good)
            out.append({"series": _labelled(name, engine), "values": _counter(rates)})
        late = 400 if wrong and wrong in BEHIND and engine == "a" else 10
        down = int(bool(wrong) and wrong in UP and engine == "a")
        out.append(
            {
                "series": _labelled(UP, engine),
                "values": f"1x{GOOD} {1 - down}x{BAD} 1x{AGAIN}",
            }
        )
        out.append(
            {
                "series": _labelled(BEHIND, engine),
                "values": f"10x{GOOD} {late}x{BAD} 10x{AGAIN}",
            }
        )
    return out


def _labelled(name: str, engine: str) -> str:
    metric, _, labels = name.rstrip("}").partition("{")
    own = ", ".join(filter(None, (ENGINE.format(engine), labels)))
    return f"{metric}{{{own}}}"


def _counter(rates: tuple[float, float, float]) -> str:
    """Return a series in promtool's notation: start, step and number of further samples."""
    start, parts = 0.0, []
    for rate, minutes in zip(rates, (GOOD, BAD, AGAIN), strict=True):
        parts.append(f"{start:g}+{rate:g}x{minutes - 1}")
        start += rate * minutes
    return " ".join(parts)


def _firing(names: set[str]) -> list[dict[str, Any]]:
    return [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)]


@pytest.mark.prometheus
@pytest.mark.parametrize("wrong", FIRES)
def test_an_alert_fires_for_its_cause_alone_and_resolves(
    made: Path, tmp_path: Path, wrong: str
) -> None:
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    check_rules_with(
        tmp_path,
        made / RULES,
        _series(wrong),
        [
            {"expr": firing, "eval_time": AT_GOOD, "exp_samples": []},
            {"expr": firing, "eval_time": AT_BAD, "exp_samples": _firing(FIRES[wrong])},
            {
                "expr": firing,
                "eval_time": AT_END,
                "exp_samples": _firing(LASTING.get(wrong, set())),
            },
        ],
    )


def test_every_alert_is_tried() -> None:
    names = {alert.name for alert in alerts(TIMES, Thresholds())}
    in_scenarios = {each.alert for scenario in SCENARIOS for each in scenario.expected}
    assert set().union(*FIRES.values()) | in_scenarios == names


def test_an_alert_is_kept_after_its_condition(made: Path) -> None:
    """Prometheus then does not end it for a gap in the series."""
    groups = yaml.safe_load((made / RULES).read_text())["groups"]
    alerting = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert alerting and {rule["keep_firing_for"] for rule in alerting} == {"5m"}


def test_a_link_of_an_alert_is_a_url_or_absent(tmp_path: Path) -> None:
    for number, given in enumerate((None, "https://wiki.example/driftscope/")):
        folder = tmp_path / str(number)
        write(folder, TIMES, Thresholds(), runbooks=given)
        groups = yaml.safe_load((folder / RULES).read_text())["groups"]
        for rule in groups[1]["rules"]:
            page = f"https://wiki.example/driftscope/{rule['alert']}.md" if given else None
            assert rule["annotations"].get("runbook_url") == page
            assert rule["annotations"]["action"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--runbooks", "runbooks"), "give a URL"),
        (("--reference", "chat-8b"), "give a served model's name and tokens per round"),
        (("--reference", "chat-8b=0.5"), "a round yields at least 1"),
        (("--hold", "30s"), "at least --window (5m)"),
        (("--acceptance-back", "0.7"), "must end at that share or above"),
    ],
)
def test_an_option_that_would_mislead(tmp_path: Path, given: tuple[str, str], words: str) -> None:
    done = CliRunner().invoke(app, ["dashboards", "-o", str(tmp_path), *given])
    assert isinstance(done.exception, UsageError) and words in str(done.exception)
    assert not list(tmp_path.iterdir())


def _compared(one: Compared, mean: float) -> dict[str, float]:
    """Return the values of three engines, each with 10 observations per second."""
    return {
        one.series("rate", "_count"): 30.0,
        one.series("rate", "_sum"): 30.0 * mean,
        one.mean: mean,
        one.series("was_away"): 0.0,
        one.series("learned", "_count"): 30.0,
        one.series("learned", "_sum"): 30.0 * mean,
        one.reference: mean,
        one.ratio: 1.0,
        one.last_ratio: 1.0,
        one.series("away"): 0.0,
    }


VALUES = {
    r.ROUNDS: 10.0,
    r.LENGTH: 3.0,
    f'{r.REACHED}{{driftscope_depth="2"}}': 0.1,
    r.MASS: 0.1,
    r.RMS: 3.0,
    r.GROWTH: 1.2,
    r.TOP1: 0.5,
    r.STEPS: 12.5,
    r.UNDRAFTED_SHARE: 0.2,
    r.REJECTED_SHARE: 0.08,
    r.DRAFT_S: 0.004,
    r.VERIFY_S: 0.01,
    r.SPEEDUP: 3 * 0.01 / 0.014,
    r.OVERHEAD_SHARE: 0.01,
    r.TTFT: 0.05,
    r.TPOT: 0.01,
    r.CHAINS_RECENT: 3000.0,
    r.LENGTH_FLEET: 3.0,
    SEEN: 1.0,
    **_compared(length(TIMES, Thresholds()), mean=3.0),
    **_compared(growth(TIMES), mean=1.2),
}


@pytest.mark.prometheus
def test_every_recording_rule_gives_what_the_counters_say(made: Path, tmp_path: Path) -> None:
    assert {name.partition("{")[0] for name in VALUES} == {
        rule.record for rule in r.rules(TIMES, Thresholds())
    }
    expected = [
        {
            "expr": f"abs(max({name}) - {value}) < bool 1e-9",
            "eval_time": AT_GOOD,
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for name, value in VALUES.items()
    ]
    check_rules_with(tmp_path, made / RULES, _series(""), expected)


@pytest.mark.prometheus
def test_promtool_accepts_the_rules(made: Path) -> None:
    assert "SUCCESS" in promtool("check", "rules", made / RULES)


def test_dashboards_are_grafana_s(made: Path) -> None:
    """Each key and value survives Grafana's own model of a dashboard."""
    files = sorted((made / "grafana").glob("*.json"))
    assert len(files) == 4
    for file in files:
        raw = json.loads(file.read_text())
        assert list(_lost(raw, _as_grafana_has_it(raw))) == []
        for panel in raw["panels"]:
            assert panel["description"] and panel["targets"]
            assert panel["datasource"]["uid"] == "${datasource}"
        assert "datasource" in {each["name"] for each in raw["templating"]["list"]}


def test_grafana_s_model_would_notice() -> None:
    raw = {"title": "x", "panelz": [], "refresh": "30s"}
    assert list(_lost(raw, _as_grafana_has_it(raw))) == [".panelz"]


def _as_grafana_has_it(raw: Any) -> Any:
    return json.loads(JSONEncoder().encode(Dashboard.from_json(raw)))


def _lost(ours: Any, theirs: Any, path: str = "") -> Any:
    if isinstance(ours, dict):
        for key, value in ours.items():
            if not isinstance(theirs, dict) or key not in theirs:
                yield f"{path}.{key}"
            else:
                yield from _lost(value, theirs[key], f"{path}.{key}")
    elif isinstance(ours, list):
        if len(ours) != len(theirs):
            yield path
        for at, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            yield from _lost(a, b, f"{path}[{at}]")
    elif ours != theirs:
        yield path


def _exported(run: Path, **asked: bool) -> set[str]:
    text = recorded_run.to_openmetrics(list(recorded_run.replays(read_trace(run), **asked)))  # type: ignore[arg-type]
    return {line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")}


def test_panels_and_rules_ask_for_series_that_exist(made: Path, tmp_path: Path) -> None:
    """Every metric named anywhere is one that a run exports, or a recording rule."""
    write_run(
        tmp_path / "run",
        Spec(undrafted=("k_zero",), dropped={"queue_full": 1}, errors={"draft": 1}),
    )
    truth = Truth(
        k=2, requests=4, rounds=4, conditional=(0.8, 0.7), regions={Region.PROSE: (1.0, 0.0)}
    )
    exported = _exported(tmp_path / "run")
    exported |= _exported(simulate(tmp_path / "regions", truth), regions=True)
    # Only a live engine has these three.
    exported |= {"driftscope_export_behind_seconds", "driftscope_probe_sampling_rate_ratio"}
    recorded = {rule.record for rule in r.rules(TIMES, Thresholds())}
    asked: set[str] = set()
    for file in (made / "grafana").glob("*.json"):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                asked |= _metrics(target["expr"])
    for rule in r.rules(TIMES, Thresholds()):
        asked |= _metrics(rule.expr)
    for alert in alerts(TIMES, Thresholds()):
        asked |= _metrics(alert.expr)
    assert asked - exported - recorded == set()
    assert len(asked) > 40


def _metrics(expr: str) -> set[str]:
    without_labels = re.sub(r"(by|on) \([^)]*\)|\{[^}]*\}|\"[^\"]*\"", " ", expr)
    names = re.findall(r"[a-z_:]*driftscope[a-z0-9_:]*|gen_ai_[a-z_]+", without_labels)
    return set(names)


def test_runbooks_in_the_docs_are_those_of_the_alerts() -> None:
    """`driftscope dashboards -o build/dashboards && cp build/dashboards/runbooks/*
    docs/runbooks/`."""
    from driftscope.telemetry.dashboards.alerts import runbook

    defaults = alerts(Times(), Thresholds())
    folder = ROOT / "docs" / "runbooks"
    assert {path.stem for path in folder.glob("*.md")} == {alert.name for alert in defaults}
    for alert in defaults:
        assert (folder / f"{alert.name}.md").read_text() == runbook(alert)


def test_the_same_settings_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        done = CliRunner().invoke(app, ["dashboards", "-o", str(folder), "--window", "1m"])
        assert done.exit_code == 0, done.output
    for path in first.rglob("*.*"):
        assert path.read_bytes() == (second / path.relative_to(first)).read_bytes()


def test_a_duration_that_is_none(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["dashboards", "-o", str(tmp_path), "--past", "yesterday"])
    assert "give a duration such as 30s, 5m or 1d" in str(done.exception)
