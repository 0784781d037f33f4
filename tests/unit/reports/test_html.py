"""The page, read as text."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.analyses import PAIR, analysis_of, gallery_run, with_texts
from support.command import run_python
from support.runs import Spec, write_run
from support.simulate import Truth, simulate

from driftscope.analysis.number_words import milliseconds
from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.query.row_filters import Filter
from driftscope.analysis.summary.run_summary import BaselineRun, baseline_of
from driftscope.json_report import to_json
from driftscope.pipeline import Analysis, Inputs, analyze, conclude
from driftscope.trace.reader import read_trace
from driftscope.trace.texts import TEXTS
from driftscope_reports.conclusions import split
from driftscope_reports.html import MAX_BYTES, thinned, to_html
from driftscope_reports.html import pictures as drawn_of
from driftscope_reports.page import LICENCE, asset, plotly
from driftscope_reports.sections_inside import CLASSES, mass_areas
from driftscope_reports.sections_sources import provenance_parts

HOSTILE = (
    "</script><script>boom()</script>",
    '"><img src=x onerror=boom()>',
    "<b>bold</b> & 'quoted'",
    "<!-- <script>",
    "%{y} {{template}} \u2028 \u202e",
    "javascript:boom()",
    "</style><style>*{display:none}</style>",
    "</svg><foreignObject><script>boom()</script>",
    "]]><!--",
    "<a href='javascript:boom()'>x</a>",
)
PLOTLY = "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
"""SHA-256 of plotly-basic.min.js 4.1.1 as published to npm."""
GALLERY = Path(__file__).parents[3] / "reports" / "gallery" / "traces"
SECTIONS = ["verdict", "drift", "effect", "confidence", "speed", "fallback", "where"]
SECTIONS += ["compare", "requests", "provenance"]


class Page(HTMLParser):
    """Text outside scripts, and every address that the page could ask for."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.addresses, self.ids = list[str](), list[str](), list[str]()
        self.text, self.on = list[str](), list[str]()
        self._in_code = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in_code = tag in ("script", "style")
        asked = ("src", "href", "action", "data", "srcset", "xlink:href")
        self.addresses += [value or "" for name, value in attrs if name in asked]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.on += [name for name, _ in attrs if name.startswith("on") or name == "style"]

    def handle_endtag(self, tag: str) -> None:
        self._in_code = self._in_code and tag not in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._in_code:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


HEADLINE = "eagle3.1: it cannot be told whether acceptance is worse than eagle3's"


@pytest.fixture(scope="module")
def text(analysis: Analysis) -> str:
    return to_html(analysis, command="driftscope analyze a b")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_what_was_not_recorded_and_the_verdict_come_first(page: Page) -> None:
    """A warning stands beside what it affects, and once."""
    order = (
        "dropped 3 rows (queue full)",
        HEADLINE,
        "tokens per round",
        "these runs differ in more than one thing",
        "Findings and what to do",
        "Attention drift over depth: ",
        "22 of 440 recorded chains",
        "Attention on the chain itself:",
    )
    places = [page.words.index(words) for words in order]
    assert places == sorted(places)
    assert page.words.count(order[0]) == page.words.count(order[3]) == 1
    tags = [page.tags.index(tag) for tag in ("aside", "h1", "h2")]
    assert tags == sorted(tags)


def test_every_section_is_there_in_order(page: Page) -> None:
    assert [name for name in page.ids if name in SECTIONS] == SECTIONS
    assert len(page.ids) == len(set(page.ids))


def test_each_picture_explains_itself(analysis: Analysis, page: Page) -> None:
    pictures = drawn_of(analysis)
    assert len(pictures) > 20
    assert page.words.count("How to read this:") == len(pictures)
    assert page.tags.count("figure") == len(pictures)
    assert page.words.count(" Numbers ") == page.words.count(" Definition ") == len(pictures)
    for picture in pictures:
        assert picture.id in page.ids and f"#{picture.id}" in page.addresses
        assert picture.definitions and picture.title
        assert picture.how.count(". ") >= 1, picture.id


def test_every_answer_and_action_stands_on_the_page(page: Page, analysis: Analysis) -> None:
    screen = analysis.screen
    told = [answer.statement for answer in screen.answers if answer != screen.lead]
    told += [action.short_advice for action in screen.actions]
    for words in told:
        assert "".join(words.replace("`", "").split()) in "".join(page.words.split())


def test_every_section_is_folded_to_its_conclusion(page: Page, text: str) -> None:
    """Each summary has a heading and a result; the first screen alone is open."""
    folds = re.findall(r'<details class="fold"><summary>(.*?)</summary>', text)
    assert len(folds) == len(SECTIONS) + 2, "findings, answers and terms, but no verdict"
    for fold in folds:
        assert re.sub("<[^>]*>", "|", fold).strip("|").split("||", 1)[0]
        assert re.search(r'class="conclusion">.+</span>', fold), fold
    assert "<details open" not in text
    assert page.words.index("What to do") < page.words.index("Answers")


def test_three_figures_each_beside_what_they_are_compared_with(
    page: Page, analysis: Analysis
) -> None:
    figures = analysis.screen.figures
    assert len(figures) == 3 and figures[1].reference == "eagle3 2.46 (+16%)"
    for figure in figures:
        assert f"{figure.value} {figure.reference}" in page.words
        assert figure.meaning in page.words


@pytest.mark.parametrize(
    ("begin", "inside", "end", "below"),
    [
        (
            "It pays: 2.0× as fast",
            "1.9× to 2.1×, measured",
            "",
            "95% interval 1.9× to 2.1×, measured.",
        ),
        ("b is better", "+16%, +8% to +23%", ", but (1 of 2)", "+16%, 95% interval +8% to +23%."),
        ("Nothing is accepted", "none of 12 rounds", "", "None of 12 rounds."),
    ],
)
def test_the_interval_of_the_headline_stands_below_it(
    begin: str, inside: str, end: str, below: str
) -> None:
    assert split(f"{begin} ({inside}){end}.") == (f"{begin}{end}.", below)
    unknown = "a (x): whether it pays cannot be told."
    assert split(unknown) == (unknown, "")


def test_a_part_of_a_run_says_so_above_the_headline() -> None:
    whole, part = (
        analyze(Inputs(sources=[GALLERY / "server"], labels=["run"], only=only))
        for only in (Filter(), Filter(since="3s"))
    )
    assert "Part of the run" not in Page(to_html(whole)).words
    words = Page(to_html(part)).words
    kept = part.runs[0].requests
    assert 0 < kept < whole.runs[0].requests == 96
    chip = f"Part of the run: only --since 3s: {kept} of 96 requests"
    assert words.index(chip) < words.index("tokens per round")


def test_a_drafter_that_is_to_be_turned_off_gets_no_other_advice(tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path, {"run": Spec(conditional=(0.0,) * 4, rounds=30)})
    assert [action.option for action in analysis.screen.actions] == ["no --speculative-config"]
    assert '<button type="button" class="copy"' not in to_html(analysis), "words are no command"


def test_nothing_can_be_fetched(page: Page, text: str) -> None:
    assert {address[:1] for address in page.addresses} == {"#"}
    assert {address[1:] for address in page.addresses} <= set(page.ids)
    assert page.on == []
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; ") and "unsafe-eval" not in policy
    allowed = policy.split("script-src ")[1].split(";")[0]
    assert allowed.startswith("'sha256-") and "unsafe" not in allowed
    for code in (asset("head.js"), asset("report.js"), gzip.decompress(plotly()).decode()):
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert digest in allowed


def test_provenance_is_complete(page: Page) -> None:
    for part in (
        "vllm 0.32.0",
        "runner v1",
        "config 0123456789abcdef",
        "norm flags none fc_norm, norm_output",
        "K 4",
        "rows dropped 3 0",
        "driftscope analyze a b",
    ):
        assert part in page.words


def test_plotly_is_the_published_bundle_and_its_licence_is_in_the_page(page: Page) -> None:
    unpacked = gzip.decompress(plotly())
    assert hashlib.sha256(unpacked).hexdigest() == PLOTLY
    assert b"plotly.js (basic - minified) v4.1.1" in unpacked[:80]
    assert " ".join(asset(LICENCE).split()) in page.words


def _inside(text: str, name: str) -> Any:
    """Return the data of a page's script, which has no tag in it."""
    (data,) = re.findall(rf'<script type="application/json" id="{name}">(.*?)</script>', text)
    assert "<" not in data
    return json.loads(data)


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    specs = {
        name: Spec(labels=HOSTILE, drafter=name, notes=(name,), requests=10, undrafted=(name,))
        for name in HOSTILE[::3]
    }
    analysis = analysis_of(tmp_path, specs)
    text = to_html(analysis, command=" ".join(HOSTILE))
    page = Page(text)
    assert (page.tags.count("script"), page.tags.count("style"), page.on) == (5, 1, [])
    assert not {"img", "b-", "foreignobject"} & set(page.tags)
    assert {address[:1] for address in page.addresses} == {"#"}
    assert "boom()</script>" not in text
    for name in (*HOSTILE[:3], *HOSTILE[5:]):
        assert name in page.words
    drawn = _inside(text, "figures")
    assert set(drawn) == {picture.id for picture in drawn_of(analysis)}
    assert "<" not in json.dumps([f["data"] for f in drawn.values()])


def test_kept_texts_are_on_the_page_alone_and_only_text(tmp_path: Path) -> None:
    analysis = analyze(with_texts(tmp_path, "Once ", *HOSTILE, prompt=HOSTILE[0] + "secret"))
    text = to_html(analysis)
    page = Page(text)
    assert page.tags.count("script") == 5 and page.on == []
    (run,) = _inside(text, "stories")
    assert [opened["text"]["prompt"] for opened in run["opened"]] == [HOSTILE[0] + "secret"] * 6
    assert len(run["opened"][0]["text"]["answer"]) == 1 + len(HOSTILE)
    assert "Prompts and answers were kept, and opened requests show them." in page.words
    assert "secret" not in to_json(analysis) and "Once " not in to_json(analysis)
    assert "secret" not in to_html(thinned(analysis))


def test_texts_that_cannot_be_read_cost_a_line_of_the_report(tmp_path: Path) -> None:
    inputs = with_texts(tmp_path, "Once")
    (tmp_path / "asked" / TEXTS).unlink()
    analysis = analyze(inputs)
    assert analysis.runs[0].closeup is not None
    assert all(opened.text is None for opened in analysis.runs[0].closeup.opened)
    assert "texts.jsonl cannot be read (No such file" in Page(to_html(analysis)).words


def test_a_quantity_that_is_missing_everywhere_is_not_applicable(tmp_path: Path) -> None:
    trace = read_trace(write_run(tmp_path / "run", PAIR["eagle3"]))
    bare = replace(trace, draft=pa.Table.from_batches([], trace.draft.schema))
    analysis = analyze(Inputs(sources=[bare], labels=["bare"]))
    page = Page(to_html(analysis))
    assert [name for name in page.ids if name in SECTIONS] == SECTIONS
    assert {"acceptance-marginal", "acceptance-conditional"} <= set(page.ids)
    assert not {"attention-0", "hidden-fed", "confidence-calibration"} & set(page.ids)
    for words in ("no chain was recorded", "masses and hidden state are not applicable"):
        assert words in page.words


@pytest.mark.slow
def test_what_does_not_apply_is_a_dash_and_no_number(tmp_path: Path) -> None:
    """A drafter without attention, and windows that hide the sink from all or some layers."""
    specs = {
        "no attention": Spec(heads=0),
        "hidden": Spec(windowed=(0,)),
        "half": Spec(layers=2, windowed=(1,), sink=(0.4, 0.39)),
    }
    together = analysis_of(tmp_path, specs)
    for analysis in (together, *(conclude([run]) for run in together.runs)):
        page = to_html(analysis)
        assert "NaN" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
        assert not re.search(r'>nan%?<| (?:[dxy]|points)="[^"]*\bnan', page)
    attention = together.runs[2].attention
    masses = {name: getattr(attention, f"{name}_mass") for name in CLASSES}
    heights = [[v or 0.0 for v in trace.y] for trace in mass_areas(masses)]
    assert max(map(sum, zip(*heights, strict=True))) <= 1.0 + 1e-5


def test_a_name_that_is_no_unicode_is_shown_as_an_escape(tmp_path: Path) -> None:
    """A file name of other bytes than UTF-8 comes as lone surrogates."""
    analysis = analysis_of(tmp_path, {"run\udcff": Spec()})
    page = to_html(analysis, command="driftscope analyze 'run\udcff'")
    assert "analyze 'run\\udcff'" in html.unescape(page)
    page.encode()


def test_the_page_does_not_grow_with_the_run(tmp_path: Path) -> None:
    """The number of single requests, moments and durations shown is bounded."""
    small, large = (
        len(to_html(analyze(Inputs(sources=[run], labels=["run"]))).encode())
        for run in (simulate(tmp_path / f"{n}", Truth(requests=n, rounds=6)) for n in (300, 3000))
    )
    assert large < 1.1 * small and large <= MAX_BYTES


def test_what_acceptance_goes_with_is_told_with_its_intervals() -> None:
    run = gallery_run("drifting")
    words = Page(to_html(conclude([run]))).words
    estimates = [relation.alone for relation in run.within_request if relation.alone]
    assert len(estimates) == 2
    for alone in estimates:
        low, high = 100 * alone.interval.low, 100 * alone.interval.high
        assert f"{100 * alone.per_sd:+.1f} ({low:+.1f} to {high:+.1f})" in words


def test_speed_is_held_against_a_baseline_without_speculation() -> None:
    run = gallery_run("drifting")
    held = baseline_of(open_run(GALLERY / "without"), "baseline")
    assert isinstance(held, BaselineRun)
    words = Page(to_html(conclude([run], baseline=held))).words
    assert f"The baseline takes {milliseconds(held.latency.tpot_s)}." in words
    assert "baseline, measured" in words and "took at most drifting baseline" in words
    other = replace(held, manifest=replace(held.manifest, mode="full graph"))
    words = Page(to_html(conclude([run], baseline=other))).words
    assert "baseline: it is not used: its engine" in words and "The baseline takes" not in words


@pytest.mark.slow
def test_many_large_runs_stay_below_the_bound(tmp_path: Path) -> None:
    labels = tuple(f"label {i}" for i in range(60))
    wide = Spec(k=16, conditional=(0.9,) * 16, rounds=50, layers=2, heads=16, labels=labels)
    analysis = analysis_of(tmp_path, {"wide": wide})
    six = tuple(replace(analysis.runs[0], label=f"run {i}") for i in range(6))
    text = to_html(replace(analysis, runs=six))
    assert len(text.encode()) <= MAX_BYTES
    assert "run 5" in text


def test_a_report_of_a_run_in_which_no_sink_was_found(tmp_path: Path) -> None:
    told = "no sink found, searched in 64 chains"
    spec = Spec(sink_slots=(), sink_source="found", notes=(told,))
    analysis = analysis_of(tmp_path, {"run": spec})
    page = to_html(analysis)
    assert told in page
    assert "This drafter has no attention sink, so statements about sink loss" in page
    assert "no sink found (found)" in page
    assert not re.search(r">nan%?<", page)
    sought = replace(analysis.runs[0].manifest, sink_source="sought")
    parts = provenance_parts(replace(analysis.runs[0], manifest=sought))
    assert parts["sink set"] == "search not finished"


@pytest.mark.process
def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    """With another order of hashes, and from another folder."""
    code = (
        "import sys; from pathlib import Path; from driftscope.pipeline import Inputs, analyze; "
        "from driftscope_reports.html import to_html; "
        "made = analyze(Inputs(sources=[Path(sys.argv[1])], labels=['server'])); "
        "page = to_html(made, command='driftscope analyze server'); "
        "Path('page.html').write_text(page, encoding='utf-8')"
    )
    run_python("-c", code, GALLERY / "server", cwd=tmp_path, PYTHONHASHSEED="77")
    analysis = analyze(Inputs(sources=[GALLERY / "server"], labels=["server"]))
    page = to_html(analysis, command="driftscope analyze server")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page


def test_provenance_says_what_was_used(analysis: Analysis) -> None:
    run = analysis.runs[0]
    used = replace(
        run.manifest,
        sink_slots=(0, 7),
        sink_source="found",
        attention_strategy="lse",
        tensor_parallel=2,
        query_kind="query index",
        budget=0.01,
        draft_sampling="probabilistic",
        drafter=replace(run.manifest.drafter, weights_digest="feedc0de"),
    )
    parts = provenance_parts(replace(run, manifest=used))
    wanted = {
        "sink set": "slots 0, 7 (found)",
        "masses by": "the kernel's log-sum-exp",
        "parallel": "tensor parallel 2",
        "meaning of depth": "query index",
    }
    assert parts | wanted == parts
    assert "within 1.0% of the TPOT" in parts["sampling"]
    assert parts["drafter's tokens"].startswith("drawn from")
    assert parts["drafter"].endswith("weights feedc0de)")
    assert "weights" not in parts["target"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"aux_layers_source": "config"}, "1, 2, 3 (named in the drafter's config)"),
        ({"aux_layers_source": "engine default"}, "1, 2, 3 (the engine's default: the drafter's"),
        ({"aux_layers_source": None}, "1, 2, 3"),
        ({"aux_layers": ()}, "3, indices not recorded"),
    ],
)
def test_a_report_says_who_chose_the_captured_layers(
    analysis: Analysis, changed: dict[str, Any], words: str
) -> None:
    run = analysis.runs[0]
    run = replace(run, manifest=replace(run.manifest, **changed))
    assert provenance_parts(run)["captured target layers"].startswith(words)
