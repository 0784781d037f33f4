"""Logs of servers as time series: lengths, rates by position, load and replica of each line.

A line is recognised by a marker and read field by field, so that what stands before it (Docker's,
Ray's or a pod's prefix, colours, timestamps) does not matter, except that it names the replica.
Every pattern begins with a literal and is bounded; a line of more than LONGEST characters is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from driftscope.analysis.log_changes import (
    DRAFTED,
    KV_USAGE,
    QUEUED,
    REQUEST_TOKENS,
    ROUNDED,
    RUNNING,
    TOKENS,
    LineAcceptance,
)
from driftscope.analysis.number_words import count as number_of
from driftscope.boundary.bounds import MAX_K
from driftscope.ingest.base import (
    MOST_LENGTH,
    SINCE_START,
    THIS_RUN,
    BadFigureError,
    Figures,
    Histogram,
    RequestCounts,
    ResultFile,
    accepted_in,
    changes_told,
    over_requests,
    reader,
)

LONGEST = 65_536
"""Characters of a line that are read: SGLang's "Finish" lines hold the prompt and the answer."""

_N = r" {0,12}([0-9]{1,18}(?:\.[0-9]{1,9})?)"
_RATES = r" {0,4}\(?([0-9., ]{1,2000})"
_NAMES = (
    *("pod_name", "k8s.pod.name", "pod", "container_name", "logStreamName"),
    *("_HOSTNAME", "hostname", "host"),
)
"""Keys under which collectors of logs (Docker, journald, Fluent Bit, Loki, Elastic, CloudWatch,
OpenTelemetry) say what wrote a line, the most exact first."""
_VALUES = ("name", "stringValue")
"""Keys of a value whose meaning the key around it says."""
MANY_DRAFTS = 20
"""Drafts of which a sound drafter has some refused whole."""
WHOLE = 0.95
"""Share of accepted draft tokens from which a log of llama.cpp that restores checkpoints counts
accepted rounds alone."""
_RESTORES = "speculative decoding will use checkpoints"
_REFUSALS_LEFT_OUT = (
    "this target cannot drop refused tokens, so llama.cpp restores a checkpoint, and before #26320 "
    "does not count those rounds: nearly all of the counted tokens are accepted, whatever the "
    "drafter is worth. Serve it with a newer llama.cpp"
)
LEAST_RATE = 0.05
"""Printed share of accepted draft tokens from which two digits tell K."""
FEWEST_OF_A_NAME = 2
"""Lines after the same words from which these name what wrote them."""
MOST_PIECES = 8
"""Rows into which a terminal or an editor has broken one line."""
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}m")
_SOURCE = re.compile(
    r"(?P<compose>[\w.-]{1,100}) {1,40}\| "  # docker compose logs
    r"|(?P<task>[0-9]{1,4}): "  # srun --label
    r"|\[pod/(?P<pod>[^\]\s]{1,200})\]"  # kubectl logs --prefix
    r"|\[(?P<port>[0-9]{4,5})\] "  # llama-server with several models
)
_ACTOR = re.compile(r"\(([\w:.-]{1,200} pid=[0-9]{1,9}[^()]{0,60})\)")
"""Prefix of a Ray actor, and of vLLM's own processes."""
_RANK = re.compile(r"\bDP([0-9]{1,4})\b")
"""Rank in the prefix of SGLang's data-parallel schedulers."""
_REPORTED = ("length", "accepted", "verified", "rates")
_EDGE = 24
"""Characters on either side of a break that may hold a marker: more than the longest has."""
_WHEN = re.compile(r"(?:[0-9]{4}-)?[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}")
_BEGINS = re.compile(rf"{_WHEN.pattern}|^ *(?:INFO|WARN|ERROR|DEBUG|slot |srv )")
"""Beginning of another line."""
_ENGINE = re.compile(r"Engine ([0-9]{3,4}): ")
_CARRIED = {
    RUNNING: re.compile(rf"Running:{_N} reqs"),
    QUEUED: re.compile(rf"Waiting:{_N} reqs"),
    KV_USAGE: re.compile(rf"KV cache usage:{_N}%"),
    REQUEST_TOKENS: re.compile(rf"total time ={_N} ms /{_N} tokens"),
}
"""Quantities that vLLM and llama.cpp print in a line of their own, before that of acceptance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine(LineAcceptance):
    """One line of a log that reports acceptance."""

    replica: str = ""
    """Names of the container, actor and rank that wrote the line."""
    words: tuple[str, ...] = ()
    """Words before it that are no time, whatever they mean."""
    settings: tuple[str, ...] = ()
    """Models and settings of speculation that the server printed at its last start."""
    engine: str = ""
    rounds: float | None = None
    accepted: int | None = None
    k: int | None = None
    rate: float | None = None
    """SGLang's share of draft tokens that were accepted."""
    request: RequestCounts | None = None
    """Counts, if the line is one request's."""
    drafter: str = ""
    """Name of one of several drafters, whose counts since the server's start the line has."""
    none_refused: bool = False
    """Whether each of many drafts had an accepted token, although calls ended without a draft."""

    @property
    def weight(self) -> float:
        """Weight in a mean over lines: rounds, or else the requests that ran."""
        return self.quantities.get(RUNNING, 1.0) if self.rounds is None else self.rounds


Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Lines that one engine writes."""

    marker: str
    fields: Mapping[str, re.Pattern[str]]
    read: Callable[[Fields], LogLine | None]
    note: str
    """Words about how lines of this kind are read."""
    cumulative: bool = False
    """Whether a line counts since the server's start."""


Lines = list[tuple[_Kind, LogLine]]


def _patterns(**fields: str) -> Mapping[str, re.Pattern[str]]:
    return {name: re.compile(pattern) for name, pattern in fields.items()}


def _whole(fields: Fields, name: str) -> int | None:
    return int(fields[name].partition(".")[0]) if name in fields else None


def _length(fields: Fields) -> float | None:
    if "length" not in fields:
        return None
    value = float(fields["length"])
    if value > MOST_LENGTH:
        raise BadFigureError(f"an acceptance length of {value:g}")
    return value


def _by_position(fields: Fields) -> tuple[float, ...]:
    try:
        rates = tuple(float(text) for text in fields.get("rates", "").replace(",", " ").split())
    except ValueError:
        return ()
    return rates if len(rates) <= MAX_K and all(rate <= 1.0 for rate in rates) else ()


def _rounds_of(
    accepted: int, verified: int | None, length: float | None, rates: Sequence[float], drafts: int
) -> int | None:
    """Return the rounds of a line: the first of these that agrees with the printed length.

    The drafts that were counted; drafted / K, exact unless drafts were cut; accepted / sum of the
    rates, which are printed with three digits; accepted / (length - 1), printed with two.
    """
    likely = [drafts] if drafts else []
    if verified and rates and verified % len(rates) == 0:
        likely.append(verified // len(rates))
    if accepted and (yielded := sum(rates)) > 0.0:
        likely.append(round(accepted / yielded))
    for rounds in likely:
        if length is None or abs(1.0 + accepted / rounds - length) <= ROUNDED:
            return rounds
    if length is not None and length > 1.0 and accepted:
        return round(accepted / (length - 1.0))
    return None


def _counted(fields: Fields) -> LogLine | None:
    """Return a line with counts, a length, rates by position, or some of these."""
    accepted, verified = _whole(fields, "accepted"), _whole(fields, "verified")
    length, rates = _length(fields), _by_position(fields)
    if accepted is None or verified is None:  # the line is cut off
        return None if length is None else LogLine(length=length, rates=rates, k=len(rates) or None)
    rounds = _rounds_of(accepted, verified, length, rates, _whole(fields, "drafts") or 0)
    uncut = not rounds or verified <= rounds * len(rates)
    drafts, calls = _whole(fields, "drafts") or 0, _whole(fields, "calls") or 0
    return LogLine(
        length=1.0 + accepted / rounds if rounds else length,
        rounds=rounds,
        accepted=accepted,
        verified=verified,
        rates=rates,
        k=(len(rates) or None) if uncut else None,
        drafter=fields.get("drafter", ""),
        quantities={DRAFTED: verified / rounds} if rounds else {},
        none_refused=MANY_DRAFTS <= drafts == _whole(fields, "kept") and drafts < calls,
    )


def _emitted(fields: Fields) -> LogLine | None:
    k, verified, emitted = (_whole(fields, name) for name in ("k", "verified", "emitted"))
    if not k or not verified or emitted is None:
        return None
    rounds = verified / k
    return LogLine(rounds=rounds, accepted=max(emitted - round(rounds), 0), verified=verified, k=k)


def _decode_batch(fields: Fields) -> LogLine | None:
    length = _length(fields)
    names = {"running": RUNNING, "queued": QUEUED, "tokens": TOKENS}
    quantities = {title: float(fields[name]) for name, title in names.items() if name in fields}
    if length is None or quantities.get(RUNNING) == 0.0:
        return None  # an idle batch prints 1.00
    rate = float(fields["rate"]) if "rate" in fields else None
    return LogLine(length=length, rate=rate, quantities=quantities)


def _finished(fields: Fields) -> LogLine | None:
    rounds, tokens = _whole(fields, "rounds"), _whole(fields, "tokens")
    if not rounds or tokens is None:
        return None
    histogram: Histogram | None = None
    if "histogram" in fields:
        histogram = tuple(map(int, fields["histogram"].split(",")))
    counted = _whole(fields, "accepted")
    if histogram and (sum(histogram) != rounds or counted not in (None, accepted_in(histogram))):
        histogram = None
    counted = accepted_in(histogram) if histogram else counted
    # The prefill yields one token, which no round does.
    accepted = max(tokens - 1 - rounds, 0) if counted is None else counted
    request = RequestCounts(
        rounds=rounds,
        accepted=accepted,
        verified=_whole(fields, "verified"),
        histogram=histogram,
    )
    length = 1.0 + accepted / rounds
    return LogLine(length=length, rounds=rounds, accepted=accepted, request=request)


_V1 = "SpecDecoding metrics:"
_FINISH = "Finish: obj="
_STATISTICS = "statistics "
KINDS: tuple[_Kind, ...] = (
    # vllm/v1/spec_decode/metrics.py (0.33) and LMDeploy 0.18.
    _Kind(
        marker=_V1,
        fields=_patterns(
            length=rf"ean acceptance length:{_N}",
            accepted=rf"Accepted:{_N} tokens",
            verified=rf"Drafted:{_N} tokens",
            rates=rf"Per-position acceptance rate:{_RATES}",
        ),
        read=_counted,
        note="rounds of a line are drafted tokens / K; where drafts were cut, accepted tokens / "
        "sum of its rates, or / (length - 1)",
    ),
    # vllm/spec_decode/metrics.py of the V0 engine (until 0.9).
    _Kind(
        marker="Speculative metrics:",
        fields=_patterns(
            k=rf"Number of speculative tokens:{_N}",
            verified=rf"Number of draft tokens:{_N}",
            emitted=rf"Number of emitted tokens:{_N}",
        ),
        read=_emitted,
        note="vLLM V0: rounds are draft tokens / K, and a length is emitted tokens / rounds; its "
        '"accepted" tokens also count those behind a rejected one. System efficiency is emitted '
        "tokens / (rounds x (K + 1))",
        cumulative=True,
    ),
    # sglang/srt/managers/scheduler_components/metrics_reporter.py (0.5.23).
    _Kind(
        marker="Decode batch",
        fields=_patterns(
            length=rf"accept len:{_N}",
            rate=rf"accept rate:{_N}",
            running=rf"#running-req:{_N}",
            queued=rf"#queue-req:{_N}",
            tokens=rf"#(?:full )?token:{_N}",
        ),
        read=_decode_batch,
        note="SGLang logs no counts: the mean of its lines by running requests, without idle "
        "batches (#running-req: 0)",
    ),
    # sglang/srt/utils/request_logger.py and managers/tokenizer_manager.py (0.5.23).
    _Kind(
        marker=_FINISH,
        fields=_patterns(
            rounds=rf"'spec_verify_ct':{_N}",
            tokens=rf"'completion_tokens':{_N}",
            accepted=rf"'(?:spec_num_correct_drafts|spec_accept_token_num)':{_N}",
            verified=rf"'(?:spec_num_proposed_drafts|spec_draft_token_num)':{_N}",
            histogram=r"'spec_(?:correct_drafts|accept)_histogram': "
            r"\[((?:[0-9]{1,18}, ){0,1024}[0-9]{1,18})\]",
        ),
        read=_finished,
        note="figures are those of finished requests, without the prefill's token",
    ),
    # llama.cpp, tools/server/server-context.cpp: "draft acceptance rate = %0.5f (%5d accepted /
    # %5d generated)"; then "draft acceptance = " with "mean acceptance length = %5.2f" and the
    # rates (#24536), then with "mean len = %5.2f".
    _Kind(
        marker="draft acceptance",
        fields=_patterns(
            accepted=rf"\({_N} accepted",
            verified=rf"accepted /{_N} generated",
            length=rf"mean (?:acceptance length|len) ={_N}",
            rates=rf"acceptance rate per position ={_RATES}",
        ),
        read=_counted,
        note="one line is one request; rounds are rebuilt from its counts, rates and length",
    ),
    # llama.cpp, common/speculative.cpp: one line for each drafter, counts since the start.
    _Kind(
        marker=_STATISTICS,
        fields=_patterns(
            drafter=r"statistics {1,20}([\w.-]{1,60}): #calls",
            calls=r"#calls\(b,g,a\) = {0,12}[0-9]{1,18},? {1,12}([0-9]{1,18})",
            drafts=rf"#gen drafts ={_N}",
            kept=rf"#acc drafts ={_N}",
            verified=rf"#gen tokens ={_N}",
            accepted=rf"#acc tokens ={_N}",
            length=rf"#mean acc len ={_N}",
            rates=rf"#acc rate/pos ={_RATES}",
        ),
        read=_counted,
        note="a drafter's rounds are its drafts, since the server's start",
        cumulative=True,
    ),
)


def rows_of(file: ResultFile) -> Iterator[str]:
    """Yield the lines of a text, out of a collector's JSON if they are there, without colours."""
    held = list(file.lines) if file.document is None else [file.document]
    rows = _rows_in(held) if held else file.text.splitlines()
    return (_COLOUR.sub("", row[:LONGEST]) if "\x1b" in row else row[:LONGEST] for row in rows)


def _rows_in(held: list[Any]) -> Iterator[str]:
    """Yield the texts of one line that JSON holds, as `kubectl logs --prefix` would print them if
    the record around them names what wrote them; journald writes text with colours as bytes."""
    waiting: list[tuple[Any, str]] = [(held, "")]
    while waiting:
        value, name = waiting.pop()
        if isinstance(value, list) and value and all(type(byte) is int for byte in value):
            value = bytes(byte & 255 for byte in value).decode("utf-8", "replace")
        if isinstance(value, str) and "\n" not in (row := value.strip()):
            yield f"[pod/{name}] {row}" if name else row
        elif isinstance(value, list):
            waiting += [(item, _name_in(item) or name) for item in reversed(value)]
        elif isinstance(value, dict):
            waiting += [(item, name) for item in reversed(value.values())]


def _name_in(record: Any) -> str:
    """Return the name of what wrote a record of a collector; "" if it does not say it."""
    names: dict[str, str] = {}
    waiting = [("", record)] if isinstance(record, dict) else []
    for key, value in waiting:
        if isinstance(value, dict):
            waiting += [(key if inner in _VALUES else inner, value[inner]) for inner in value]
        elif isinstance(value, list):  # attributes of OpenTelemetry
            pairs = [pair for pair in value if isinstance(pair, dict) and "key" in pair]
            waiting += [(str(pair["key"]), pair.get("value")) for pair in pairs]
        elif isinstance(value, str) and key in _NAMES and value:
            names.setdefault(key, value[:200])
    return next((re.sub(r"[\]\s]", "_", names[key]) for key in _NAMES if key in names), "")


def _kind_of(row: str) -> _Kind | None:
    return next((kind for kind in KINDS if kind.marker in row), None)


def _fields_of(kind: _Kind, row: str) -> Fields:
    return {name: m[1] for name, pattern in kind.fields.items() if (m := pattern.search(row))}


def _is_of_load(row: str) -> bool:
    return "Running:" in row or "total time" in row


def _unbroken(rows: Iterable[str]) -> Iterator[str]:
    """Yield lines; rows into which a terminal has broken one are put together."""
    line, pieces = "", 0
    for row in rows:
        if pieces < MOST_PIECES and (joined := _joined(line, row)):
            line, pieces = joined, pieces + 1
            continue
        yield line
        line, pieces = row, 0
    yield line


def _joined(line: str, row: str) -> str:
    """Return a line that reports acceptance and goes on in the next row; "" if it does not."""
    if not line or not row or _kind_of(row) or _is_of_load(row) or _BEGINS.search(row[:80]):
        return ""
    kind, both = _kind_of(line), (line + row, f"{line} {row}")
    if kind is None:  # its marker may be broken
        edges = (text[max(len(line) - _EDGE, 0) : len(line) + _EDGE] for text in both)
        return next((text for text, edge in zip(both, edges, strict=True) if _kind_of(edge)), "")
    found = (kind.fields[name].search(line) for name in _REPORTED if name in kind.fields)
    if all(match is not None and match.end() < len(line.rstrip()) for match in found):
        return ""
    return max(both, key=lambda text: len(_fields_of(kind, text)))


def _is_server_log(file: ResultFile) -> bool:
    texts = [file.text.replace("\n", filling) for filling in ("", " ")]  # a marker may be broken
    if not any(kind.marker in text for kind in KINDS for text in texts):
        return False
    try:
        return any(True for _ in _lines(rows_of(file)))
    except BadFigureError:
        return True


def _lines(rows: Iterable[str]) -> Iterator[tuple[_Kind, LogLine]]:
    """Yield the lines that report acceptance, in order, each with its kind."""
    carried: dict[tuple[str, ...], dict[str, float]] = {}
    engines: dict[tuple[str, ...], str] = {}
    settings: dict[tuple[str, ...], tuple[str, ...]] = {}
    for row in _unbroken(rows):
        kind, start = _kind_of(row), next((mark for mark in _STARTS if mark in row), "")
        if not (kind or start or _is_of_load(row)):
            continue
        head, marker = row[:300], kind.marker if kind else start
        words = _words_before(head, marker)
        server = _words_before(_ACTOR.sub("", head), marker)
        if start:
            settings[server] = tuple(_SETTING.findall(row))
            continue
        source = (_replica(head), *words)
        if engine := _ENGINE.search(head):
            engines[source] = f"engine {int(engine[1])}"
        if kind is None:
            near = {name: m for name, p in _CARRIED.items() if (m := p.search(row))}
            values = {name: float(match[match.lastindex or 1]) for name, match in near.items()}
            carried.setdefault(source, {}).update(values)
            continue
        if (line := kind.read(_fields_of(kind, row))) is None:
            continue
        when = _WHEN.search(head)
        yield (
            kind,
            replace(
                line,
                when=when[0] if when else "",
                replica=source[0],
                words=words,
                settings=settings.get(server, ()),
                engine=engines.get(source, ""),
                quantities={**carried.get(source, {}), **line.quantities},
            ),
        )


_STARTS = ("LLM engine (v", "server_args=ServerArgs(")
"""Parts of the lines in which vLLM and SGLang print their settings at their start."""
_SETTING = re.compile(r"\b((?:speculative_\w{1,40}|method|model|model_path)=[^,()]{1,300})")
_PROGRAM = re.compile(r"\[?[a-z_]{1,40}\.py:[0-9]|Engine [0-9]{3}|slot |srv ")
"""Beginning of what a server itself writes into a line."""
_BREAK = re.compile(r"[\s\",]+|:(?=[(\[A-Z]|[0-9]{4}-)")
"""Space, the separator of a table's columns, or grep's colon after the name of a file."""
_NO_NAME = re.compile(r"[\d:.,+TZ/-]*|(?:TP|PP|EP|DP)[0-9]+|[A-Z][a-z]{2}")
"""Time, rank, or name of a day or month."""


def _words_before(head: str, marker: str) -> tuple[str, ...]:
    """Return the words before what a server itself writes, without times."""
    found = _PROGRAM.search(head)
    end = found.start() if found else max(head.find(marker), 0)
    words = (
        re.sub(r"\[[0-9]+\]", "", word).strip("[]()<>|›:,") for word in _BREAK.split(head[:end])
    )
    return tuple(word for word in words if not _NO_NAME.fullmatch(word))


def _by_settings(lines: Lines) -> dict[str, Lines]:
    """Return the lines of one server by what it was started with, and by the number of their rates,
    where these change: lengths of two drafters, or of two Ks, do not compare. llama.cpp has as many
    rates as a request drafted."""
    k = next((len(line.rates) for _, line in lines if line.rates), 0)
    groups: dict[tuple[str, ...], Lines] = {}
    for kind, line in lines:
        k = len(line.rates) if kind.marker == _V1 and line.rates else k
        groups.setdefault((*line.settings, f"K = {k}"), []).append((kind, line))
    return _by_difference(groups)


def _by_words(lines: Lines) -> dict[str, Lines]:
    """Return the lines by the words before them, where these look like names: few, each of several
    lines. Otherwise all lines are one server's."""
    groups: dict[tuple[str, ...], Lines] = {}
    for kind, line in lines:
        groups.setdefault(line.words, []).append((kind, line))
    return (
        _by_difference(groups)
        if min(map(len, groups.values())) >= FEWEST_OF_A_NAME
        else {"": lines}
    )


def _by_difference(groups: Mapping[tuple[str, ...], Lines]) -> dict[str, Lines]:
    """Return groups of lines by those of their words that the others do not have."""
    alike = set.intersection(*map(set, groups))
    return {
        " ".join(word for word in words if word not in alike): some
        for words, some in groups.items()
    }


def _replica(head: str) -> str:
    """Return the names of the container, actor and rank that wrote a line; "" without any."""
    source = _SOURCE.match(head)
    actor, rank = _ACTOR.search(head), _RANK.search(head.partition("]")[0])
    names = (
        next(filter(None, source.groups()), "") if source else "",
        actor[1] if actor else "",
        f"DP{rank[1]}" if rank else "",
    )
    return " ".join(filter(None, names))


@reader(
    name="server-log",
    title="log of an SGLang (0.5), vLLM (V0 and V1), LMDeploy (0.18) or llama.cpp server",
    gives="acceptance length by replica and over time, rates by position (not SGLang), tokens; an "
    "interval over requests (llama.cpp; SGLang with --log-requests)",
    lacks="times; SGLang's decode lines have no counts",
    recognises=_is_server_log,
    marks=(
        ("Decode batch", "accept len:"),
        ("Avg generation throughput:", "SpecDecoding metrics:"),
        ("SpecDecoding metrics:", "Accepted:", "Drafted:"),
        ("slot print_timing:", "draft acceptance"),
    ),
)
def server_log(file: ResultFile) -> Iterator[Figures]:
    """Read logs of SGLang, vLLM, LMDeploy and llama.cpp servers; sources: see KINDS.

    One figure for each replica, the worst first, and for each drafter of llama.cpp.
    """
    every = list(_lines(rows_of(file)))
    if _is_backward([line for _, line in every]):  # as consoles of collectors show and save it
        every = list(_lines(reversed(list(rows_of(file)))))
    restores = _RESTORES in file.text or any(line.none_refused for _, line in every)
    engines = len({line.engine for _, line in every if line.engine}) > 1
    by_replica: dict[str, Lines] = {}
    for kind, line in every:
        if not line.drafter:
            name = f"{line.replica} {line.engine}".strip() if engines else line.replica
            by_replica.setdefault(name, []).append((kind, line))
    if len(by_replica) == 1:
        by_replica = _by_words(next(iter(by_replica.values())))
    by_replica = {
        f"{name} {part}".strip(): those
        for name, some in by_replica.items()
        for part, those in _by_settings(some).items()
    }
    found = [
        _counting_all(
            _figures(some, part=(name or "without a name") if len(by_replica) > 1 else ""), restores
        )
        for name, some in by_replica.items()
    ]
    yield from sorted(found, key=lambda figures: figures.mean_length or MOST_LENGTH)
    last = {line.drafter: (kind, line) for kind, line in every if line.drafter}
    for name, pair in last.items():
        figures = replace(_figures([pair], part=name), changes=(), log_lines=None)
        yield _counting_all(figures, restores)


def _is_backward(lines: Sequence[LogLine]) -> bool:
    """Return whether the newest lines come first."""
    steps = [(a.when, b.when) for a, b in pairwise(lines) if a.replica == b.replica]
    return sum(b < a for a, b in steps) > sum(b > a for a, b in steps)


def _counting_all(figures: Figures, restores: bool) -> Figures:
    """Return the figures of a log; without acceptance where refused rounds are not counted."""
    if not restores or (figures.accepted or 0) < WHOLE * (figures.verified or 1):
        return figures
    return Figures(
        part=figures.part,
        requests=figures.requests,
        accepted=figures.accepted,
        contradictions=(_REFUSALS_LEFT_OUT,),
    )


def _figures(every: Sequence[tuple[_Kind, LogLine]], part: str) -> Figures:
    requests = [line for _, line in every if line.request is not None]
    series = [line for line in _increases(every) if line.request is None]
    kinds = dict.fromkeys(kind.note for kind, line in every)
    lines = series or requests
    changes = changes_told(lines)
    if requests:
        figures = over_requests([line.request for line in requests if line.request], part=part)
        note = next(kind.note for kind, _ in every if kind.marker == _FINISH)
        assumptions = (*figures.assumptions, note)
        return replace(figures, **changes, assumptions=assumptions)
    exact = [line for line in series if line.verified is not None]
    series = [line for line in exact if line.verified] or exact or series
    series, words = _without_unknown_rounds(series)
    figures = _figures_of_lines(series, part)
    if every[0][0].marker == "draft acceptance" and all(line.rounds for line in series):
        figures = replace(
            over_requests(
                [
                    RequestCounts(
                        rounds=round(line.rounds or 0),
                        accepted=line.accepted or 0,
                        verified=line.verified,
                    )
                    for line in series
                ],
                part=part,
            ),
            k=figures.k,
            marginal=figures.marginal,
        )
    return replace(
        figures,
        period=SINCE_START if every[0][0].cumulative else THIS_RUN,
        requests=len(series) if every[0][0].marker == "draft acceptance" else None,
        assumptions=(*figures.assumptions, *kinds, *words),
        **changes,
    )


def _increases(every: Sequence[tuple[_Kind, LogLine]]) -> Iterator[LogLine]:
    """Yield lines that count since the server's start as increases; the others as they are."""
    before: dict[str, LogLine] = {}
    for kind, line in every:
        old = before.get(kind.marker + line.drafter) if kind.cumulative else None
        if kind.cumulative:
            before[kind.marker + line.drafter] = line
        if old is None or (line.verified or 0) < (old.verified or 0):  # a restart counts from 0
            yield _with_length(line)
            continue
        rounds = (line.rounds or 0.0) - (old.rounds or 0.0)
        accepted = (line.accepted or 0) - (old.accepted or 0)
        if rounds > 0 and accepted >= 0:
            verified = (line.verified or 0) - (old.verified or 0)
            yield _with_length(
                replace(line, rounds=rounds, accepted=accepted, verified=verified, length=None)
            )


def _with_length(line: LogLine) -> LogLine:
    if line.length is not None or not line.rounds or line.accepted is None:
        return line
    return replace(line, length=1.0 + line.accepted / line.rounds)


def _without_unknown_rounds(lines: Sequence[LogLine]) -> tuple[list[LogLine], tuple[str, ...]]:
    """Return lines that accepted nothing, and say no K, with the rounds of the others' drafts."""
    known = [line for line in lines if line.rounds and line.verified]
    dark = sum(_without_rounds(line) for line in lines)
    if not dark or not known:
        return list(lines), ()
    drafted = sum(line.verified or 0 for line in known) / sum(line.rounds or 0.0 for line in known)
    filled = [
        replace(line, rounds=(line.verified or 0) / drafted) if _without_rounds(line) else line
        for line in lines
    ]
    words = (
        f"{number_of(dark, 'line')} accepted nothing, and a round there is taken to have drafted "
        f"{drafted:.1f} tokens, as in the other lines"
    )
    return filled, (words,)


def _without_rounds(line: LogLine) -> bool:
    return line.rounds is None and bool(line.verified) and line.accepted == 0


def _figures_of_lines(lines: Sequence[LogLine], part: str) -> Figures:
    rounds = [line.rounds for line in lines if line.rounds is not None]
    counted = len(rounds) == len(lines) and bool(rounds)
    lengths = [line for line in lines if line.length is not None]
    ks = {line.k for line in lines if line.k is not None}
    k = max(ks) if ks and (counted or len(ks) == 1) else _k_of_rates(lines)
    mean = None
    if lengths and len(lengths) == len(lines):
        weights = [line.weight for line in lengths]
        mean = fmean([line.length or 1.0 for line in lengths], weights if any(weights) else None)
    accepted = [line.accepted for line in lines if line.accepted is not None]
    verified = [line.verified for line in lines if line.verified is not None]
    return Figures(
        part=part,
        k=k,
        rounds=round(sum(rounds)) if counted else None,
        accepted=sum(accepted) if accepted else None,
        verified=sum(verified) if verified else None,
        mean_length=mean,
        marginal=_mean_rates(lines),
    )


def _k_of_rates(lines: Sequence[LogLine]) -> int | None:
    """Return the K with which all lengths and rates of SGLang's lines agree: rates are those of
    length - 1 and K, or in older versions of length and K + 1; None if they agree with two."""
    pairs = [(line.length, line.rate) for line in lines if line.length and line.rate is not None]
    ks = set[int]()
    for own in (1, 0):  # whether the target's own token is left out
        likely = {round((length - own) / rate) for length, rate in pairs if rate >= LEAST_RATE}
        ks |= {
            n - 1 + own
            for n in likely
            if all(abs(n * rate - (length - own)) <= ROUNDED * (n + 1) for length, rate in pairs)
        }
    return ks.pop() if len(ks) == 1 else None


def _mean_rates(lines: Sequence[LogLine]) -> tuple[float, ...] | None:
    """Return the rates by position over the rounds of all lines, or over lines that count none;
    None unless all have some."""
    deepest = max((len(line.rates) for line in lines), default=0)
    total = sum(line.weight for line in lines)
    if not deepest or not total or any(not line.rates for line in lines):
        return None
    return tuple(
        sum(line.rates[at] * line.weight for line in lines if at < len(line.rates)) / total
        for at in range(deepest)
    )
