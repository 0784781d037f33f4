"""Dashboards, rules and runbooks: valid for the real tools, right over known series."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from support.prometheus import (
    ENGINES,
    INTERVAL,
    KEEP,
    check_rules_with,
    edited_rules,
    promtool,
    rules_in,
)
from typer.testing import CliRunner
from verification.alert_rules.play import faults, play, played
from verification.alert_rules.scenarios import SCENARIOS, Scenario

from driftscope.cli.app import app
from driftscope.cli.dashboards import FILES, RULES
from driftscope.telemetry import instruments, prometheus
from driftscope.telemetry.instruments import COUNTER, GAUGE, INSTRUMENTS
from driftscope.telemetry.prometheus import label_name, metric_name
from driftscope.vocabulary import EngineName

ALERT_RULES = [rule for rule in rules_in() if "alert" in rule]
RECORDED = {rule["record"]: rule["expr"] for rule in rules_in() if "record" in rule}
TIMES = {"30m": "5m", "7d": "30m", "1h": "10m", "10m": "2m", KEEP: "5m", INTERVAL: "1m"}
GOOD, BAD, AGAIN = 60, 30, 60
"""Minutes of three phases; in the middle one something is wrong with engine a."""
AT_GOOD, AT_BAD, AT_END = "59m", "76m", "149m"
ENGINE = 'job="j", instance="{}", gen_ai_request_model="m", driftscope_drafter="d"'
WORKER = 'driftscope_source="worker0"'
MEANS = {
    "driftscope_acceptance_length": (600, 3.0),
    'driftscope_attention_mass{driftscope_depth="2", driftscope_class="self"}': (600, 0.1),
    'driftscope_hidden_rms{driftscope_depth="2", driftscope_place="fed"}': (600, 3.0),
    "driftscope_hidden_growth": (600, 1.2),
    'driftscope_confidence_top1{driftscope_depth="2"}': (600, 0.5),
    "driftscope_draft_duration_seconds": (600, 0.004),
    "driftscope_verify_duration_seconds": (600, 0.01),
    "gen_ai_server_time_to_first_token_seconds": (60, 0.05),
    "gen_ai_server_time_per_output_token_seconds": (60, 0.01),
}
"""Counts of observations, and their mean."""
RATES = {
    "driftscope_rounds_completed_total": 600,
    "driftscope_tokens_accepted_total": 1200,
    "driftscope_chains_recorded_total": 600,
    "driftscope_rounds_rejected_total": 60,
    'driftscope_steps_undrafted_total{driftscope_reason="k_zero"}': 150,
    'driftscope_rounds_reached_total{driftscope_depth="1"}': 540,
    'driftscope_rounds_reached_total{driftscope_depth="2"}': 480,
    'driftscope_rounds_reached_total{driftscope_depth="3"}': 180,
    'driftscope_rounds_verified_total{driftscope_depth="1"}': 600,
    'driftscope_rounds_verified_total{driftscope_depth="2"}': 600,
    'driftscope_rounds_verified_total{driftscope_depth="3"}': 450,
    f"driftscope_probe_time_seconds_total{{{WORKER}}}": 0.6,
    "driftscope_step_time_seconds_total": 60,
    f'driftscope_rows_dropped_total{{{WORKER}, driftscope_cause="queue_full"}}': 0,
    f'driftscope_rows_dropped_total{{{WORKER}, driftscope_cause="disk_limit"}}': 0,
    f'driftscope_probe_errors_total{{{WORKER}, driftscope_hook="draft"}}': 0,
    **{
        name.replace("{", f"_{end}{{") if "{" in name else f"{name}_{end}": count * times
        for name, (count, mean) in MEANS.items()
        for end, times in (("sum", mean), ("count", 1))
    },
}
"""Counters by what they gain in a minute when all is well."""
BEHIND = 'driftscope_export_behind_seconds{driftscope_signal="metrics"}'
UP = 'driftscope_probe_up{driftscope_source="engine0", driftscope_reason=""}'

FIRES = {
    # Nothing is accepted, so that drafting is lost time as well.
    "acceptance_length_sum": (
        600,
        ("AcceptanceFell", "FleetOutlier", "NothingAccepted", "SlowerThanNone"),
    ),
    "hidden_growth_sum": (1800, ("HiddenGrowth",)),
    'reached_total{driftscope_depth="3"': (3, ("DeadDepths",)),
    "draft_duration_seconds_sum": (24.0, ("SlowerThanNone",)),
    "queue_full": (10, ("ProbeDropping",)),
    "probe_errors": (10, ("ProbeDropping",)),
    "disk_limit": (10, ("TraceFull",)),
    "export_behind": (400, ("ExportBehind",)),
    "probe_up": (0, ("ProbeDown",)),
}
"""Faults by a part of their series: its gain in a bad minute or its bad value, and the alerts that
must fire."""
LASTING = {"disk_limit": ("TraceFull",)}
"""Alerts that still fire at the end: a trace that is full stays full."""


@pytest.fixture(scope="module")
def short_rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return edited_rules(tmp_path_factory.mktemp("dashboards") / "rules.yml", TIMES)


def _series(wrong: str) -> list[dict[str, str]]:
    out = []
    for engine in "abc":
        for name, good in {**RATES, BEHIND: 10, UP: 1}.items():
            bad = FIRES[wrong][0] if wrong and wrong in name and engine == "a" else good
            level = f"{good}x{GOOD} {bad}x{BAD} {good}x{AGAIN}"
            values = level if name in (BEHIND, UP) else _counter((good, bad, good))
            metric, _, labels = name.rstrip("}").partition("{")
            own = ", ".join(filter(None, (ENGINE.format(engine), labels)))
            out.append({"series": f"{metric}{{{own}}}", "values": values})
    return out


def _counter(rates: tuple[float, float, float]) -> str:
    """Return a series in promtool's notation: start, step and number of further samples."""
    start, parts = 0.0, []
    for rate, minutes in zip(rates, (GOOD, BAD, AGAIN), strict=True):
        parts.append(f"{start:g}+{rate:g}x{minutes - 1}")
        start += rate * minutes
    return " ".join(parts)


def _asked(expr: str, time: str, *labels: str, value: float = 1) -> dict[str, Any]:
    """Return the test that an expression has these series, of one value, and no others."""
    samples = [{"labels": own, "value": value} for own in labels]
    return {"expr": expr, "eval_time": time, "exp_samples": samples}


@pytest.mark.prometheus
@pytest.mark.parametrize("wrong", FIRES)
def test_an_alert_fires_for_its_cause_alone_and_resolves(
    short_rules: Path, tmp_path: Path, wrong: str
) -> None:
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    check_rules_with(
        tmp_path,
        [short_rules],
        _series(wrong),
        [
            _asked(firing, at, *(f'{{alertname="Driftscope{name}"}}' for name in sorted(names)))
            for at, names in (
                (AT_GOOD, ()),
                (AT_BAD, FIRES[wrong][1]),
                (AT_END, LASTING.get(wrong, ())),
            )
        ],
    )


def test_every_alert_is_tried() -> None:
    in_scenarios = {expected.alert for scenario in SCENARIOS for expected in scenario.expected}
    fired = {f"Driftscope{name}" for _, names in FIRES.values() for name in names}
    assert fired | in_scenarios == {rule["alert"] for rule in ALERT_RULES}


def test_an_alert_is_kept_after_its_condition_and_has_a_runbook() -> None:
    """Prometheus then does not end it for a gap in the series."""
    text = (FILES / RULES).read_text()
    pages = {path.stem for path in (FILES / "runbooks").iterdir()}
    assert pages == {rule["alert"] for rule in ALERT_RULES}
    for rule in ALERT_RULES:
        assert rule["keep_firing_for"] == "30m" and rule["annotations"]["action"]
        assert f"      # runbook_url: https://RUNBOOKS/{rule['alert']}.md\n" in text
        page = (FILES / "runbooks" / f"{rule['alert']}.md").read_text()
        assert rule["annotations"]["description"] in page


def _compared(name: str, mean: float) -> dict[str, float]:
    """Return the values of three engines, each with 10 observations per second."""
    of = f"model:driftscope_{name}"
    return {
        f"{of}_count:rate": 30.0,
        f"{of}:mean": mean,
        f"{of}:was_away": 0.0,
        f"{of}:reference": mean,
        f"{of}:ratio": 1.0,
        f"{of}:last_ratio": 1.0,
        f"{of}:away": 0.0,
    }


DEEP = '{driftscope_depth="3"}'
VALUES = {
    "engine:driftscope_rounds:rate": 10.0,
    "engine:driftscope_acceptance_length:mean": 3.0,
    "engine:driftscope_acceptance_length:reference": 3.0,
    "engine:driftscope_acceptance_length:typical": 3.0,
    f"engine_depth:driftscope_verified:rate{DEEP}": 7.5,
    f"engine_depth:driftscope_accepted:rate{DEEP}": 3.0,
    f"engine_depth:driftscope_acceptance_marginal:ratio{DEEP}": 0.4,
    **{f"model_depth:driftscope_verified:{kind}{DEEP}": 22.5 for kind in ("rate", "learned")},
    **{f"model_depth:driftscope_accepted:{kind}{DEEP}": 9.0 for kind in ("rate", "learned")},
    f"model_depth:driftscope_acceptance:reference{DEEP}": 0.4,
    "engine_depth_class:driftscope_attention_mass:mean": 0.1,
    "engine_depth_place:driftscope_hidden_rms:mean": 3.0,
    "engine:driftscope_hidden_growth:mean": 1.2,
    "engine_depth:driftscope_confidence_top1:mean": 0.5,
    "engine:driftscope_steps:rate": 12.5,
    "engine_reason:driftscope_undrafted:ratio": 0.2,
    "engine:driftscope_rejected_rounds:ratio": 0.08,
    "engine:driftscope_draft_seconds:mean": 0.004,
    "engine:driftscope_verify_seconds:mean": 0.01,
    "engine:driftscope_speedup:at_most": 3 * 0.01 / 0.014,
    "engine:driftscope_probe_overhead:ratio": 0.01,
    "engine:driftscope_time_to_first_token_seconds:mean": 0.05,
    "engine:driftscope_time_per_output_token_seconds:mean": 0.01,
    "engine:driftscope_chains:increase": 3000.0,
    "model:driftscope_engines:seen": 1.0,
    **_compared("acceptance_length", mean=3.0),
    **_compared("hidden_growth", mean=1.2),
    "model:driftscope_hidden_growth_sum:rate": 36.0,
    "model:driftscope_hidden_growth_sum:learned": 36.0,
    "model:driftscope_hidden_growth_count:learned": 30.0,
}


@pytest.mark.prometheus
def test_every_recording_rule_gives_what_the_counters_say(
    short_rules: Path, tmp_path: Path
) -> None:
    assert {name.partition("{")[0] for name in VALUES} == set(RECORDED)
    expected = [
        _asked(f"abs(max({name}) - {value}) < bool 1e-9", AT_GOOD, "{}")
        for name, value in VALUES.items()
    ]
    check_rules_with(tmp_path, [short_rules], _series(""), expected)


@pytest.mark.prometheus
def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    files = [*FILES.glob("prometheus/**/*.yml"), edited_rules(tmp_path / "x", TIMES, {"m": 3.2})]
    assert promtool("check", "rules", *files).count("SUCCESS") == len(files) == 8


def test_dashboards_are_grafana_s() -> None:
    """Each key and value survives Grafana's own model of a dashboard."""
    files = sorted((FILES / "grafana").glob("**/*.json"))
    assert len(files) == 6
    for file in files:
        raw = json.loads(file.read_text())
        assert list(_lost(raw, _as_grafana_has_it(raw))) == []
        for panel in raw["panels"]:
            assert panel["description"] and panel["targets"]
            assert panel["datasource"]["uid"] == "${datasource}"
        variables = {variable["name"] for variable in raw["templating"]["list"]}
        own = {"replica", "floor", "outlier"} if file in BOARDS.values() else {"drafter"}
        assert {"datasource", "job", "model", "instance"} | own <= variables
        used = set(re.findall(r"\$\{?(\w+)", json.dumps([raw["panels"], raw["templating"]])))
        assert used == variables - {"instance"} or used == variables
        labels = set().union(*LABELS.values(), ENGINE_LABELS if file in BOARDS.values() else ())
        assert set(re.findall(r"\{\{(\w+)\}\}", file.read_text())) <= labels, "legends"


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


COMMON = {"job", "instance", *map(label_name, (instruments.MODEL, instruments.DRAFTER))}
LABELS = {
    **{
        metric_name(instrument): {*COMMON, *map(label_name, instrument.attributes)}
        for instrument in INSTRUMENTS.values()
    },
    "ALERTS": {*COMMON, "alertname", "alertstate", "severity"},
    "engines": {metrics.position for metrics in prometheus.ENGINES.values()},
}
"""Labels by metric of the catalogue, without the suffixes of Prometheus."""


def _expressions() -> Iterator[str]:
    for file in (FILES / "grafana").glob("*.json"):
        yield from _queries(file)
    yield from (rule["expr"] for rule in rules_in())


def test_panels_and_rules_name_metrics_and_labels_of_the_catalogue() -> None:
    known, ends = {*RECORDED, "ALERTS"}, {COUNTER: ("_total",), GAUGE: ("",)}
    for one in INSTRUMENTS.values():
        known |= {metric_name(one) + end for end in ends.get(one.kind, ("_sum", "_count"))}
    every = set().union(*LABELS.values())
    named: set[str] = set()
    for expr in _expressions():
        plain = re.sub(r"#.*|\"[^\"]*\"", " ", expr)
        of_series = re.findall(r"([\w:]+)\{([^}]*)\}", plain)
        for metric, labels in of_series:
            base = metric.removesuffix("_total").removesuffix("_sum").removesuffix("_count")
            allowed = every if ":" in metric else LABELS[base]
            assert set(re.findall(r"(\w+)\s*=", labels)) <= allowed, expr
        grouped = re.findall(r"(?:by|on|without|ignoring) \(([^)]*)\)", plain)
        assert {label.strip() for labels in grouped for label in labels.split(",")} <= every, expr
        rest = re.sub(r"(by|on|without|ignoring) \([^)]*\)|\{[^}]*\}|, \w+\)$", " ", plain)
        named |= set(re.findall(r"[a-z_:]*driftscope[a-z0-9_:]*|gen_ai_[a-z_]+|ALERTS", rest))
    assert named <= known
    assert len(named) > 40


@pytest.mark.parametrize("engine", [None, *EngineName])
def test_the_command_copies_what_belongs_together(
    tmp_path: Path, engine: EngineName | None
) -> None:
    words = ["--engine", engine] if engine else []
    done = CliRunner().invoke(app, ["dashboards", *words, "-o", str(tmp_path), "--json"])
    written = [Path(name) for name in json.loads(done.stdout)["written"]]
    assert set(written) == set(tmp_path.rglob("*.*"))
    names = {kind: {path.name for path in (tmp_path / kind).glob("*")} for kind in COPIED}
    rules = [path for path in written if path.parent.name == "prometheus"]
    alerts = {rule["alert"] for path in rules for rule in rules_in(path) if "alert" in rule}
    assert names["runbooks"] == {f"{name}.md" for name in alerts}
    if engine is None:
        assert len(names["grafana"]) == 4 and names["prometheus"] == {"driftscope.rules.yml"}
    else:
        assert names["prometheus"] == {"alerts.rules.yml", f"{engine}.rules.yml"}
        assert names["grafana"] == ({BOARDS[engine].name} if engine in BOARDS else set())


def test_the_command_keeps_edited_files(tmp_path: Path) -> None:
    (tmp_path / RULES).parent.mkdir()
    (tmp_path / RULES).write_text("mine")
    done = CliRunner().invoke(app, ["dashboards", "-o", str(tmp_path)])
    assert (tmp_path / RULES).read_text() == "mine"
    assert f"kept: {tmp_path / RULES}" in done.stderr and done.exit_code == 0


ON_PAGE = 'job="serving",instance="a:8000",model_name="m"'
COUNTERS = {
    EngineName.VLLM: (
        f"vllm:spec_decode_num_drafts_total{{{ON_PAGE}}}",
        f"vllm:spec_decode_num_accepted_tokens_total{{{ON_PAGE}}}",
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{ON_PAGE},position="0"}}',
        f"vllm:spec_decode_num_draft_tokens_total{{{ON_PAGE}}}",
    ),
    EngineName.TRTLLM: (
        f'trtllm_spec_decode_drafted_tokens_total{{{ON_PAGE},token_position="0"}}',
        f"trtllm_spec_decode_num_accepted_tokens_total{{{ON_PAGE}}}",
        f'trtllm_spec_decode_accepted_tokens_total{{{ON_PAGE},token_position="0"}}',
        None,
    ),
    EngineName.LLAMACPP: (
        'llamacpp:spec_decode_num_drafts_total{instance="a:8000"}',
        'llamacpp:spec_decode_num_accepted_tokens_total{instance="a:8000"}',
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{instance="a:8000",position="0"}',
        'llamacpp:spec_decode_num_draft_tokens_total{instance="a:8000"}',
    ),
}
"""Counters of rounds, of accepted tokens, of rounds that accepted the first position, and of draft
tokens where an engine does not count the rounds that drafted a position."""


def _engine_rules(engine: EngineName) -> list[Path]:
    return [ENGINES / f"{engine}.rules.yml", ENGINES / "alerts.rules.yml"]


def test_rules_of_engines_name_what_the_engines_publish() -> None:
    for engine, metrics in prometheus.ENGINES.items():
        known = metrics.names | {"sglang:gen_throughput"}
        text = " ".join(rule["expr"] for rule in rules_in(_engine_rules(engine)[0]))
        prefix = re.escape(engine)
        assert set(re.findall(rf"\b{prefix}[a-z_:]+", text)) <= known


def test_alerts_of_engines_are_those_of_the_probe() -> None:
    """Without the probe's own figures; each is computed by the same rule."""
    theirs, ours = (
        {(rule.get("record") or rule["alert"], rule["expr"]) for rule in rules}
        for rules in (rules_in(ENGINES / "alerts.rules.yml"), rules_in())
    )
    assert theirs <= ours
    made = {rule["record"] for name in EngineName for rule in rules_in(_engine_rules(name)[0])}
    assert made - {"engine:driftscope_drafted:mean"} <= set(RECORDED)


@pytest.mark.prometheus
@pytest.mark.parametrize("engine", COUNTERS)
@pytest.mark.parametrize("whole", [True, False])
def test_counters_give_the_length_and_the_first_depth(
    tmp_path: Path, engine: EngineName, whole: bool
) -> None:
    """Acceptance by position is unknown while drafts are shorter and what was verified at a
    position is not published."""
    rounds, accepted, first, tokens = COUNTERS[engine]
    gains = {rounds: 600, accepted: 900, first: 450, tokens: 600 if whole else 500}
    series = [{"series": one, "values": f"0+{gain}x20"} for one, gain in gains.items() if one]
    labels = f'gen_ai_request_model="m",{ON_PAGE}'
    labels = 'instance="a:8000"' if engine is EngineName.LLAMACPP else labels
    position = "token_position" if engine is EngineName.TRTLLM else "position"
    marginal = 'engine_depth:driftscope_acceptance_marginal:ratio{driftscope_depth!="all"}'
    first_rate = 0.75 if whole or not tokens else None
    asked = [
        _expected("engine:driftscope_acceptance_length:mean", f"{{{labels}}}", 2.5),
        _expected(marginal, f'{{{labels},{position}="0"}}', first_rate),
    ]
    check_rules_with(tmp_path, _engine_rules(engine), series, asked)


@pytest.mark.prometheus
def test_sglang_has_throughput_and_length_by_rank(tmp_path: Path) -> None:
    """180 tokens a second at 3 a round are 60 rounds; idle time counts nothing."""
    own = f'{ON_PAGE[:-1]}",dp_rank="1"'
    series = [
        {"series": f"sglang:gen_throughput{{{own}}}", "values": "180x10 0x2 180x8"},
        {"series": f"sglang:spec_accept_length{{{own}}}", "values": "3x10 0x2 3x8"},
    ]
    labels = '{gen_ai_request_model="m",model_name="m",dp_rank="1",instance="a:8000",job="serving"}'
    expected = [
        _expected("engine:driftscope_acceptance_length:mean", labels, 3.0),
        _expected("engine:driftscope_rounds:rate", labels, 60.0),
    ]
    check_rules_with(tmp_path, _engine_rules(EngineName.SGLANG), series, expected)


BOARDS = {
    engine: FILES / "grafana" / "engines" / f"driftscope-{engine}.json"
    for engine in (EngineName.VLLM, EngineName.SGLANG)
}
COPIED = ("grafana", "prometheus", "runbooks")
NEWER = {"vllm:spec_decode_num_draft_tokens_per_pos_total"}
"""Names of engines later than the installed ones."""
ENGINE_LABELS = {"model_name", "pod", "ReplicaId", "engine", "dp_rank", "tp_rank", "position"}
SET = {
    "${source}": "vllm:",
    "$window": "5m",
    "$floor": "1.05",
    "$outlier": "0.85",
    **{f"${name}": ".*" for name in ("job", "model", "instance", "replica")},
}
"""Variables of the boards with a choice for each."""


def _queries(board: Path) -> list[str]:
    """Return the queries of a board's panels and variables."""
    raw = json.loads(board.read_text())
    asked = [target["expr"] for panel in raw["panels"] for target in panel["targets"]]
    return asked + [v["query"] for v in raw["templating"]["list"] if v["type"] == "query"]


def _chosen(query: str) -> str:
    for variable, value in SET.items():
        query = query.replace(variable, value)
    return query


def _published(engine: EngineName) -> set[str]:
    """Return the names that stand in the engine's own source, as Prometheus shows them."""
    spec = importlib.util.find_spec(engine)
    roots = [Path(path) for path in spec.submodule_search_locations or ()] if spec else []
    roots += (FILES.parents[2] / ".venv").glob(f"{engine}-*/lib/python*/site-packages/{engine}")
    parts = {EngineName.VLLM: "v1/**/*.py", EngineName.SGLANG: "srt/observability/*.py"}[engine]
    names = {
        name
        for root in roots[:1]
        for path in root.glob(parts)
        for name in re.findall(rf'"({engine}:[a-z_]+)"', path.read_text())
    }
    if not names:
        pytest.skip(f"{engine} is not installed here")
    ends = ("", "_total", "_sum", "_count")
    return {name + end for name in names for end in ends}


@pytest.mark.parametrize("engine", BOARDS)
def test_names_of_a_board_and_of_rules_stand_in_the_engine_s_source(engine: EngineName) -> None:
    rules = [rule["expr"] for rule in rules_in(_engine_rules(engine)[0])]
    names = prometheus.ENGINES[engine].names
    text = " ".join([*map(_chosen, _queries(BOARDS[engine])), *rules, *names])
    named = set(re.findall(rf"\b{engine}:[a-z_]+", text))
    assert len(named) >= 10 and named <= _published(engine) | NEWER


@pytest.mark.prometheus
@pytest.mark.parametrize("engine", BOARDS)
def test_each_panel_shows_something(tmp_path: Path, engine: EngineName) -> None:
    """On a server of 3 replicas, one of which accepts nothing."""
    series = [one for n in range(3) for one in _replica(engine, n, (1.0 if n == 2 else 3.0, 40))]
    known = {one["series"].partition("{")[0] for one in series}
    labels = f'{{{ON_PAGE},{REPLICA_LABEL[engine]}="0"}}'
    queries = " ".join(map(_chosen, _queries(BOARDS[engine])))
    names = set(re.findall(rf"\b{engine}:[a-z_]+", queries))
    for name in names - known:
        values = "0+600x40" if name.endswith(("_total", "_sum", "_count")) else "1x40"
        more = ',position="0"}' if "per_pos" in name else "}"
        series.append({"series": labels.replace("}", more).join((name, "")), "values": values})
    panels = json.loads(BOARDS[engine].read_text())["panels"]
    shown = [_chosen(target["expr"]) for panel in panels for target in panel["targets"]]
    asked = [_asked(f"count({expr}) > bool 0", "35m", "{}") for expr in shown]
    check_rules_with(tmp_path, _engine_rules(engine), series, asked)


REPLICA_LABEL = {EngineName.VLLM: "engine", EngineName.SGLANG: "dp_rank"}


def _replica(engine: EngineName, number: int, *phases: tuple[float, int]) -> list[dict[str, str]]:
    """Return the series of one replica on a page at 10 rounds a second; `phases` are acceptance
    lengths, each with the number of minutes that it lasts. SGLang's tp_rank is the global one."""
    if engine is EngineName.SGLANG:
        own = f'{{{ON_PAGE},dp_rank="{number}",tp_rank="{number}"}}'
        gauges = {"spec_accept_length": 1, "gen_throughput": 10}
        return [
            {
                "series": f"sglang:{name}{own}",
                "values": " ".join(f"{times * length}x{minutes}" for length, minutes in phases),
            }
            for name, times in gauges.items()
        ]
    gains = (600 * (length - 1) for length, minutes in phases for _ in range(minutes))
    values = [f"{total:.0f}" for total in accumulate(gains)]
    name, own = "vllm:spec_decode_num", f'{{{ON_PAGE},engine="{number}"}}'
    return [
        {"series": f"{name}_drafts_total{own}", "values": f"0+600x{len(values)}"},
        {"series": f"{name}_accepted_tokens_total{own}", "values": " ".join(values)},
    ]


def _alerts(engine: EngineName, eval_time: str, *names: str, number: int) -> dict[str, Any]:
    """Return the test that these alerts fire at a time, each for one replica, and no other."""
    label = REPLICA_LABEL[engine]
    firing = 'ALERTS{alertstate="firing", alertname!="DriftscopeNoReference"}'
    labels = [f'{{alertname="Driftscope{name}",{label}="{number}"}}' for name in names]
    return _asked(f"count by (alertname, {label}) ({firing})", eval_time, *labels)


@pytest.mark.prometheus
@pytest.mark.parametrize("engine", REPLICA_LABEL)
@pytest.mark.parametrize("length", [3.0, 2.8, 1.0])
def test_one_replica_of_a_page_is_named_when_it_falls(
    tmp_path: Path, engine: EngineName, length: float
) -> None:
    """4 hours at 3 tokens a round on each of 8 replicas; then one of them yields `length`."""
    series = [
        one
        for number in range(8)
        for one in _replica(engine, number, (3.0, 240), (length if number == 5 else 3.0, 60))
    ]
    names = ("FleetOutlier", "NothingAccepted") if length < 2 else ()
    asked = [_alerts(engine, "239m", number=5), _alerts(engine, "270m", *names, number=5)]
    check_rules_with(tmp_path, _engine_rules(engine), series, asked)


@pytest.mark.prometheus
@pytest.mark.parametrize("engine", REPLICA_LABEL)
@pytest.mark.parametrize("length", [1.0, 3.0])
def test_a_server_that_accepts_nothing_from_the_first_day_is_reported(
    tmp_path: Path, engine: EngineName, length: float
) -> None:
    names = ("NothingAccepted",) if length < 2 else ()
    asked, series = [_alerts(engine, "25m", *names, number=0)], _replica(engine, 0, (length, 30))
    check_rules_with(tmp_path, _engine_rules(engine), series, asked)


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("later", "k", "falls"), [(1200, 4, True), (2280, 4, False), (1400, 2, False)]
)
def test_an_alert_fires_when_acceptance_falls_and_only_then(
    tmp_path: Path, later: int, k: int, falls: bool
) -> None:
    """A day at 3 tokens per round and K = 4, then 12 hours at 2, at 2.9, or at 2.2 for K = 2."""
    rounds, accepted, first, drafted = COUNTERS[EngineName.VLLM]
    series = [
        {"series": rounds, "values": "0+1200x1440"},
        {"series": accepted, "values": f"0+2400x720 1728000+{later}x720"},
        {"series": first, "values": "0+900x1440"},
        {"series": drafted, "values": f"0+4800x720 3456000+{1200 * k}x720"},
    ]
    fired = play(tmp_path, _engine_rules(EngineName.VLLM), series, hours=36)
    if falls:
        assert 24 < fired["DriftscopeAcceptanceFell"].begins_h < 25
    else:
        assert "DriftscopeAcceptanceFell" not in fired


def _expected(name: str, labels: str, value: float | None) -> dict[str, Any]:
    # Floating-point sums differ in the last digit, and promtool compares every digit.
    known = () if value is None else (labels,)
    return _asked(f"round({name}, 0.001)", "20m", *known, value=value or 0)


LONG_H = 60
"""Scenarios of more hours are played at night: promtool takes up to half a minute for each."""


@pytest.mark.prometheus
@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(
            incident, id=incident.name, marks=[pytest.mark.nightly] * (incident.hours > LONG_H)
        )
        for incident in SCENARIOS
    ],
)
def test_alerts_last_from_an_incident_to_its_repair(tmp_path: Path, scenario: Scenario) -> None:
    assert list(faults(scenario, played(tmp_path, scenario))) == []
