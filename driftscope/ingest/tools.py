"""Readers of result files of benchmark tools."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from driftscope.analysis.validity import RANDOM, TEXT
from driftscope.boundary.bounds import MAX_K
from driftscope.ingest.base import (
    MOST_LENGTH,
    OFF_BY,
    SINCE_START,
    THIS_RUN,
    BadFigureError,
    Figures,
    Histogram,
    RequestCounts,
    ResultFile,
    accepted_in,
    count,
    counts_of,
    histogram_of,
    inner,
    length,
    marginal_of,
    milliseconds,
    most_k,
    number,
    numbers,
    objects,
    over_requests,
    reader,
    share,
)
from driftscope.ingest.server_log import rows_of
from driftscope.trace.manifest import EXACT, rule_of_sglang

_RATES = "spec_decode_per_position_acceptance_rates"


_CONSOLE = {
    "Successful requests:": "completed",
    "Mean TTFT (ms):": "mean_ttft_ms",
    "Mean TPOT (ms):": "mean_tpot_ms",
    "Output token throughput (tok/s):": "output_throughput",
    "Acceptance length:": "spec_decode_acceptance_length",
    "Drafts:": "spec_decode_num_drafts",
    "Draft tokens:": "spec_decode_draft_tokens",
    "Accepted tokens:": "spec_decode_accepted_tokens",
    "Accept length:": "accept_length",
    "Concurrency:": "concurrency",
    # vllm/examples/offline_inference/spec_decode.py
    "mean acceptance length:": "spec_decode_acceptance_length",
    "num_drafts:": "spec_decode_num_drafts",
    "num_draft_tokens:": "spec_decode_draft_tokens",
    "num_accepted_tokens:": "spec_decode_accepted_tokens",
}
"""Words before a figure on the console, and the key of the same figure in the tool's JSON."""
_PRINTED = re.compile(r"([A-Za-z][\w ()/%]{1,60}:) {0,60}([0-9]{1,18}(?:\.[0-9]{1,9})?) {0,60}$")
_AT = re.compile(r"(?:Position|acceptance at token) ([0-9]{1,4}):")


def _runs(file: ResultFile) -> Sequence[Mapping[str, Any]]:
    """Return the runs of a benchmark: JSON objects, or what the tool printed on the console. A
    figure that is printed again begins another run."""
    if file.objects:
        return file.objects
    runs: list[dict[str, Any]] = []
    ids: set[str] = set()
    for row in rows_of(file):
        if (match := _PRINTED.search(row.rstrip()[-200:])) is None:
            continue
        words, value = match[1].removeprefix("Z ").lstrip(), float(match[2])  # after Docker's time
        at = _AT.fullmatch(words)
        if words not in _CONSOLE and at is None:
            continue
        if words in ids or not runs:
            runs.append({})
            ids = set()
        ids.add(words)
        if at is None:
            runs[-1][_CONSOLE[words]] = value
        else:
            # vLLM prints percent, its example shares.
            rate = value / 100.0 if words.startswith("Position") else value
            runs[-1].setdefault(_RATES, []).append(rate)
    return runs


_AVERAGE = "avg_spec_accept_length"


def _sglang_ranks(info: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return each rank of a server's answer to GET /server_info as a run without times."""
    states = info.get("internal_states")
    return [
        {"accept_length": state[_AVERAGE], "server_info": info}
        for state in (states if isinstance(states, list) else ())
        if isinstance(state, dict) and state.get(_AVERAGE) is not None
    ]


def _is_sglang_bench(file: ResultFile) -> bool:
    runs = _runs(file)
    if _sglang_ranks(file.fields):
        return True
    return bool(runs) and "accept_length" in runs[0] and _TIMES & runs[0].keys() != set()


def _is_vllm_bench(file: ResultFile) -> bool:
    runs = _runs(file)
    if not runs or "accept_length" in runs[0] or "input_config" in runs[0]:
        return False
    speculated = {_RATES, "spec_decode_acceptance_length"} & runs[0].keys()
    return bool(speculated or ("mean_ttft_ms" in runs[0] and _TIMES & runs[0].keys()))


_TIMES = frozenset({"mean_tpot_ms", "median_itl_ms", "total_input_tokens", "completed"})


@reader(
    name="vllm-bench",
    marks=(
        ("mean_ttft_ms", "mean_tpot_ms", "completed"),
        ("Serving Benchmark Result", "Acceptance length:"),
        ("mean acceptance length:", "num_drafts:"),
    ),
    title="vLLM `bench serve` (0.33), saved or printed, or of its form: MAX, vLLM's spec_decode.py",
    gives="acceptance length, rates by position, tokens, times",
    lacks="intervals: sums over the run only",
    recognises=_is_vllm_bench,
)
def vllm_bench(file: ResultFile) -> Iterator[Figures]:
    """Read `vllm bench serve` (vLLM 0.33): one JSON object per run, or its text.

    Source: vllm/benchmarks/serve.py and examples/offline_inference/spec_decode.py. The spec_decode
    keys are absent without speculation. Modular's MAX writes two of them, without counts.
    """
    runs = _runs(file)
    for at, fields in enumerate(runs):
        rates = fields.get(_RATES)
        marginal = None if not rates else numbers(rates, _RATES, 1.0)
        yield Figures(
            part=f"run {at + 1}" if len(runs) > 1 else "",
            k=None if marginal is None else len(marginal),
            requests=count(fields, "completed"),
            rounds=count(fields, "spec_decode_num_drafts"),
            verified=count(fields, "spec_decode_draft_tokens"),
            accepted=count(fields, "spec_decode_accepted_tokens"),
            mean_length=length(fields, "spec_decode_acceptance_length"),
            marginal=marginal,
            ttft_s=milliseconds(fields, "mean_ttft_ms"),
            tpot_s=milliseconds(fields, "mean_tpot_ms"),
            output_tokens_per_s=number(fields, "output_throughput"),
            assumptions=("K is the number of its rates by position",) if marginal else (),
        )


_SGLANG_PROMPTS = {
    **dict.fromkeys(("random-ids", "generated-shared-prefix"), RANDOM),
    **dict.fromkeys(("random", "sharegpt", "longbench_v2", "mooncake", "speed-bench"), TEXT),
}
"""Content of the prompts of a data set; "random" cuts ShareGPT's texts to a random length
(sglang/benchmark/datasets)."""
_SINCE = (
    "its acceptance length is the server's since its start, not this run's; times are the run's"
)


@reader(
    name="sglang-bench",
    marks=(
        ("accept_length", "median_itl_ms", "completed"),
        ("Serving Benchmark Result", "Accept length:"),
        ("internal_states", "avg_spec_accept_length"),
    ),
    title="SGLang bench_serving, or its GET /server_info (0.5.23)",
    gives="acceptance length since the server's start, times of the run",
    lacks="rates by position, counts, the run's own acceptance",
    recognises=_is_sglang_bench,
)
def sglang_bench(file: ResultFile) -> Iterator[Figures]:
    """Read SGLang's bench_serving (0.5.23): one JSON line per run, or its text; or what its server
    answers to GET /server_info.

    Source: sglang/benchmark/serving.py. Its accept_length is the server's mean since its start.
    """
    ranks = _sglang_ranks(file.fields)
    runs, what = (ranks, "rank") if ranks else (_runs(file), "run")
    for at, fields in enumerate(runs):
        accepted = length(fields, "accept_length")
        server = inner(fields, "server_info")
        rule = rule_of_sglang(server)
        relaxed = f"drafts were verified by another rule than the exact one: {rule}"
        lengths = [length(rank, "accept_length") or 0.0 for rank in _sglang_ranks(server)]
        differ = not ranks and lengths and max(lengths) - min(lengths) > OFF_BY
        between = ", ".join(f"{one:.2f}" for one in lengths)
        yield Figures(
            part=f"{what} {at + (not ranks)}" if len(runs) > 1 else "",
            period=THIS_RUN if accepted is None else SINCE_START,
            k=None
            if accepted is None or server.get("speculative_adaptive")
            else count(server, "speculative_num_steps", MAX_K),
            requests=count(fields, "completed"),
            mean_length=accepted,
            ttft_s=milliseconds(fields, "mean_ttft_ms"),
            tpot_s=milliseconds(fields, "mean_tpot_ms"),
            output_tokens_per_s=number(fields, "output_throughput"),
            prompts=_SGLANG_PROMPTS.get(str(fields.get("dataset_name"))),
            observations=(f"the length is that of the first of its ranks: {between}",)
            if differ
            else (),
            assumptions=()
            if accepted is None
            else (_SINCE, *(() if rule == EXACT else (relaxed,))),
        )


_SPEC = "spec_decode_acceptance"


_TO_S = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9, "s": 1.0}


_MADE_UP = "llamacpp"
"""Engine for which AIPerf spreads accepted tokens over made-up rounds."""


@reader(
    name="aiperf-records",
    marks=(("metadata", "metrics", "spec_decode_acceptance"),),
    title="AIPerf profile_export.jsonl (0.13)",
    gives="acceptance length with interval, rates by depth, times, per request",
    lacks="acceptance of llama.cpp, whose rounds AIPerf makes up",
    recognises=lambda file: any(
        inner(row, "metadata") and "metrics" in row for row in file.objects[:10]
    ),
)
def aiperf_records(file: ResultFile) -> Iterator[Figures]:
    """Read AIPerf's `profile_export.jsonl` (0.13): one line per request.

    Source: ai-dynamo/aiperf, src/aiperf/common/models/spec_decode_models.py. inter_token_latency is
    (latency - time to first token) / (tokens - 1).
    """
    specs = [row for row in file.objects if inner(row, _SPEC)]
    real = [row for row in specs if inner(row, _SPEC).get("engine") != _MADE_UP]
    left_out = (
        f"{len(specs) - len(real)} requests of llama.cpp are left out: AIPerf makes up rounds"
    )
    yield over_requests(
        [
            replace(
                counts_of(inner(row, _SPEC)),
                ttft_s=_time(row, "time_to_first_token"),
                tpot_s=_time(row, "inter_token_latency"),
            )
            for row in real
        ],
        k=most_k(inner(row, _SPEC) for row in real),
        number=len(file.objects),
        ttft_s=[_time(row, "time_to_first_token") for row in file.objects],
        tpot_s=[_time(row, "inter_token_latency") for row in file.objects],
        assumptions=(left_out,) if len(real) < len(specs) else (),
    )


def _time(record: Mapping[str, Any], name: str) -> float | None:
    metric = inner(inner(record, "metrics"), name)
    value = number(metric, "value")
    if value is None:
        return None
    unit = str(metric.get("unit"))
    if unit not in _TO_S:
        raise BadFigureError(f"{name} has the unit {unit[:20]!r}")
    return value * _TO_S[unit]


_AIPERF_HISTOGRAM = "pooled_spec_decode_acceptance_histogram"


_WEIGHTED = re.compile(r"Token-Weighted Acceptance Length[^0-9\n]{1,80}([0-9]{1,4}\.[0-9]{1,6})")
_BY_REQUEST = re.compile(r"(?<!Weighted )Acceptance Length[^0-9\n]{1,80}([0-9]{1,4}\.[0-9]{1,6})")
_STEPS = re.compile(r"Accepted drafts per step \(% of steps\): ([0-9:%>= ]{1,1000})")
_BUCKET = re.compile(r"(>=)?([0-9]{1,4}): ([0-9]{1,3})%")


_IGNORING = re.compile(r"ignore_eos\W{1,5}true|min_tokens", re.IGNORECASE)


def _is_aiperf_summary(file: ResultFile) -> bool:
    if file.fields:
        known = {"time_to_first_token", "request_latency", _AIPERF_HISTOGRAM} & file.fields.keys()
        return "input_config" in file.fields and bool(known)
    return file.document is None and _WEIGHTED.search(file.text) is not None


@reader(
    name="aiperf-summary",
    marks=(
        ("input_config", "request_latency"),
        ("NVIDIA AIPerf", "Token-Weighted Acceptance Length"),
    ),
    title="AIPerf profile_export_aiperf.json, or what it printed (0.13)",
    gives="acceptance length over rounds and over requests, rates by depth, times",
    lacks="intervals: give the records",
    recognises=_is_aiperf_summary,
)
def aiperf_summary(file: ResultFile) -> Iterator[Figures]:
    """Read AIPerf's `profile_export_aiperf.json` (0.13), one JSON object per run, or its console.

    Source: ai-dynamo/aiperf, docs/tutorials/spec-decode-metrics.md and
    exporters/console_spec_decode_exporter.py. Rates are in percent, and
    spec_decode_acceptance_length is the mean of the requests.
    """
    fields = file.fields
    if not fields:
        yield _printed_by_aiperf(file.text)
        return
    histogram = histogram_of(fields.get(_AIPERF_HISTOGRAM), _AIPERF_HISTOGRAM)
    steps, accepted = _total(fields, "total_spec_decode_steps"), None
    if steps is not None:
        accepted = _total(fields, "total_accepted_draft_tokens")
    yield Figures(
        requests=_total(fields, "request_count"),
        rounds=steps,
        accepted=accepted,
        verified=_total(fields, "total_draft_tokens"),
        mean_length_by_request=_mean(fields, "spec_decode_acceptance_length", MOST_LENGTH),
        marginal=marginal_of(histogram) or None if histogram is not None else None,
        ttft_s=_seconds(fields, "time_to_first_token"),
        tpot_s=_seconds(fields, "inter_token_latency"),
        output_tokens_per_s=_mean(fields, "output_token_throughput"),
        **_asked_by_aiperf(fields),
    )


def _asked_by_aiperf(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what AIPerf's prompts are made of: unless a data set says otherwise, pieces of
    Shakespeare (docs/reference/prompt-corpus-selection.md); and whether answers went on after their
    end, which it asks for only if it is told to."""
    config, command = inner(fields, "input_config"), inner(fields, "run_info").get("cli_command")
    corpora = {
        str(inner(data, "prompts").get("corpus") or data.get("type"))
        for data in objects(config, "datasets")
    }
    kinds = {RANDOM if name == "random" else TEXT for name in corpora}
    return {
        "prompts": kinds.pop() if len(kinds) == 1 else None,
        "ignores_stop": _IGNORING.search(f"{config.get('endpoint')} {command}") is not None
        if config
        else None,
    }


def _printed_by_aiperf(text: str) -> Figures:
    """Return the figures of the console's section on speculation. Rates by depth are left out if
    its last bucket holds all rounds of 8 tokens or more, or if whole percent are too coarse."""
    lengths = [pattern.search(text) for pattern in (_WEIGHTED, _BY_REQUEST)]
    weighted, by_request = (float(match[1]) if match else None for match in lengths)
    line = _STEPS.search(text)
    shares = [int(share) / 100.0 for _, _, share in _BUCKET.findall(line[1])] if line else []
    reached = [min(sum(shares[depth:]), 1.0) for depth in range(1, len(shares))]
    if (line and ">=" in line[1]) or abs(1.0 + sum(reached) - (weighted or 0.0)) > OFF_BY:
        reached = []
    return Figures(
        mean_length=weighted,
        mean_length_by_request=by_request,
        marginal=tuple(reached) or None,
        assumptions=("rates by depth are sums of shares that are printed as whole percent",)
        if reached
        else (),
    )


def _mean(fields: Mapping[str, Any], name: str, most: float = 1e15) -> float | None:
    return number(inner(fields, name), "avg", most)


def _total(fields: Mapping[str, Any], name: str) -> int | None:
    return count(inner(fields, name), "avg")


def _seconds(fields: Mapping[str, Any], name: str) -> float | None:
    value = _mean(fields, name)
    return None if value is None else value / 1000.0


_TTFT, _ITL = "Time to First Token", "Inter Token Latency"
_IN_CSV = {
    ("Benchmark", "Strategy", ""): "part",
    ("Request Counts", "Successful", ""): "requests",
    (_TTFT, "Successful ms", "Mean"): "ttft",
    (_ITL, "Successful ms", "Mean"): "itl",
    ("Token Throughput", "Successful Output Tokens/Sec", "Mean"): "throughput",
}
_ON_CONSOLE = {
    ("Benchmark", "Strategy", ""): "part",
    ("Requests", "Comp", "Tot"): "requests",
    ("TTFT", "ms", "Mean"): "ttft",
    ("ITL", "ms", "Mean"): "itl",
    ("Output Tokens", "Per Sec", "Mean"): "throughput",
}
"""The three lines above a column, and what it holds."""
_DECIMAL = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,20})?")


def _is_guidellm(file: ResultFile) -> bool:
    if file.document is not None:
        return isinstance(file.fields.get("benchmarks"), list)
    return f",{_TTFT}," in file.text[:MAX_HEAD] or "Request Latency Statistics" in file.text


MAX_HEAD = 1 << 16
"""Characters at a table's beginning that hold its first line."""


@reader(
    name="guidellm",
    marks=(
        ("benchmarks", "requests", "successful"),
        (f",{_TTFT},", f",{_ITL},"),
        ("Request Latency Statistics", "| TTFT"),
    ),
    title="guidellm benchmarks.json or .csv, or what it printed (0.4 to 0.8)",
    gives="times per request; in JSON from 0.8 on acceptance length with interval, rates by depth",
    lacks="acceptance before 0.8, and in its CSV and on its console",
    recognises=_is_guidellm,
)
def guidellm_report(file: ResultFile) -> Iterator[Figures]:
    """Read guidellm's `benchmarks.json` (0.4 to 0.8), its CSV or its console: one part per
    benchmark.

    inter_token_latency_ms leaves out the first token. Acceptance is there from 0.8.0 on, as vLLM's
    per-request metrics in response_metrics. Tables: benchmark/outputs/csv.py and console.py.
    """
    if file.document is None:
        yield from _guidellm_tables(file.text)
        return
    benchmarks = objects(file.fields, "benchmarks")
    spec = inner(inner(file.fields, "config"), "spec")
    # Its handlers of requests set ignore_eos wherever a number of output tokens is given.
    forced = [data.get("output_tokens") for data in objects(spec, "data")]
    for at, benchmark in enumerate(benchmarks):
        done = objects(inner(benchmark, "requests"), "successful")
        speculated = [row for row in done if "num_spec_steps" in _spec(row)]
        yield over_requests(
            [
                replace(
                    counts_of(_spec(row)),
                    ttft_s=milliseconds(row, "time_to_first_token_ms"),
                    tpot_s=milliseconds(row, "inter_token_latency_ms"),
                )
                for row in speculated
            ],
            k=most_k(_spec(row) for row in speculated),
            part=f"benchmark {at + 1}" if len(benchmarks) > 1 else "",
            number=len(done),
            ttft_s=[milliseconds(row, "time_to_first_token_ms") for row in done],
            tpot_s=[milliseconds(row, "inter_token_latency_ms") for row in done],
            ignores_stop=True if any(forced) else None,
        )


def _guidellm_tables(text: str) -> Iterator[Figures]:
    """Yield the times of each benchmark of a CSV, or of the tables on a console."""
    found: dict[str, dict[str, float]] = {}
    for table in _tables(text):
        heads, names = zip(*table[:3], strict=False), _IN_CSV | _ON_CONSOLE
        columns = [names.get(tuple(head)) for head in heads]
        for row in table[3:]:
            cells = dict(zip(columns, row, strict=False))
            part = found.setdefault(cells.pop("part", ""), {})
            for name, cell in cells.items():
                if name is not None and (value := _DECIMAL.match(cell)):
                    part[name] = float(value[0])
    for name, fields in found.items():
        yield Figures(
            part=name,
            requests=count(fields, "requests"),
            ttft_s=milliseconds(fields, "ttft"),
            tpot_s=milliseconds(fields, "itl"),
            output_tokens_per_s=number(fields, "throughput"),
        )


def _tables(text: str) -> Iterator[list[list[str]]]:
    """Yield tables as rows of cells: a CSV, or those between rules on a console, where a cell of no
    width goes on with the one before it."""
    if f",{_TTFT}," in text[:MAX_HEAD]:
        try:
            yield list(csv.reader(io.StringIO(text)))
        except csv.Error as error:
            raise BadFigureError(f"not a table of commas ({error})") from error
        return
    heads, rows = list[list[str]](), list[list[str]]()
    for line in [*text.splitlines(), ""]:
        if line.startswith("|="):
            yield from [heads + rows] * bool(rows)
            heads, rows = [], []
        elif line.startswith("|-"):
            heads, rows = rows, []
        elif line.startswith("|"):
            rows.append(_spread(line.strip()[1:-1].split("|")))


def _spread(cells: Sequence[str]) -> list[str]:
    filled = list[str]()
    for cell in cells:
        filled.append(cell.strip() if cell or not filled else filled[-1])
    return filled


def _spec(request: Mapping[str, Any]) -> Mapping[str, Any]:
    return inner(inner(request, "response_metrics"), "speculative_decoding")


_LENGTHS = "accept_lengths"


def _choices(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = fields.get("choices")
    return list(objects(fields, "choices")) if isinstance(found, list) else []


@reader(
    name="spec-bench",
    marks=(("question_id", "choices", "accept_lengths"),),
    title="Spec-Bench answers",
    gives="acceptance length with interval over questions, rates by depth",
    lacks="verified tokens, times to the first token",
    recognises=lambda file: any(
        _LENGTHS in choice for row in file.objects[:10] for choice in _choices(row)
    ),
)
def spec_bench(file: ResultFile) -> Iterator[Figures]:
    """Read Spec-Bench's answers: one JSON line per question.

    Source: Spec-Bench, evaluation/eval.py. accept_lengths hold a length per round, with the
    target's own token; the file of a baseline holds ones.
    """
    yield over_requests(
        [_spec_bench_counts(row, choice) for row in file.objects for choice in _choices(row)[:1]],
        assumptions=("only the first answer of a question counts",),
    )


def _spec_bench_counts(question: Mapping[str, Any], choice: Mapping[str, Any]) -> RequestCounts:
    lengths = numbers(choice.get(_LENGTHS), _LENGTHS, MAX_K + 1)
    if any(value < 1 or value != int(value) for value in lengths):
        raise BadFigureError(f"{_LENGTHS} holds a value that is no number of tokens of a round")
    accepted = [int(value) - 1 for value in lengths]
    histogram: Histogram = tuple(accepted.count(at) for at in range(max(accepted, default=0) + 1))
    name = question.get("question_id")
    return RequestCounts(
        rounds=len(accepted),
        accepted=sum(accepted),
        histogram=histogram,
        question=None if name is None else f"question {str(name)[:100]}",
    )


def _is_eagle_answers(file: ResultFile) -> bool:
    choices = [choice for row in file.objects[:10] for choice in _choices(row)]
    return any("idxs" in row and "new_tokens" in row for row in choices)


@reader(
    name="eagle-answers",
    marks=(("choices", "idxs", "new_tokens"),),
    title="answers of the EAGLE repository's evaluation",
    gives="acceptance length with interval over questions",
    lacks="rates by depth, verified tokens",
    recognises=_is_eagle_answers,
)
def eagle_answers(file: ResultFile) -> Iterator[Figures]:
    """Read answers of the EAGLE repository's evaluation: one JSON line per question.

    Source: SafeAILab/EAGLE, eagle/evaluation. idxs is the index of the last round, so that a turn
    has idxs + 1 rounds, which yield new_tokens.
    """
    yield over_requests(
        [_eagle_counts(choice) for row in file.objects for choice in _choices(row)[:1]],
        assumptions=("a turn has idxs + 1 rounds; only the first answer of a question counts",),
    )


def _eagle_counts(choice: Mapping[str, Any]) -> RequestCounts:
    last, tokens = (numbers(choice.get(name), name) for name in ("idxs", "new_tokens"))
    if len(last) != len(tokens):
        raise BadFigureError("idxs and new_tokens have different numbers of turns")
    rounds = sum(int(index) + 1 for index in last)
    # A cut end has fewer tokens than rounds would yield; a round yields at least one.
    return RequestCounts(rounds=rounds, accepted=max(int(sum(tokens)) - rounds, 0))


_NO_STEPS = "it names no number of steps: 1.00 is also what it writes without speculation"
_COUNTED = "accept_length is completion tokens / verifications: it counts the prefill's token"


def _entries(file: ResultFile) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, entries in file.fields.items():
        if isinstance(entries, list):
            yield from ((name, row) for row in entries if isinstance(row, dict))


@reader(
    name="specforge",
    marks=(("steps", "topk", "metrics", "accept_length"),),
    title="SpecForge bench_eagle3 results (0.2)",
    gives="acceptance length and throughput of each benchmark",
    lacks="counts, rates by position, intervals",
    recognises=lambda file: any("steps" in row and "metrics" in row for _, row in _entries(file)),
)
def specforge_results(file: ResultFile) -> Iterator[Figures]:
    """Read SpecForge's bench_eagle3 (0.2): one JSON object with a list for each benchmark.

    accept_length is completion tokens / verifications, and 1.0 also where the server did not
    speculate.
    """
    for name, entry in _entries(file):
        for metrics in objects(entry, "metrics"):
            yield Figures(
                part=f"{name}, batch {count(entry, 'batch_size')}",
                k=(k := count(entry, "steps")),
                requests=count(entry, "num_samples"),
                mean_length=length(metrics, "accept_length"),
                output_tokens_per_s=number(metrics, "output_throughput"),
                assumptions=(
                    _COUNTED,
                    "K is its number of steps" if k else _NO_STEPS,
                ),
            )


_HEAD = "subset,num_drafts"
_POSITION = re.compile(r"acceptance_at_pos_([0-9]{1,4})")


@reader(
    name="speculators",
    marks=(("subset,", "num_drafts,", "acceptance_length"),),
    title="speculators acceptance.csv (0.9)",
    gives="acceptance length, rates by position and tokens of each subset",
    lacks="times, intervals",
    recognises=lambda file: file.text.lstrip("\ufeff").startswith(_HEAD),
)
def speculators_csv(file: ResultFile) -> Iterator[Figures]:
    """Read `acceptance.csv` of speculators' scripts/evaluate (0.9): one row per subset.

    acceptance_length is 0 where nothing was drafted, and acceptance_at_pos_0 is the rate at depth
    1.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(file.text.lstrip("\ufeff"))))
    except csv.Error as error:
        raise BadFigureError(f"not a table of commas ({error})") from error
    for row in rows:
        fields = {name: _typed_value(name, text) for name, text in row.items() if name}
        accepted = length(fields, "acceptance_length")
        marginal = _marginal(fields)
        yield Figures(
            part=str(row.get("subset") or ""),
            k=len(marginal) or None,
            rounds=count(fields, "num_drafts"),
            verified=count(fields, "num_draft_tokens"),
            accepted=count(fields, "num_accepted_tokens"),
            mean_length=accepted or None,
            marginal=marginal or None,
        )


def _typed_value(name: str, text: Any) -> Any:
    if name == "subset" or not text:
        return None
    try:
        return float(text)
    except (TypeError, ValueError) as error:
        raise BadFigureError(f"{name} is {str(text)[:40]!r}, not a number") from error


def _marginal(fields: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the rates by position, as far as they follow one another."""
    by_position = {}
    for name in fields:
        if match := _POSITION.fullmatch(name):
            by_position[int(match[1])] = share(fields, name)
    rates: list[float] = []
    for at in range(MAX_K):
        rate = by_position.get(at)
        if rate is None:
            break
        rates.append(rate)
    return tuple(rates)


_SPEED_BENCH_HISTOGRAM = "Acceptance_Length_Histogram"


@reader(
    name="speed-bench",
    marks=(("Average_AL", "Request_AL"),),
    title="SPEED-Bench acceptance_rate.json",
    gives="acceptance length over rounds and over turns, rates by depth",
    lacks="verified tokens, times, intervals",
    recognises=lambda file: any(
        "Average_AL" in row and "Request_AL" in row for row in file.objects
    ),
)
def speed_bench(file: ResultFile) -> Iterator[Figures]:
    """Read `acceptance_rate.json` of SPEED-Bench, NVIDIA Model-Optimizer's specdec_bench.

    Keys of its histogram and rates are lengths with the target's own token: key 1 is a round of
    which nothing was accepted, and depth i is key i + 1. Absent keys are lengths that did not
    occur.
    """
    for at, fields in enumerate(file.objects):
        lengths = histogram_of(fields.get(_SPEED_BENCH_HISTOGRAM), _SPEED_BENCH_HISTOGRAM)
        # Length 0 does not occur: a round yields at least the target's own token.
        accepted = lengths[1:] if lengths else None
        yield Figures(
            part=f"run {at + 1}" if len(file.objects) > 1 else "",
            requests=len(inner(fields, "Request_AL")) or None,
            rounds=sum(accepted) if accepted else None,
            accepted=accepted_in(accepted) if accepted else None,
            mean_length_by_request=number(fields, "Average_AL", MOST_LENGTH),
            marginal=marginal_of(accepted) or None if accepted else None,
            assumptions=("Average_AL is the mean of turns, not of rounds",),
        )


_MARGINAL = "marginal_accept_rates"


@reader(
    name="speculation-profile",
    marks=(("num_speculative_tokens", "measured"),),
    title="speculation_profile.json 1.0 (NVIDIA Model-Optimizer)",
    gives="acceptance length over rounds and requests, rates by depth",
    lacks="tokens, times, intervals",
    recognises=lambda file: "num_speculative_tokens" in file.fields and "measured" in file.fields,
)
def speculation_profile(file: ResultFile) -> Iterator[Figures]:
    """Read `speculation_profile.json` 1.0 of NVIDIA's Model-Optimizer (#2247, #2313, #2315, #2316).

    mean_accept_length is over rounds, with the target's own token; measured: false marks a stub.
    """
    fields = file.fields
    if fields.get("measured") is not True:
        raise BadFigureError("measured is not true: the profile is a stub without figures")
    rates = fields.get(_MARGINAL)
    yield Figures(
        k=count(fields, "num_speculative_tokens"),
        mean_length=length(fields, "mean_accept_length"),
        mean_length_by_request=length(fields, "mean_accept_length_per_request"),
        marginal=None if rates is None else numbers(rates, _MARGINAL, 1.0),
    )


@reader(
    name="mlc",
    marks=(("spec_decode", "draft_count", "accept_count"),),
    title="MLC-LLM engine metrics (`/debug/dump_engine_metrics`)",
    gives="acceptance length, rates by depth, tokens",
    lacks="times, intervals",
    recognises=lambda file: "accept_count" in inner(file.fields, "spec_decode"),
)
def mlc_metrics(file: ResultFile) -> Iterator[Figures]:
    """Read MLC-LLM's engine metrics: counts by step since the engine's start.

    Source: mlc-llm, cpp/serve/metrics.cc and engine_actions/batch_verify.cc. A round counts its
    draft length + 1 steps, of which step 0 is the target's own token, always accepted.
    """
    fields = inner(file.fields, "spec_decode")
    drafted, accepted = (
        tuple(map(int, numbers(fields.get(name), name))) for name in ("draft_count", "accept_count")
    )
    if len(drafted) != len(accepted) or not drafted or len(drafted) > MAX_K + 1:
        raise BadFigureError("draft_count and accept_count differ in length, or are empty")
    if drafted[0] != accepted[0]:
        raise BadFigureError("step 0 is not the target's own token, which is always accepted")
    rounds = drafted[0]
    yield Figures(
        period=SINCE_START,
        k=len(drafted) - 1,
        rounds=rounds,
        verified=sum(drafted[1:]),
        accepted=sum(accepted[1:]),
        marginal=tuple(tokens / rounds for tokens in accepted[1:]) if rounds else None,
        assumptions=("step 0 is the target's own token; depth 1 is step 1",),
    )
