"""Logs and results as different people have them: prefixes, encodings, versions, envelopes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.command import run_command
from support.engine_logs import (
    LOAD_33,
    V1_08,
    V1_09,
    decode,
    lines,
    llamacpp,
    load,
    response,
    vllm,
    write,
)

from driftscope.errors import EXIT_UNKNOWN, EXIT_USAGE

DECODE_04 = (
    "[2025-03-05 10:00:01 TP0] Decode batch. #running-req: 4, #token: 2731, token usage: 0.03, "
    "accept len: {:.2f}, gen throughput (token/s): 210.20, largest-len: 0, #queue-req: 0, "
)
"""A decode line of SGLang 0.4, without a rate."""
TWO = [vllm(0.8, 0.6, 0.4), vllm(0.7, 0.5, 0.3, at=10)]
READ = (" 3 +1,000 +2.65 ",)
"""Statement about TWO."""
DEAD = vllm(0.02, 0.0, 0.0)
NOTHING_DRAFTED = (
    "SpecDecoding metrics: Mean acceptance length: nan, Accepted: 0 tokens, Drafted: 0 tokens, "
    "Per-position acceptance rate: nan, nan, Avg Draft acceptance rate: nan%"
)
RATES_ALONE = ["Per-position acceptance rate: 0.800, 0.600, Avg Draft acceptance rate: 70.0%"]
FALLING = [
    row
    for n in range(8)
    for row in (load(n, usage=5 + 10 * n), vllm(0.8 - n / 12, 0.6 - n / 14, 0.4 - n / 20, at=n))
]
WRITTEN = Path(__file__).parent / "written"
BENCH = (WRITTEN / "vllm-0.32" / "bench.txt").read_text()
# The example of vLLM 0.9: no counts, and no space before a rate.
OFFLINE_09 = """\
--------------------------------------------------
mean acceptance length: 2.50
--------------------------------------------------
acceptance at token 0:0.70
acceptance at token 1:0.50
acceptance at token 2:0.30
"""
RESPONSE = response([10, 6, 2, 2])
CHUNK = {"id": "a", "object": "chat.completion.chunk", "choices": [{"delta": {"content": "x"}}]}
LAST = {"id": "a", "object": "chat.completion.chunk", "choices": [], "metrics": RESPONSE["metrics"]}
PLAIN = {"id": "a", "object": "chat.completion.chunk", "choices": [], "usage": {"total_tokens": 9}}


def stream(*chunks: object, end: str = "\n\n") -> str:
    """Return an event stream."""
    return "".join(f"data: {json.dumps(chunk)}{end}" for chunk in chunks) + f"data: [DONE]{end}"


def docker(rows: Sequence[str], **more: str) -> str:
    """Return rows as Docker's JSON files hold them."""
    return lines([json.dumps({"log": f"{row}\n", "stream": "stdout", **more}) for row in rows])


JOURNAL = "Sep 05 10:00:12 gpu7 vllm[4711]: "
SYSTEMD = "2026-09-05T10:00:12+0000 gpu7 python3[4711]: "
KUBECTL = "[pod/{}/server] 2026-09-05T10:00:12.000000000Z "
RAY = "\x1b[36m(EngineCore_DP{0} pid=51{0})\x1b[0m "
SUMS_OF_MODELS = [
    llamacpp(60, 120, ", mean len =  2.50", "[54447] 4.27.995.070 I "),
    llamacpp(5, 120, ", mean len =  1.12", "[54448] 4.27.995.070 I "),
]
HUNDRED = lines([row for n in range(10_000) for row in (load(n), vllm(0.7, 0.5, at=n))])

FORMS: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    # Logs of vLLM.
    "vllm 0.33": (lines([load(form=LOAD_33), *TWO]), (" 3 +1,000 +2.65 ", "0.75 0.55 0.35")),
    "vllm 0.9": (lines([vllm(0.8, 0.6, form=V1_09)]), (" 2 +500 +2.40 ", "0.80 0.60")),
    "vllm 0.8": (lines([vllm(0.8, 0.6, form=V1_08)] * 9), ("70.0% of the draft tokens",)),
    "journald": (lines(TWO, JOURNAL), READ),
    "journald iso": (lines(TWO, SYSTEMD), READ),
    "crlf": (lines(TWO, end="\r\n"), READ),
    "bom": (lines(TWO).encode("utf-8-sig"), READ),
    "utf-16 of PowerShell": (b"\xff\xfe" + lines(TWO, end="\r\n").encode("utf-16-le"), READ),
    "latin-1": (lines(["température élevée", *TWO]).encode("latin-1"), READ),
    "binary in a log": (lines([*TWO, "\x00\x00\x07 bad"]), READ),
    "cut last line": (lines(TWO) + TWO[0][:90], READ),
    "cut docker json": (docker(TWO)[:-30], (" 3 +500 +2.80 ",)),
    "docker json, all attributes": (docker(TWO, time="2026-09-05T10:00:12Z"), READ),
    "kubectl, two pods": (
        lines(TWO, KUBECTL.format("vllm-a")) + lines([DEAD] * 2, KUBECTL.format("vllm-b")),
        ("vllm-b/server +3 +1,000 +1.02 ", "vllm-a/server +3 +1,000 +2.65 "),
    ),
    "ray, two ranks": (
        lines([load(), *TWO], RAY.format(0)) + lines([load(), DEAD], RAY.format(1)),
        ("EngineCore_DP1.* 3 +500 +1.02 ", "EngineCore_DP0.* 3 +1,000 +2.65 "),
    ),
    **{
        name: (
            lines([prefix.format(n % 2) + row for n, row in enumerate(TWO * 4)]),
            (f"{replica.format(1)} +3 +", f"{replica.format(0)} +3 +"),
        )
        for name, prefix, replica in (
            ("stern", "vllm-7d9c-{} vllm ", "vllm-7d9c-{}"),
            ("stern with a bar", "vllm-7d9c-{} › vllm | ", "vllm-7d9c-{}"),
            ("kubetail", "[vllm-7d9c-{}] ", "vllm-7d9c-{}"),
            ("journald of two hosts", "May 12 08:00:01 node{} vllm[99]: ", "node{}"),
            ("srun --label", "{}: ", "{}"),
            ("grep", "logs/{}.log:", "logs/{}.log"),
        )
    },
    "fluent bit, two pods": (
        lines(
            [
                json.dumps({"log": row, "kubernetes": {"pod_name": f"vllm-{n % 2}"}})
                for n, row in enumerate([TWO[0], vllm(0.0, 0.0, 0.0)] * 4)
            ]
        ),
        ("vllm-1 +3 +2,000 +1.00 ", "vllm-0 +3 +2,000 +2.80 "),
    ),
    **{
        f"records of {name}": (
            json.dumps(wrap(TWO[0], [vllm(0.0, 0.0, 0.0)] * 2)),
            ("b +3 +1,000 +1.00 ", "a +3 +500 +2.80 "),
        )
        for name, wrap in (
            (
                "Elastic",
                lambda a, b: {
                    "hits": [
                        {"_source": {"message": row, "host": "h", "kubernetes": {"pod": pod}}}
                        for row, pod in ((a, {"name": "a"}), *((row, {"name": "b"}) for row in b))
                    ]
                },
            ),
            (
                "OpenTelemetry",
                lambda a, b: {
                    "resourceLogs": [
                        {
                            "resource": {
                                "attributes": [
                                    {"key": "k8s.pod.name", "value": {"stringValue": pod}}
                                ]
                            },
                            "logRecords": [{"body": {"stringValue": row}} for row in rows],
                        }
                        for pod, rows in (("a", [a]), ("b", b))
                    ]
                },
            ),
        )
    },
    "newest first": (
        json.dumps({"events": [{"message": row} for row in reversed(FALLING)]}),
        ("2.[0-9]+ -> 1.[0-9]+ tokens per round", "in use went from 2[0-9] to"),
    ),
    "loki": (json.dumps([{"line": row, "timestamp": "1"} for row in TWO]), READ),
    "journald json": (lines([json.dumps({"MESSAGE": row, "_PID": "1"}) for row in TWO]), READ),
    "a list of lines": (json.dumps(TWO), READ),
    "csv": (lines([f'1,"{row}"' for row in TWO]), READ),
    "quoted in an issue": ("```\n" + lines(TWO, "> ") + "```\n", READ),
    **{
        f"broken by a terminal of {width}": (
            lines([row[at : at + width] for row in TWO for at in range(0, len(row), width)]),
            READ,
        )
        for width in (40, 56, *range(78, 91), 120, 137, 165, 200, 213)
    },
    "broken at spaces": (
        lines([piece for row in TWO for piece in row.replace(", ", ",\n").split("\n")]),
        (" 3 +1,000 +2.65 |1,000 +2.65",),
    ),
    "colours": (lines(TWO, "\x1b[32mINFO\x1b[0m "), READ),
    "colour in the middle": (lines(TWO).replace("Accepted:", "\x1b[1mAccepted:\x1b[0m"), READ),
    "nothing drafted": (
        lines([vllm(0.8, 0.6), NOTHING_DRAFTED, vllm(0.8, 0.6)]),
        (" 2 +1,000 +2.40 ",),
    ),
    "rates without counts": (
        lines(["SpecDecoding metrics: Mean acceptance length: 2.40,", *RATES_ALONE]),
        (" 2 +– +2.40 +– +0.80 0.60 ",),
    ),
    "a name that no collector writes": (
        lines([f"[INFO] <m{n % 2}> {vllm(0.8 - 0.7 * (n % 2), at=n)}" for n in range(8)]),
        ("m1 +1 +2,000 +1.10 .*m0 +1 +2,000 +1.80 ",),
    ),
    "a word that differs once": (
        lines([f"{'x' if n == 3 else 'y'} {vllm(0.8, at=n)}" for n in range(8)]),
        (" 1 +4,000 +1.80 ",),
    ),
    "another length of drafts": (
        lines([vllm(0.7, 0.5, 0.3, at=n) for n in range(6)])
        + lines([vllm(0.6, 0.0, 0.0, at=n + 6, cut=1 / 3) for n in range(6)]),
        ("2.50 -> 1.60 .*while draft tokens per round went from 3 to 1",),
    ),
    "dead from the first step on": (
        lines([vllm(0.02, 0.0, 0.0)] * 4),
        ("beyond depth 1, where 2.0% is: the drafter's first step",),
    ),
    "dead from the third step on": (
        lines([vllm(0.8, 0.6, 0.0)] * 4),
        ("beyond depth 2, where 60.0% is: drafts end there, or",),
    ),
    "all dead": (lines([vllm(0.0, 0.0)] * 8), ("nothing is accepted: 0 of 8,000", "8 of 8 lines")),
    "recovering": (
        lines([vllm(0.0, 0.0, at=n) if n < 3 else vllm(0.8, 0.6, at=n) for n in range(9)]),
        ("3 of 9 lines at 1.00", "from 05-12 08:00:00 to 05-12 08:00:02"),
    ),
    "10,000 lines": (HUNDRED, (" 2 +5,000,000 +2.20 ",)),
    "vllm V0, nan": (
        (
            "INFO 07-24 04:00:31 metrics.py:477] Speculative metrics: Draft acceptance rate: nan, "
            "System efficiency: nan, Number of speculative tokens: 4, Number of accepted "
            "tokens: 30, "
            "Number of draft tokens: 100, Number of emitted tokens: 50.\n"
        ),
        (" 4 +25 +2.00 ",),
    ),
    # Logs of SGLang.
    "sglang 0.4": (lines([DECODE_04.format(2.5), DECODE_04.format(3.5)]), (" 3.00 ",)),
    "sglang 0.5.23": (lines([decode(2.5, k=4), decode(3.5, k=4)]), (" 4 +– +3.00 ",)),
    "sglang dspark": (
        lines([decode(2.5, **{"block accept len": "4.10", "cap len": "3.0"})]),
        (" 2.50 ",),
    ),
    "sglang in ray": (
        lines([decode(2.6)], "(SGLangEngine pid=4711, ip=10.0.0.3) "),
        (" 3 +– +2.60 ",),
    ),
    "sglang, a rate of two meanings": (lines([decode(2.5)]), (" – +– +2.50 ",)),
    "sglang, all dead": (lines([decode(1.0, n) for n in range(8)]), ("8 of 8 lines at 1.00",)),
    "sglang, idle": (lines([decode(1.0, running=0), decode(3.0)]), (" 3.00 ",)),
    "sglang, finish": (
        (
            "[2025-10-02 23:42:16] Finish: obj=GenerateReqInput(rid='57996'), "
            "out={'meta_info': {'id': "
            "'57996', 'completion_tokens': 41, 'spec_accept_length': 2.05, 'spec_verify_ct': 20, "
            "'spec_correct_drafts_histogram': [8, 6, 4, 2], 'spec_num_correct_drafts': 20}}\n"
        ),
        (" 20 +2.00 .*0.60 0.30 0.10",),
    ),
    # Logs of llama.cpp and LMDeploy.
    "llama.cpp, mean len": (lines([llamacpp(60, 120, ", mean len =  2.50")] * 3), (" 120 +2.50 ",)),
    "llama.cpp, mean acceptance length": (
        lines(
            [
                llamacpp(
                    60,
                    120,
                    ", mean acceptance length =  2.50, acceptance rate per position = "
                    "(0.900, 0.400, 0.200)",
                )
            ]
        ),
        (" 3 +40 +2.50 .*0.90 0.40 0.20",),
    ),
    "llama.cpp, counts alone": (lines([llamacpp(2595, 3414)]), ("76.0% of the draft tokens",)),
    "llama.cpp, two models behind a router": (
        lines(SUMS_OF_MODELS),
        (r"54448\S* .* 1.12 ", r"54447\S* .* 2.50 "),
    ),
    "lmdeploy": (
        (
            "2026-09-05 10:00:00,123 - lmdeploy - INFO - loggers.py:88 - SpecDecoding "
            "metrics: Draft "
            "acceptance rate: 70.00%, Mean acceptance length: 2.40, Accepted: 700 tokens, "
            "Drafted: 1000 "
            "tokens, Per-position acceptance rate: 0.800, 0.600\n"
        ),
        (" 2 +500 +2.40 .*0.80 0.60",),
    ),
    "page of n-grams": (
        (
            "vllm:spec_decode_num_drafts_total 300\nvllm:spec_decode_num_draft_tokens_total 900\n"
            "vllm:spec_decode_num_accepted_tokens_total 600\nvllm:generation_tokens_total 20000\n"
        ),
        (" 300 +3.00 ", "rounds with a draft, which yield 4% of the output tokens"),
    ),
    # Consoles.
    "vllm bench in a log": (
        lines(["INFO 05-12 [api_server.py] Starting", *BENCH.splitlines()], "bench-1  | ", "\r\n"),
        (" 4 +540 +1.05 ",),
    ),
    "vllm bench after Docker's times": (
        lines(BENCH.splitlines(), "2026-11-02T10:00:00.1Z "),
        (" 4 +540 +1.05 ",),
    ),
    "vllm bench without speculation": (BENCH.partition("---------------Spec")[0], ("36.2",)),
    "offline example of 0.9": (OFFLINE_09, (" 3 +– +2.50 .*0.70 0.50 0.30",)),
    "aiperf's console": (
        (
            "NVIDIA AIPerf | LLM Metrics: Spec Decode\n"
            "┃                 Metric ┃  avg ┃  min ┃  max ┃\n"
            "│      Acceptance Length (ratio) │ 2.41 │ 1.90 │ 3.00 │\n"
            "│   Token-Weighted Acceptance Length │ 2.35 │  N/A │  N/A │\n"
            "  Accepted drafts per step (% of steps):  0: 30%   1: 25%   2: 25%   3: 20%\n"
        ),
        (" – +2.35 .*0.70 0.45 0.20",),
    ),
    # Responses.
    "stream": (stream(CHUNK, LAST), (" 3 +20 +1.80 .*0.50 0.20 0.10",)),
    "stream, crlf": (stream(CHUNK, LAST, end="\r\n\r\n"), (" 3 +20 +1.80 ",)),
    "stream, with events": ("event: message\n" + stream(CHUNK, LAST), (" 3 +20 +1.80 ",)),
    "stream, comments of OpenRouter": (
        ": OPENROUTER PROCESSING\n\n" * 12 + stream(CHUNK, LAST),
        (" 3 +20 +1.80 ",),
    ),
    "stream, with headers of curl -i": (
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + stream(CHUNK, LAST),
        (" 3 +20 +1.80 ",),
    ),
    "stream, cut": (stream(CHUNK, LAST, {**LAST, "id": "b"})[:-200], (" 3 +20 +1.80 ",)),
    "litellm": (
        json.dumps({"request_id": "1", "response": RESPONSE, "litellm_params": {"a": 1}}),
        (" 3 +20 +1.80 ", "hold in response"),
    ),
    "har": (
        json.dumps(
            {"log": {"entries": [{"response": {"content": {"text": json.dumps(RESPONSE)}}}] * 2}}
        ),
        (" 3 +40 +1.80 ", "hold in log.entries.response.content.text"),
    ),
    "an answer that quotes a log": (
        json.dumps({**RESPONSE, "choices": [{"message": {"content": TWO[0]}}]}),
        (" 3 +20 +1.80 ",),
    ),
    "thousands of replicas": (
        lines([f"[pod/p{n}] {decode(2.6)}" for n in range(3000)]),
        ("2,900 more parts are not shown",),
    ),
    "body as text": (
        lines([json.dumps({"level": "info", "body": json.dumps(RESPONSE)})] * 3),
        (" 3 +60 +1.80 ", "hold in body"),
    ),
    "sglang bench of two ranks": (
        json.dumps(
            {
                "completed": 8,
                "mean_tpot_ms": 2.0,
                "accept_length": 2.27,
                "server_info": {
                    "speculative_num_steps": 3,
                    "internal_states": [{"avg_spec_accept_length": n} for n in (2.27, 1.0)],
                },
            }
        ),
        ("the length is that of the first of its ranks: 2.27, 1.00",),
    ),
    "one record of aiperf": (
        json.dumps(
            {
                "metadata": {"n": 1},
                "metrics": {},
                "spec_decode_acceptance": RESPONSE["metrics"]["speculative_decoding"],
            }
        ),
        (" 3 +20 +1.80 ",),
    ),
    "sglang, older names": (
        json.dumps(
            {
                "text": "x",
                "meta_info": {
                    "completion_tokens": 50,
                    "spec_verify_ct": 20,
                    "spec_accept_length": 2.5,
                    "spec_accept_token_num": 29,
                    "spec_draft_token_num": 60,
                    "spec_accept_histogram": [5, 4, 8, 3],
                },
            }
        ),
        (" 20 +2.45 .*0.75 0.55 0.15",),
    ),
    "list of responses": (json.dumps([RESPONSE, RESPONSE], indent=2), (" 3 +40 +1.80 ",)),
}

UNKNOWN: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "stream without counts": (
        stream(CHUNK, PLAIN),
        ("nearest is vllm-requests .*--per-request-spec-decode-metrics", "lacks num_spec_steps"),
    ),
    "vllm log without speculation": (
        lines([load()] * 4),
        ("nearest is server-log", "lacks SpecDecoding metrics:"),
    ),
    "diffusion": (
        (
            "INFO [metrics.py:100] DiffusionDecoding metrics: Committed token throughput: "
            "9.00 tokens/s, "
            "Mean denoising steps per canvas: 4.00, Mean tokens committed per denoising "
            "step: 2.00, "
            "Committed: 200 tokens, Denoising steps: 100, Canvas positions evaluated: 800\n"
        ),
        ("of no known kind: it is not read",),
    ),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), ("not readable|not a file",)),
}


def _flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_read(name: str, tmp_path: Path) -> None:
    content, wanted = FORMS[name]
    done = run_command("ingest", write(tmp_path / "file", content), COLUMNS="300")
    assert done.returncode == 0, done.stderr
    for words in wanted:
        assert re.search(words.replace(" +", r"\s+"), _flat(done.stdout)), (words, done.stdout)
    assert "does not fit together" not in done.stdout


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_form_is_said_to_be(name: str, tmp_path: Path) -> None:
    content, wanted = UNKNOWN[name]
    done = run_command("ingest", write(tmp_path / "file", content), COLUMNS="300")
    assert done.returncode in (EXIT_UNKNOWN, EXIT_USAGE), done.stdout
    for words in wanted:
        assert re.search(words, done.stderr), done.stderr
