"""Readers of what engines answer and log about single requests and iterations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from driftscope.analysis.log_changes import (
    FEWEST_TOKENS,
    INTERVAL,
    MOST_INTERVALS,
    LineAcceptance,
)
from driftscope.ingest.base import (
    Figures,
    RequestCounts,
    ResultFile,
    accepted_in,
    changes_told,
    count,
    counts_of,
    histogram_of,
    inner,
    mean,
    milliseconds,
    most_k,
    number,
    objects,
    over_requests,
    reader,
    total,
)


def _spec(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return inner(inner(fields, "metrics"), "speculative_decoding")


@reader(
    name="vllm-requests",
    marks=(
        ("metrics", "speculative_decoding", "num_spec_steps"),
        ("chat.completion", "num_spec_steps"),
        ("text_completion", "num_spec_steps"),
    ),
    title="vLLM responses with --per-request-spec-decode-metrics (0.33)",
    gives="acceptance length with interval, rates by depth, per request",
    lacks="times",
    recognises=lambda file: any("num_spec_steps" in _spec(row) for row in file.objects[:100]),
)
def vllm_requests(file: ResultFile) -> Iterator[Figures]:
    """Read responses of vLLM with `--per-request-spec-decode-metrics` (0.33): JSON, or a line per
    response.

    Source: vLLM's docs/features/speculative_decoding/acceptance_metrics. The histogram counts
    rounds by accepted tokens, K + 1 entries.
    """
    speculated = [_spec(row) for row in file.objects if "num_spec_steps" in _spec(row)]
    yield over_requests(
        [counts_of(row) for row in speculated],
        k=most_k(speculated),
        number=len(file.objects),
    )


_HISTOGRAM = "spec_correct_drafts_histogram"


def _meta(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = fields.get("meta_info")
    return nested if isinstance(nested, dict) else fields


@reader(
    name="sglang-requests",
    marks=(("spec_verify_ct", "spec_correct_drafts_histogram"),),
    title="SGLang meta_info: responses, or --export-metrics-to-file (0.5.23)",
    gives="acceptance length with interval, rates by depth, per request",
    lacks="times",
    recognises=lambda file: any("spec_verify_ct" in _meta(row) for row in file.objects[:100]),
)
def sglang_requests(file: ResultFile) -> Iterator[Figures]:
    """Read SGLang's meta_info (0.5.23): responses of `/generate`, or lines of
    --export-metrics-to-file.

    Source: SGLang's observability/request_metrics_exporter.py. spec_accept_length divides by the
    verifications all tokens of the answer, the prefill's included, so the drafts are used.
    """
    speculated = [_meta(row) for row in file.objects if count(_meta(row), "spec_verify_ct")]
    yield over_requests(
        [_sglang_counts(row) for row in speculated],
        number=len(file.objects),
        assumptions=(
            "lengths are those of the drafts; spec_accept_length counts the prefill's token",
        ),
    )


def _sglang_counts(meta: Mapping[str, Any]) -> RequestCounts:
    """Return the counts of a request, with the names of 0.5.23 or the older ones. A histogram that
    does not fit the counts counts something else."""
    rounds = count(meta, "spec_verify_ct") or 0
    accepted, verified = (
        next((n for n in (count(meta, name) for name in names) if n is not None), None)
        for names in (
            ("spec_num_correct_drafts", "spec_accept_token_num"),
            ("spec_num_proposed_drafts", "spec_draft_token_num"),
        )
    )
    name = _HISTOGRAM if _HISTOGRAM in meta else "spec_accept_histogram"
    histogram = histogram_of(meta.get(name), name)
    if histogram is not None and (
        sum(histogram) != rounds or accepted not in (None, accepted_in(histogram))
    ):
        histogram = None
    if histogram is not None:
        accepted = accepted_in(histogram)
    elif accepted is None:
        # The prefill yields one token, which no round does.
        accepted = max((count(meta, "completion_tokens") or 0) - 1 - rounds, 0)
    return RequestCounts(rounds=rounds, accepted=accepted, verified=verified, histogram=histogram)


_STATS = "specDecodingStats"


@reader(
    name="trtllm-iterations",
    marks=(("iter", "iterLatencyMS", "specDecodingStats"),),
    title="TensorRT-LLM iteration statistics",
    gives="acceptance length, tokens",
    lacks="rates by position, intervals, times per token",
    recognises=lambda file: any(
        "iterLatencyMS" in row and "iter" in row for row in file.objects[:100]
    ),
)
def trtllm_iterations(file: ResultFile) -> Iterator[Figures]:
    """Read TensorRT-LLM's iteration statistics: the list of `GET /metrics`, or a line per
    iteration.

    Source: tensorrt_llm executor/types.h. acceptanceLength is (accepted + requests) / requests of
    one iteration, so the sums are used. With data-parallel attention a row of each rank may hold a
    copy of the first rank's.
    """
    by_rank: dict[Any, list[Mapping[str, Any]]] = {}
    for row in file.objects:
        if found := inner(row, _STATS):
            by_rank.setdefault(count(row, "attentionDpRank") or 0, []).append(found)
    ranks = list(by_rank.items())
    copies = all(stats == ranks[0][1] for _, stats in ranks)
    for rank, stats in ranks[: 1 if copies else None]:
        verified = total(stats, "numDraftTokens")
        # Each interval has enough draft tokens to tell acceptance.
        share = max(1 / MOST_INTERVALS, 2 * FEWEST_TOKENS / (verified or 1))
        size = math.ceil(len(stats) * share)
        lines = [_interval(stats[at : at + size]) for at in range(0, len(stats), size)]
        yield Figures(
            part="" if copies else f"rank {rank}",
            rounds=total(stats, "numRequestsWithDraftTokens"),
            verified=verified,
            accepted=total(stats, "numAcceptedTokens"),
            assumptions=("a round is a request with draft tokens in one iteration",),
            **changes_told(lines, INTERVAL),
        )


def _interval(stats: Sequence[Mapping[str, Any]]) -> LineAcceptance:
    rounds, accepted, verified = (
        total(stats, f"num{name}") or 0
        for name in ("RequestsWithDraftTokens", "AcceptedTokens", "DraftTokens")
    )
    return LineAcceptance(length=1.0 + accepted / rounds if rounds else None, verified=verified)


@reader(
    name="trtllm-bench",
    marks=(("decoding_stats", "acceptance_length_percentiles", "request_info"),),
    title="trtllm-bench's report (TensorRT-LLM)",
    gives="acceptance length and tokens, times",
    lacks="rates by position, intervals",
    recognises=lambda file: "decoding_stats" in file.fields and "request_info" in file.fields,
)
def trtllm_bench(file: ResultFile) -> Iterator[Figures]:
    """Read a report of `trtllm-bench throughput --report_json` or `latency`.

    Source: tensorrt_llm bench/dataclasses/reporting.py. Drafted tokens are K times the iterations
    there, and accepted ones the answer's tokens without one for each iteration.
    """
    info, stats = inner(file.fields, "request_info"), inner(file.fields, "decoding_stats")
    drafted, accepted = (
        number(inner(stats, f"num_{name}draft_tokens_percentiles"), "average")
        for name in ("", "accepted_")
    )
    requests, tokens = count(info, "num_requests") or 0, number(info, "avg_output_length")
    times = inner(file.fields, "streaming_metrics")
    rounds = None if tokens is None or accepted is None else max(tokens - accepted, 0.0)
    known = requests > 0 and bool(rounds)

    def together(by_request: float | None) -> int | None:
        return round(requests * by_request) if known and by_request is not None else None

    yield Figures(
        k=round(drafted / rounds) if known and drafted and rounds else None,
        requests=requests,
        rounds=together(rounds),
        accepted=together(accepted),
        verified=together(drafted),
        ttft_s=milliseconds(times, "avg_ttft_ms"),
        tpot_s=milliseconds(times, "avg_tpot_ms"),
        output_tokens_per_s=number(
            inner(file.fields, "performance"), "system_output_throughput_tok_s"
        ),
        assumptions=("rounds are iterations, the prefill's included; each is taken to draft K",),
    )


def _specs(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = [inner(choice, "speculative_decoding") for choice in objects(fields, "choices")]
    return [row for row in found if "total_accepted_draft_tokens" in row]


def _is_trtllm_requests(file: ResultFile) -> bool:
    lists = (row for row in file.objects[:100] if isinstance(row.get("choices"), list))
    return any(_specs(row) for row in lists)


@reader(
    name="trtllm-requests",
    marks=(("speculative_decoding", "total_accepted_draft_tokens"),),
    title="TensorRT-LLM responses with per_request_spec_decode_stats",
    gives="acceptance length with interval, rates by depth, per request",
    lacks="times",
    recognises=_is_trtllm_requests,
)
def trtllm_requests(file: ResultFile) -> Iterator[Figures]:
    """Read responses of TensorRT-LLM with `per_request_spec_decode_stats: true`: JSON, or lines.

    Source: tensorrt_llm serve, choices[].speculative_decoding.
    """
    speculated = [spec for row in file.objects for spec in _specs(row)]
    yield over_requests(
        [counts_of(row, "total_accepted_draft_tokens", "total_draft_tokens") for row in speculated],
        k=most_k(speculated),
        number=len(file.objects),
    )


def _perf(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return inner(inner(fields, "perf_metrics"), "speculative_decoding")


@reader(
    name="trtllm-perf-metrics",
    marks=(("perf_metrics", "speculative_decoding", "total_draft_tokens"),),
    title="TensorRT-LLM perf_metrics: `GET /perf_metrics`, or a line per request",
    gives="verified and accepted tokens, time to the first token",
    lacks="rounds, so no acceptance length; rates by position",
    recognises=lambda file: any("total_draft_tokens" in _perf(row) for row in file.objects[:100]),
)
def trtllm_perf_metrics(file: ResultFile) -> Iterator[Figures]:
    """Read TensorRT-LLM's perf_metrics of requests (`return_perf_metrics: true`).

    Source: tensorrt_llm executor/types.h, RequestPerfMetrics. It counts no rounds.
    """
    speculated = [_perf(row) for row in file.objects if _perf(row)]
    yield Figures(
        requests=len(file.objects),
        verified=total(speculated, "total_draft_tokens"),
        accepted=total(speculated, "total_accepted_draft_tokens"),
        ttft_s=mean(_first_token_s(row) for row in file.objects),
        assumptions=("TensorRT-LLM counts no rounds here, so there is no acceptance length",),
    )


def _first_token_s(fields: Mapping[str, Any]) -> float | None:
    times = inner(inner(fields, "perf_metrics"), "timing_metrics")
    sent, first = (number(times, name) for name in ("arrival_time", "first_token_time"))
    return first - sent if sent is not None and first is not None and first >= sent else None


NO_ROUNDS = (
    "llama.cpp counts no rounds in a response, so there is no acceptance length; its metrics page "
    "and its log have them"
)


def _timings(file: ResultFile) -> list[Mapping[str, Any]]:
    found = [inner(row, "timings") for row in file.objects]
    return [row for row in found if "predicted_ms" in row]


@reader(
    name="llamacpp-responses",
    marks=(("timings", "predicted_ms", "draft_n"),),
    title="llama.cpp or mlx-vlm server responses",
    gives="verified and accepted tokens, time per token; with mlx-vlm an acceptance length",
    lacks="rounds in llama.cpp, rates by position",
    recognises=lambda file: bool(_timings(file)),
)
def llamacpp_responses(file: ResultFile) -> Iterator[Figures]:
    """Read responses of llama.cpp's server, or of mlx-vlm's: JSON, or a line per response.

    Source: `timings` of tools/server. llama.cpp counts draft tokens, but no rounds; mlx-vlm has
    draft_rounds (mlx-vlm#1788).
    """
    timings = _timings(file)
    tpot = [_tpot(row) for row in timings]
    drafting = [row for row in timings if "draft_n" in row]
    exact = drafting and all("draft_rounds" in row for row in drafting)
    if exact:
        yield over_requests(
            [
                RequestCounts(
                    rounds=count(row, "draft_rounds") or 0,
                    accepted=count(row, "draft_n_accepted") or 0,
                    verified=count(row, "draft_n"),
                )
                for row in drafting
            ],
            number=len(timings),
            tpot_s=tpot,
        )
        return
    yield Figures(
        requests=len(timings),
        verified=total(drafting, "draft_n"),
        accepted=total(drafting, "draft_n_accepted"),
        tpot_s=mean(tpot),
        assumptions=(NO_ROUNDS,),
    )


def _tpot(timings: Mapping[str, Any]) -> float | None:
    decode_ms, tokens = number(timings, "predicted_ms"), count(timings, "predicted_n")
    return decode_ms / tokens / 1000.0 if decode_ms is not None and tokens else None
