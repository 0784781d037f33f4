"""Two scrapes of one server are a window of time, and a restart between them is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from driftscope.cli.app import app
from driftscope.errors import UsageError
from driftscope.ingest.base import LAST_INTERVAL
from driftscope.ingest.catalogue import ingest
from driftscope.ingest.prometheus import SINCE_RESTART, ingest_window, two_scrapes

SAMPLES = Path(__file__).parent / "samples"
DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
TTFT = "vllm:time_to_first_token_seconds"


def _page(
    folder: Path, name: str, drafts: int, at: tuple[int, int], started: float = 1.0, ttft: int = 0
) -> Path:
    lines = [
        f"process_start_time_seconds {started}",
        f'{DRAFTS}{{engine="0"}} {drafts}',
        f'{ACCEPTED}{{engine="0"}} {sum(at)}',
        *(f'{AT}{{engine="0",position="{n}"}} {count}' for n, count in enumerate(at)),
        f'{TTFT}_sum{{engine="0"}} {0.5 * ttft}',
        f'{TTFT}_count{{engine="0"}} {ttft}',
    ]
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_figures_are_the_increase(tmp_path: Path) -> None:
    before = _page(tmp_path, "a.prom", 1000, (900, 800), ttft=10)
    after = _page(tmp_path, "b.prom", 1100, (950, 825), ttft=14)
    _, (found,) = ingest_window(before, after)
    assert (found.rounds, found.accepted, found.k) == (100, 75, 2)
    assert found.length == pytest.approx(1.75) and found.marginal == pytest.approx((0.5, 0.25))
    assert found.ttft_s == pytest.approx(0.5)
    assert found.period == "from a.prom to b.prom"
    assert not found.contradictions


def test_a_restart_is_noticed_where_a_counter_fell(tmp_path: Path) -> None:
    before = _page(tmp_path, "a.prom", 1000, (10, 5))
    after = _page(tmp_path, "b.prom", 100, (50, 25))  # the accepted ones grew past their old value
    _, (found,) = ingest_window(before, after)
    assert (found.rounds, found.accepted) == (100, 75)
    assert found.length == pytest.approx(1.75) and found.period == SINCE_RESTART
    assert any("the server restarted" in words for words in found.assumptions)


def test_a_restart_is_noticed_where_all_counters_grew(tmp_path: Path) -> None:
    before = _page(tmp_path, "a.prom", 10, (5, 2), started=1.0)
    after = _page(tmp_path, "b.prom", 100, (50, 25), started=99.0)
    _, (found,) = ingest_window(before, after)
    assert found.rounds == 100 and found.period == SINCE_RESTART


def test_a_gauge_has_no_window(tmp_path: Path) -> None:
    page = (SAMPLES / "prometheus-sglang.txt").read_text()
    after = tmp_path / "b.prom"
    after.write_text(page.replace("} 40", "} 90").replace("2.75", "3.25"))
    _, (found,) = ingest_window(SAMPLES / "prometheus-sglang.txt", after)
    assert (found.rounds, found.length, found.period) == (50, 3.25, LAST_INTERVAL)


def test_files_that_are_no_window_are_one_error(tmp_path: Path) -> None:
    same = _page(tmp_path, "a.prom", 1000, (900, 800))
    with pytest.raises(UsageError, match="no round was verified between"):
        ingest_window(same, same)
    with pytest.raises(UsageError, match="pages of vLLM and of SGLang"):
        ingest_window(same, SAMPLES / "prometheus-sglang.txt")
    with pytest.raises(UsageError, match="no metrics page of an engine that speculates"):
        ingest_window(same, SAMPLES / "vllm-bench.json")
    with pytest.raises(UsageError, match="needs two scrapes, the earlier first, not 1"):
        two_scrapes([same])


def test_the_command_writes_the_window_as_a_run(tmp_path: Path) -> None:
    before = _page(tmp_path, "a.prom", 1000, (900, 800))
    after = _page(tmp_path, "b.prom", 1100, (950, 825))
    run = tmp_path / "run"
    words = ["ingest", "--window", str(before), str(after), "-o", str(run), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (done.output, done.exception)
    (file,) = json.loads(done.stdout)["files"]
    assert (file["file"], file["figures"][0]["rounds"]) == ("b.prom", 100)
    done = CliRunner().invoke(app, ["analyze", str(run), "--format", "json", "-o", "-", "-q"])
    (cell,) = json.loads(done.stdout)["replays"][0]["cells"]
    assert cell["rounds"] == 100 and cell["totals"]["period"] == "from a.prom to b.prom"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"1120"', '"many"', "not a time and a number"),
        ('"1120"', '"NaN"', "outside the range of counters"),
        ("[1764100860, ", "[1764100800, ", "times that do not ascend"),
        ("spec_decode_num", "queries_num", "no series of an engine that speculates"),
    ],
)
def test_a_range_that_prometheus_does_not_answer(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "range.json"
    file.write_text((SAMPLES / "prometheus-range.json").read_text().replace(old, new))
    with pytest.raises(UsageError, match=words):
        ingest(file)
