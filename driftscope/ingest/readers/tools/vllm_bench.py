"""`vllm bench serve --save-result` (vLLM 0.33): one JSON object per run.

Source: vllm/benchmarks/serve.py. The spec_decode keys are absent without speculation.
"""

from __future__ import annotations

from collections.abc import Iterator

from driftscope.ingest.fields import count, length, milliseconds, number, numbers
from driftscope.ingest.figures import Figures
from driftscope.ingest.reader import Reader
from driftscope.ingest.result_file import ResultFile

_RATES = "spec_decode_per_position_acceptance_rates"


def _recognises(file: ResultFile) -> bool:
    return "mean_ttft_ms" in file.fields and "total_input_tokens" in file.fields


def _read(file: ResultFile) -> Iterator[Figures]:
    fields = file.fields
    rates = fields.get(_RATES)
    marginal = None if not rates else numbers(rates, _RATES, 1.0)
    yield Figures(
        k=None if marginal is None else len(marginal),
        requests=count(fields, "completed"),
        rounds=count(fields, "spec_decode_num_drafts"),
        drafted=count(fields, "spec_decode_draft_tokens"),
        accepted=count(fields, "spec_decode_accepted_tokens"),
        length=length(fields, "spec_decode_acceptance_length"),
        marginal=marginal,
        ttft_s=milliseconds(fields, "mean_ttft_ms"),
        tpot_s=milliseconds(fields, "mean_tpot_ms"),
        output_per_s=number(fields, "output_throughput"),
        assumptions=("K is the number of its rates by position",) if marginal else (),
    )


READER = Reader(
    name="vllm-bench",
    title="vLLM `bench serve --save-result` (0.33)",
    gives="acceptance length, rates by position, tokens, times",
    lacks="intervals: sums over the run only",
    recognises=_recognises,
    read=_read,
)
