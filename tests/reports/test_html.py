"""The page, read as text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest
from support.analyses import PAIR, analysis_of, pair
from support.runs import Spec, write_run

from driftscope.analysis.analyze import Analysis, analyze
from driftscope.metrics.catalogue import DEFINITIONS
from driftscope.trace.reader import read_trace
from driftscope_reports import figures, provenance
from driftscope_reports.html import to_html

HOSTILE = (
    "</script><script>boom()</script>",
    '"><img src=x onerror=boom()>',
    "<b>bold</b> & 'quoted'",
    "<!-- <script>",
    "%{y} {{template}} \u2028 \u202e",
)


class Page(HTMLParser):
    """Text outside scripts, and every address that the page could ask for."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self._in_code = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in_code = tag in ("script", "style")
        for name, value in attrs:
            if name in ("src", "href"):
                self.addresses.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        self._in_code = self._in_code and tag not in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._in_code:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def page(analysis: Analysis) -> Page:
    return Page(to_html(analysis, command="driftscope analyze a b"))


def test_the_verdict_comes_first(page: Page) -> None:
    assert page.words.index("eagle3 drifts") < page.words.index("tokens per round")
    assert page.tags.index("h1") < page.tags.index("h2")


def test_every_section_is_there(page: Page) -> None:
    for name in ("verdict", "findings", "provenance"):
        assert name in page.ids
    for name in ("acceptance", "hidden", "attention", "confidence", "segments", "fallback"):
        assert name in page.ids
    assert page.words.count("How to read this:") == 6
    assert len(page.ids) == len(set(page.ids))


def test_it_says_plainly_what_the_shipped_trio_shows(page: Page) -> None:
    assert "Attention moves to the chain's own tokens in both" in page.words
    assert "this target has no attention sink" in page.words


def test_nothing_is_fetched(page: Page) -> None:
    assert page.addresses == []


def test_figures_stand_in_tables_too(page: Page, analysis: Analysis) -> None:
    for run in analysis.runs:
        for rate in run.acceptance.marginal:
            assert f"{rate:.3f}" in page.words
        assert run.hidden.fed_rms is not None
        assert f"{run.hidden.fed_rms[-1]:.3f}" in page.words


def test_definitions_are_the_catalogue_s_words(page: Page) -> None:
    for name in ("acceptance.marginal", "attention.no_drift", "hidden.growth", "latency.tpot_s"):
        assert DEFINITIONS[name].meaning in page.words


def test_provenance_is_complete(page: Page) -> None:
    for part in (
        "vllm 0.32.0",
        "runner v1",
        "config 0123456789abcdef",
        "norm flags fc_norm, norm_output",
        "K = 4",
        "3 rows dropped",
        "driftscope analyze a b",
    ):
        assert part in page.words


def test_warnings_stand_beside_what_they_affect(page: Page) -> None:
    chunked = "22 of 440 recorded chains"
    acceptance = page.words.index("acceptance goes from")
    assert page.words.index("dropped 3 rows") < acceptance
    assert acceptance < page.words.index(chunked)


def test_same_runs_same_bytes(tmp_path: Path, analysis: Analysis) -> None:
    assert to_html(pair(tmp_path)) == to_html(analysis)


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    specs = {
        name: Spec(labels=(name, "plain"), drafter=name, notes=(name,), requests=4)
        for name in HOSTILE
    }
    text = to_html(analysis_of(tmp_path, specs), command=" ".join(HOSTILE))
    page = Page(text)
    assert page.tags.count("script") == 3
    assert "img" not in page.tags
    assert "boom()</script>" not in text
    for name in HOSTILE[:3]:
        assert name in page.words
    figures = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text)
    assert figures is not None
    assert "<" not in figures[1]
    assert len(json.loads(figures[1])) == 2 + 4 + len(HOSTILE) + 2


def test_a_quantity_that_is_missing_everywhere_has_no_section(tmp_path: Path) -> None:
    trace = read_trace(write_run(tmp_path / "run", PAIR["eagle3"]))
    bare = replace(trace, draft=pa.Table.from_batches([], trace.draft.schema))
    page = Page(to_html(analyze([bare], ["bare"])))
    assert "acceptance" in page.ids
    assert not {"attention", "hidden", "confidence"} & set(page.ids)
    assert "no chain was recorded" in page.words


def test_what_does_not_apply_is_a_dash_and_no_number(tmp_path: Path) -> None:
    """A drafter without attention, and windows that hide the sink from all or some layers."""
    specs = {
        "no attention": Spec(heads=0),
        "hidden": Spec(windowed=(0,)),
        "half": Spec(layers=2, windowed=(1,), sink=(0.4, 0.39)),
    }
    for name, spec in specs.items():
        page = to_html(analysis_of(tmp_path / name, {name: spec}))
        assert "NaN" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
        assert not re.search(r">nan%?<", page)
    together = analysis_of(tmp_path / "together", specs)
    assert "no attention" in to_html(together)
    half = figures.masses(together.runs[2].attention)
    heights = [[v or 0.0 for v in trace["y"]] for trace in half["data"] if "stackgroup" in trace]
    assert max(map(sum, zip(*heights, strict=True))) <= 1.0 + 1e-5


def test_provenance_says_what_was_used(tmp_path: Path) -> None:
    run = pair(tmp_path).runs[0]
    used = replace(
        run.manifest, sink_slots=(0, 7), sink_source="found", attention_strategy="lse",
        tensor_parallel=2, query_kind="query index", budget=0.01,
    )  # fmt: skip
    text = provenance.line(replace(run, manifest=used))
    for words in (
        "sink set: slots 0, 7 (found)", "the kernel's log-sum-exp", "tensor parallel 2",
        "depth stands for query index", "within 1.0% of the TPOT",
    ):  # fmt: skip
        assert words in text


def test_a_report_of_a_run_in_which_no_sink_was_found(tmp_path: Path) -> None:
    told = "no sink found, looked for in 64 chains"
    spec = Spec(sink_slots=(), sink_source="found", notes=(told,), per_head=True)
    analysis = analysis_of(tmp_path, {"run": spec})
    page = to_html(analysis)
    assert told in page
    assert "This target has no attention sink, so statements about losing it" in page
    assert "sink set: no sink found (found)" in page
    assert not re.search(r">nan%?<", page)
    sought = replace(analysis.runs[0].manifest, sink_source="sought")
    line = provenance.line(replace(analysis.runs[0], manifest=sought))
    assert "sink set: looked for, not decided yet" in line
