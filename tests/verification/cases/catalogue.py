"""The cases: what somebody had, what they would type, and what has to be printed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from driftscope.errors import EXIT_NO_DATA

INPUTS = Path(__file__).parent / "inputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command, with what it has to print."""

    words: tuple[str, ...]
    """Words of the command without `driftscope`."""
    says: tuple[str, ...]
    """Patterns that the output has, white space as one space."""
    never: tuple[str, ...]
    """Patterns that would mislead."""
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case."""

    right: str
    """Right answer in words."""
    steps: tuple[Step, ...]
    slow: bool
    """Whether it takes a minute."""


def typed(
    command: str, *says: str, never: tuple[str, ...] = (), code: int = 0, config: str = ""
) -> Step:
    """Return a command that prints each of the patterns; `config` is the value of
    --speculative-config, which may have spaces."""
    more = ("--speculative-config", config) if config else ()
    return Step(words=(*command.split(), *more), says=says, never=never, code=code)


def inspected(
    place: str, *says: str, never: tuple[str, ...] = (), code: int = EXIT_NO_DATA
) -> Step:
    """Inspect a drafter whose target has too few tensors to run, so that files alone tell."""
    command = f"inspect {place}/drafter --target {place}/target"
    return typed(command, *says, never=(*never, *_CRASH), code=code)


def case(right: str, *steps: Step, slow: bool = False) -> Case:
    """Return a case of some commands."""
    return Case(right=right, steps=steps, slow=slow)


_EAGLE3 = '{"method": "eagle3", "model": "%s", "num_speculative_tokens": 3}'
_DRAFTS = _EAGLE3.replace("eagle3", "draft_model")
_CRASH = ("bug in driftscope", "Traceback")

_LOGS = {
    "01 mratsim/sglang-qwen38fn-sm120-turbo#2": case(
        "1.83, not 3.07: 18 of 30 lines at 1.00, from 10:04, while requests queue",
        typed(
            "ingest 01-sglang-collapse.log -o run-01",
            r" 1\.83 ",
            "18 of 30 lines .*10:04:40",
            "37 queued requests",
        ),
        typed("analyze run-01", "18 of 30 lines", "1.83", never=("TOO LITTLE DATA",)),
        typed("check run-01 --fail-on falls_in_log", "broken", code=3),
    ),
    "02 local-inference-lab/vllm#54": case(
        "broken, not idle: 8,330 tokens were drafted, 1 accepted",
        typed(
            "ingest 02-vllm-dead.log -o run-02",
            r" 1,190 +1\.00 ",
            "nothing is accepted: 1 of 8,330",
        ),
        typed("analyze run-02", "2 of 2 lines|nothing is accepted", never=("TOO LITTLE DATA",)),
    ),
    "04 llama.cpp#23269": case(
        "the drafter's own counts since the start: 1,308 drafts, 2.53 tokens per round",
        typed(
            "ingest 04-llamacpp-old.log",
            r"draft-mtp .*1,308 +2\.53 ",
            r"70\.0% .*105 of 150",
            "since the server",
        ),
    ),
    "05 vllm#9539, #6768, #7301": case(
        "4,400 rounds of 10,500 emitted tokens: 2.39; what system efficiency is",
        typed(
            "ingest 05-vllm-v0.log",
            r" 3 +4,400 +2\.39 ",
            r"System efficiency is emitted tokens / \(rounds",
        ),
    ),
    "06 llama.cpp#24536, #25792": case(
        "2.00 with 0.62 and 0.38 by position, and each drafter's own counts",
        typed(
            "ingest 06-llamacpp-drafters.log",
            r" 2 +123 +2\.00 .*0\.62 0\.38",
            r"ngram-mod +\S+ +7 +13\.86",
            "draft-mtp",
            never=("does not fit together",),
        ),
    ),
    "07 llamacpp-rocm#129, ROCmFPX#44, llama.cpp#28433": case(
        "4.30 over 1,000 rounds; 2.55 over five requests, with an interval",
        typed("ingest 07-llamacpp-mean-len.log", r" 1,000 +4\.30 "),
        typed("ingest 07-llamacpp-requests.log", r" 100 +2\.55 +2\.\d\d to "),
    ),
    "08 logs of docker compose": case(
        "2.88 through prefixes and colours",
        typed("ingest 08-compose.log", r" 3 +1,000 +2\.88 .*0\.82 0\.61"),
    ),
    '43 vllm: "0 % with FI Cutlass DeepSeekR1 NVFP4 ep"': case(
        "4,100 rounds, 1.02; nothing beyond depth 1",
        typed("ingest 43-rounding.log", r" 3 +4,100 +1\.02 .*0\.02 0\.00", "beyond depth 1"),
    ),
    "44 speculators#613": case(
        "only depth 1 lives: 0.15, 0.00 ...",
        typed(
            "ingest 44-depth-1.log -o run-44",
            r" 8 +988 +1\.15 .*0\.15 0\.00",
            "beyond depth 1, where 15.0%",
        ),
        typed("analyze run-44", "beyond depth 1"),
    ),
    "45 suffix decoding with K = 12": case(
        "500 rounds that verified 2.4 of 12 tokens: no rate beyond depth 1",
        typed("ingest 45-suffix.log", r" 12 +500 +1\.80 .*0\.34 – –", "no rate beyond depth 1"),
    ),
    "52 sglang#11144": case(
        "42 rounds of the request, 2.81 without the prefill's token",
        typed("ingest 52-finish.log", r" 42 +2\.81 ", "finished requests"),
    ),
    "63 sglang#16974": case(
        "K = 2, not 1: the rate of this version is length / (K + 1)",
        typed("ingest 63-sglang-old-rate.log", r"DP1 +2 +– +1\.8[45] ", r"DP0 +2 +– +1\.89 "),
    ),
    "64 Loki's HTTP API, newest first": case(
        "vllm-1 died after its first line; vllm-0 is well",
        typed(
            "ingest 64-loki-answer.json",
            r"vllm-1 APIServer pid=1 +3 +603 +1\.61 ",
            r"vllm-0 APIServer pid=1 +3 +603 +2\.82 ",
            "2 of 3 lines at 1.00: nothing was accepted there, from 06-02 09:15:10",
        ),
    ),
    "65 journalctl -o json, which writes lines with colours as bytes": case(
        "2 of 4 lines accept nothing",
        typed("ingest 65-journald.json", r" 3 +804 +1\.91 ", "2 of 4 lines at 1.00"),
    ),
    "66 notes on a pipeline of four ranks (file 59102321425)": case(
        "1.06, of which the counts were cut off", typed("ingest 66-cut.md", r" – +– +1\.06 ")
    ),
    "69 mit-han-lab/fastrl#4": case(
        "above its threshold of 48 requests it does not draft",
        typed(
            "ingest 69-sglang-threshold.log",
            "2 of 4 lines at 1.00: nothing was accepted or drafted there",
            "48 running requests, and 12 in the other lines",
        ),
    ),
    "74 log of a platform with a prefix of its own (file 70229100098)": case(
        "one of the two replicas accepts nothing",
        typed(
            "ingest 74-prefix.log",
            r"5ylyr21v-rhkt0 .*1\.00 .*5ylyr21v-rhkt1 +3 +– +2\.7",
            "rhkt0: 8 of 8 lines at 1.00",
        ),
    ),
    "75 vllm#48892": case(
        "another K after a restart: to depth 1 0.76 and 0.82, no fall from 3.30 to 1.82",
        typed(
            "ingest 75-another-k.log -o run-75",
            r"K = 1 +1 +4,800 +1\.82 .*K = 4 +4 +4,800 +3\.30",
            "to depth 1 they are .* 1.82, .* 1.76",
            never=("->",),
        ),
        typed("check run-75 --fail-on falls_in_log", "0 broken, 1 held"),
    ),
    "81 a rotated log, gzipped (file 66942390445)": case(
        "3 of 6 lines accept nothing",
        typed("ingest 81-rotated.log.gz", r" 3 +4,200 +1\.7", "3 of 6 lines at 1.00"),
    ),
    "82 notes with lines that were shortened (file 55805092058)": case(
        "2.70 with its rates by position, over lines without counts",
        typed("ingest 82-notes.md", r" 4 +– +2\.70 +– +0\.73 0\.47 0\.31 0\.18"),
    ),
    "89 sweeps over speculative_num_steps in one SGLang log": case(
        "three servers, 1.72, 2.45 and 2.90, and no rise over time",
        typed(
            "ingest 89-sweep.log",
            r"speculative_num_steps=1 \S+ +1 +– +1\.72 .*num_steps=5 \S+ +5 +– +2\.90 ",
            never=("->",),
        ),
    ),
}
_RESULTS = {
    "10 vllm#33497, #51742": case(
        "K = 1, 94,000 rounds, 1.36", typed("ingest 10-vllm-console.txt", r" 1 +94,000 +1\.36 ")
    ),
    "11 sglang#13376, #13553": case(
        "5.86, which is the server's since its start, not this run's",
        typed(
            "ingest 11-sglang-console.txt", r" 5\.86 .*3100\.2", "since its start, not this run's"
        ),
    ),
    "17 llama.cpp#12603": case(
        "18.7% of the draft tokens; rounds are not in the file, so no length",
        typed("ingest 17-llamacpp-timings.json", r"18\.7% of the draft tokens", "counts no rounds"),
    ),
    "41 SpecForge, raw_data/data.json": case(
        "2.17 in mtbench, with and without the model's name, one line or pretty",
        typed("ingest 41-specforge.json", r"mtbench, batch 1 .* 2\.17 "),
        typed("ingest 41-specforge-pretty.jsonl", r"mtbench, batch 1 .* 2\.17 "),
        typed("ingest 41-specforge-model.jsonl", r"mtbench, batch 1 .* 2\.17 "),
    ),
    "46 vllm#43455, local-inference-lab/vllm#54": case(
        "nothing is accepted: 9 of 168,000; the healthy run accepts 4.77",
        typed(
            "ingest 46-dead.json -o dead",
            r" 8 +21,000 +1\.00 ",
            "nothing is accepted: 9 of 168,000",
        ),
        typed("ingest 46-healthy.json -o healthy", r" 450,000 +4\.77 "),
        typed(
            "analyze dead", "nothing is accepted|Nothing is accepted", never=("TOO LITTLE DATA",)
        ),
        typed("check dead --fail-on nothing_accepted", "broken", code=3),
        typed("compare dead healthy", "healthy accepts more than dead"),
    ),
    "48 mostlygeek/llama-swap#1032": case(
        "1.18 from the response, its event stream, and a proxy's envelope",
        typed("ingest 48-one.json", r" 3 +44 +1\.18 .*0\.09 0\.05"),
        typed("ingest 48-stream.txt", r" 3 +44 +1\.18 .*0\.09 0\.05"),
        typed("ingest 48-wrapped.json", r" 3 +44 +1\.18 .*0\.09 0\.05"),
    ),
    "49 vllm#24243, #27737": case(
        "5,000 rounds, 2.50, 0.70 0.50 0.30",
        typed("ingest 49-offline.txt", r" 3 +5,000 +2\.50 .*0\.70 0\.50 0\.30"),
    ),
    "50 TensorRT-LLM#9855, #17082, #17474": case(
        "1.88 over the rounds that drafted; counts of 0 were not filled",
        typed("ingest 50-trtllm-iterations.json", r" 8 +1\.88 "),
        typed("ingest 50-trtllm-perf-metrics.jsonl", "no draft token was counted", r" 200\.0 "),
    ),
    "53 mlc-llm#2789": case(
        "100 rounds, 2.50; step 0 is the target's own token",
        typed("ingest 53-mlc.json", r" 3 +100 +2\.50 .*0\.80 0\.50 0\.20"),
    ),
    "55 bench of Modular's MAX": case(
        "2.34, the sum of its rates", typed("ingest 55-max.json", r" 2 +– +2\.34 .*0\.84 0\.50")
    ),
    "70 sweeps over K, vllm#49163": case(
        "one drafter at K = 3 and 7: neither accepts more",
        typed("ingest 70-k3.txt -o k3", r" 3 +18,000 +2\.85 "),
        typed("ingest 70-k7.txt -o k7", r" 7 +18,000 +3\.76 "),
        typed(
            "compare k3 k7",
            "cannot tell how the runs compare",
            never=("accepts more",),
            code=EXIT_NO_DATA,
        ),
    ),
    "72 notes on requests that stall at 1.00 (file 71364800243)": case(
        "8 of 24 requests accept nothing, whatever the mean of 1.95 says",
        typed("ingest 72-responses.jsonl -o run-72", "8 of 24 requests at 1.00"),
        typed("analyze run-72", "^.LOOK. 8 of 24 requests", never=("NOTHING FOUND",)),
    ),
    "73 TensorRT-LLM#5146": case(
        "nothing is accepted from the sixtieth iteration on",
        typed("ingest 73-iterations.jsonl", r"12 of 32 intervals at 1\.00"),
    ),
    "80 SGLang's GET /server_info (file 66017994505)": case(
        "the second rank is at 1.00",
        typed("ingest 80-server-info.json", r"rank 0 +3 +– +2\.27 .*rank 1 +3 +– +1\.00"),
    ),
    "85 vllm#8439: slower with n-grams, as two files of `vllm bench serve`": case(
        "12.4 ms a token with it, 9.8 ms without, at 1.42; one run each has no spread",
        typed("ingest 85-without.json -o without-85", "times alone: the server did not speculate"),
        typed("ingest 85-with.json -o with-85", r" 5 +13,900 +1\.42 .* 12\.4"),
        typed(
            "analyze with-85 --baseline without-85",
            r"12\.4 ms per token with it and 9\.8\d? ms without",
            never=("too few prompts",),
        ),
    ),
}
_PAGES = {
    "12 vllm#24049": case(
        "engine 5 is at 1.08, the other seven at 2.1 to 2.6",
        typed("ingest 12-vllm-dp.prom", r"engine 5 +3 +24 +1\.08 "),
        typed("watch URL/12-vllm-dp --once", "engine 5", r"1\.08"),
    ),
    "13 neutree, and repositories with ray_vllm_spec_decode_*": case(
        "Ray's names are vLLM's: engine 5 is at 1.08",
        typed("ingest 13-ray.prom", r"engine 5 +3 +24 +1\.08 "),
        typed("watch URL/13-ray --once", "engine 5", r"1\.08"),
    ),
    "15 sglang-jax#1584": case(
        "K = 3, and at 1.00 with 4 requests running nothing is accepted",
        typed("ingest 15-sglang-collapsed.prom", r" 3 +– +1\.00 ", "nothing is accepted"),
        typed("watch URL/15-sglang-collapsed --once", r"1\.00", "nothing is accepted"),
    ),
    "54 llama.cpp#26389": case(
        "87 rounds, 2.92, with `_total` in the names or without",
        typed("ingest 54-llamacpp.prom", r" 3 +87 +2\.92 .*0\.80 0\.63"),
        typed("ingest 54-llamacpp-no-total.prom", r" 3 +87 +2\.92 .*0\.80 0\.63"),
    ),
    "67 metrics of vLLM V0 (file 41328798604)": case(
        "60% of the draft tokens; V0 counts no rounds, so there is no length",
        typed("ingest 67-vllm-v0.prom", r"60\.0% of the draft tokens"),
    ),
    "68 pages with underscores in place of colons (file 56203079365)": case(
        "2.10 over 400 rounds; a count of times without their sum is no time",
        typed("ingest 68-underscores.prom", r" 2 +400 +2\.10 +– +0\.65 0\.45 +– +–"),
    ),
    "71 vllm-ascend#10495, as Prometheus stored it": case(
        "from 2.48 to 1.01 at the eighteenth scrape, which 1.84 hides",
        typed("ingest 71-range.json -o run-71", "14 of 32 intervals at 1.0", "from 06-09 10:18:05"),
        typed("analyze run-71", "^.ACT", "14 of 32 intervals", never=("NOTHING FOUND",)),
        typed("check run-71 --fail-on falls_in_log", "broken", code=3),
    ),
    "83 two models behind one address, mostlygeek/llama-swap": case(
        "1.20 and 2.52: each has a drafter of its own, and is no sibling of the other",
        typed(
            "ingest 83-two-models.prom",
            r"gemma 5 3,600 1\.20 .*qwen 3 4,000 2\.52 ",
            "to depth 1 they are",
            never=("sibling",),
        ),
        typed("watch URL/83-two-models --once", r"gemma 3,600 1\.20", never=("sibling",)),
    ),
    "84 a server that has just started": case(
        "nothing was drafted so far, and vLLM does publish acceptance by position",
        typed("ingest 84-just-started.prom", "no draft token was counted"),
        typed(
            "watch URL/84-just-started --once",
            "No draft is counted by position since the start",
            never=("publishes no", "nothing is accepted"),
        ),
    ),
    "86 one Prometheus for vLLM and SGLang (file 62562733941)": case(
        "vLLM accepts 2.52, SGLang nothing",
        typed(
            "ingest 86-fleet.json",
            r"vLLM +– +5,200 +2\.52 .*SGLang +– +– +1\.00 ",
            "SGLang: nothing is accepted",
        ),
    ),
    "90 n-grams that find little: vllm#8439 and recipes with ngram and suffix": case(
        "3.00 holds of 4% of the output alone",
        typed("ingest 90-ngram.prom", r" 5 +300 +3\.00 ", "yield 4% of the output tokens"),
        typed("watch URL/90-ngram --once", "yield 4% of the output tokens"),
    ),
    "91 a DFlash drafter of blocks of 8, asked for 15 tokens": case(
        "nothing is accepted beyond depth 7",
        typed("ingest 91-block.prom", r" 15 +1,000 +5\.10 ", "beyond depth 7, where 20.0%"),
    ),
}
_FILES = {
    "20 speculators#1065, vllm#54526": case(
        "vLLM builds fc for 3 captured layers, the checkpoint has 4: an error",
        inspected("20", "captured_layers_uncounted, certain", "4 layers", code=3),
    ),
    "21 vllm#50170": case(
        "the config names no captured layers; the default, [2, 40, 77], may not be its own",
        inspected(
            "21",
            "names no captured layers",
            r"\[2, 40, 77\]",
            never=(r"No mistake in the files\. note",),
        ),
    ),
    "22 vllm#48894, sglang#10787": case(
        "2,048 positions of the target's 131,072",
        inspected("22", "context_shorter", "--max-model-len 2048"),
    ),
    "23 speculators#574": case(
        "the scaling of rotary positions was lost",
        inspected("23", "rope_scaling_differs", "'factor': 8.0"),
    ),
    "24 sglang#14920, #32334, ATOM#1605": case(
        "it loads: without captured layers there is no fc",
        inspected("24", "0 errors, 2 warnings", "not_run", never=("fc.weight",)),
    ),
    "25 vllm#42143": case("no mistake", inspected("25", "0 errors, 1 warning", "not_run")),
    "27 vllm#18906": case(
        "a narrow drafter needs its own embedding, which was cut off",
        inspected("27", "0 errors"),
        typed(
            "inspect 27/stripped --target 27/target",
            "missing_tensor",
            "no embed_tokens.weight",
            code=3,
        ),
    ),
    "28 SpecForge#219": case(
        "no false alarm: YaRN as the target's", inspected("28", "0 errors, 1 warning", "not_run")
    ),
    "29 SpecForge#431": case(
        "no false alarm: a text's mrope positions are plain; the drafter ends at 8,192",
        inspected("29", "0 errors, 2 warnings", "context_shorter", "not_run"),
    ),
    "30 ROCmFPX#44": case(
        "captured layer 36 of 0 to 35; mask token outside the vocabulary",
        inspected("30", "captured_layers_range", "mask_token_range", code=3),
    ),
    "31 Model-Optimizer#750": case(
        "the MTP head is not in the checkpoint, and so the server cannot speculate",
        typed("inspect 31/target", "mtp_heads_missing, certain", code=3),
        typed(
            "doctor 31/target",
            "^not ready",
            "lacks MTP heads",
            code=1,
            config='{"method": "mtp", "num_speculative_tokens": 1}',
        ),
    ),
    "32 vllm#43455, llm-compressor#2735": case(
        "DeepSeek-V4's head lies under mtp.0: it is there",
        typed(
            "inspect 32/target",
            "DeepSeekV4MTPModel",
            "0 errors",
            "not compared",
            never=("mtp_heads_missing", *_CRASH),
        ),
    ),
    "33 vllm#41789": case(
        "a Gemma 4 assistant, of which not everything is compared",
        typed(
            "inspect 33/drafter",
            "Gemma 4 assistant",
            "not compared",
            never=("give the drafter's folder first", *_CRASH),
        ),
    ),
    "34 Medusa heads of five layers": case(
        "vLLM drops the heads' biases unless medusa_fc_bias is on, and stops here, because "
        "truncated_vocab_size is not the vocabulary's and no token_map is there",
        typed(
            "inspect 34/drafter",
            "medusa_bias_dropped",
            r"assert \(self.truncated_vocab_size ==",
            code=3,
        ),
    ),
    "35 vLLM's longcat_flash_mtp.py": case(
        "LongCat-Flash's head is there",
        typed(
            "inspect 35/target",
            "LongCatFlashMTPModel",
            "0 errors",
            never=("mtp_heads_missing", *_CRASH),
        ),
    ),
    "59 vllm#33330": case(
        "open: the thread has no answer; nothing is wrong in the files",
        inspected("59", "0 errors", "names no captured layers"),
    ),
    "61 vllm#50170, on the shipped pair": case(
        "without layer ids the default repeats a layer of so small a target",
        typed("inspect 61/drafter --target trio", "2, 3, 3", code=3),
        slow=True,
    ),
    "62 vllm#50170, llama.cpp#27040, on the shipped pair": case(
        "it was trained on [2, 3, 5]",
        typed(
            "inspect 62/drafter --target trio --prompts trio --limit 12",
            r"\[2, 3, 5\]",
            never=("layers are one too high",),
            code=3,
        ),
        slow=True,
    ),
    "78 NVIDIA/Model-Optimizer, names below eagle_module": case(
        "the drafter is whole, and each name has a prefix that no engine knows",
        typed(
            "inspect 78/drafter --target 22/target --files-only",
            "1 error",
            'names of tensors begin with "eagle_module."',
            never=("missing", "save the checkpoint again"),
            code=3,
        ),
    ),
    "79 P-EAGLE under the name of EAGLE-3's class (file 39884826912)": case(
        "it drafts in parallel, and is nothing to run as a chain",
        typed(
            "inspect 79/drafter --target 22/target --files-only",
            "P-EAGLE",
            "0 errors, 0 warnings",
            never=("ptd_token_id",),
        ),
    ),
}
_OPTIONS = {
    "26 folders of the EAGLE repository, vllm#11126": case(
        "EAGLE-3 by its tensors; vLLM serves it as eagle3",
        typed("inspect 26/drafter --allow-pickle", r"EAGLE-3, \d+ checks: 0 errors", never=_CRASH),
        typed(
            "doctor trio",
            "^ready",
            "EAGLE-3",
            never=("not supported", "DRIFTSCOPE_STRICT"),
            config=_EAGLE3 % "26/drafter",
        ),
    ),
    "40 vllm#21345, #20436": case(
        "drafters in the speculators format are served, and recorded as EAGLE-3",
        typed(
            "doctor 40/Eagle3DraftModel",
            "^ready",
            "EAGLE-3",
            never=("not supported", "names no drafter"),
        ),
        typed(
            "doctor trio",
            "^ready",
            "EAGLE-3",
            never=("not supported", "names no drafter"),
            config=_EAGLE3 % "40/Eagle3DraftModel",
        ),
        typed(
            "doctor 40/Eagle3Speculator",
            "^ready",
            "EAGLE-3",
            never=("not supported", "names no drafter"),
        ),
        typed(
            "doctor trio",
            "^ready",
            "EAGLE-3",
            never=("not supported", "names no drafter"),
            config=_EAGLE3 % "40/Eagle3Speculator",
        ),
    ),
    "40e vllm#32165": case(
        "the value is not JSON, and where",
        typed(
            "doctor trio",
            "is not JSON",
            "column",
            never=("names no drafter",),
            code=2,
            config='{"method": "eagle3", "model": "x", kv_cache_dtype="auto"}',
        ),
    ),
    "76 serve commands with vLLM 0.32's short and dotted options": case(
        "they name an EAGLE-3 drafter",
        typed(
            "doctor vllm serve 22/target --spec-method eagle3 --spec-model 26/drafter "
            "--spec-tokens 3",
            "^ready",
            "22/target: LlamaForCausalLM",
        ),
        typed("doctor trio --spec-method eagle3 --spec-model 26/drafter --spec-tokens 3", "^ready"),
        typed(
            "doctor trio --speculative-config.method eagle3 --speculative-config.model 26/drafter "
            "--speculative-config.num_speculative_tokens 3",
            "^ready",
            "EAGLE-3",
        ),
    ),
    "77 vllm#8439 and guides for vLLM 0.6, and for SGLang": case(
        "vLLM has no such options, and would not start",
        typed(
            "doctor trio --speculative-model [ngram] --num-speculative-tokens 5",
            "^not ready .*no option --speculative-model",
            code=1,
        ),
        typed(
            "doctor trio --speculative-algorithm EAGLE3",
            "^not ready .*no option --speculative-algorithm",
            code=1,
        ),
    ),
    "87 guides for draft models: Llama-3.2-1B beside Llama-3.1-8B, and beside Qwen3": case(
        "any model drafts that has the target's vocabulary; another is refused",
        typed("doctor 22/target", "^ready", r"draft model \(Llama", config=_DRAFTS % "23/target"),
        typed(
            "doctor 30/target",
            "^not ready .*a vocabulary of 2004 tokens, the target of 2374",
            code=1,
            config=_DRAFTS % "23/target",
        ),
    ),
    "88 a folder of GGUF or of an adapter given as the drafter": case(
        "vLLM finds no config there; what is not on this machine is not examined",
        typed("doctor 22/target", "^not ready .*no config.json", code=1, config=_EAGLE3 % "40"),
        typed("doctor 22/target", "its class is not examined", config=_EAGLE3 % "some/drafter"),
    ),
    "draft syv-ai/qwen38-27b-rtx3090#73": case(
        "drafts are greedy because draft_sample_method was left out",
        typed("doctor trio", "draft_sample_method", config=_EAGLE3 % "26/drafter"),
        typed(
            "doctor trio",
            "synthetic",
            "simulated",
            config='{"method": "eagle3", "model": "26/drafter", "num_speculative_tokens": 3, '
            '"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}',
        ),
    ),
}
_TEXT = {
    "47 tool formats of vLLM's parsers": case(
        "the argument of a call is json in 23 of 23 formats",
        typed(
            "regions 47-tool-formats.json",
            "gpt-oss-tool json",
            "kimi-k3 json",
            "step3 json",
            "llama4-pythonic json",
            never=(r"(?<!\S)(?!gemma4-think )\S+ prose",),
        ),
    )
}
_BOARDS = {
    "rules vllm#24049, neutree: boards and alerts without the probe": case(
        "a board without the probe; rules by replica; an absolute floor for SGLang",
        typed(
            "dashboards --engine vllm -o vllm",
            r"grafana/driftscope-vllm\.json",
            "DriftscopeNothingAccepted",
        ),
        typed(
            "dashboards --engine sglang -o sglang",
            r"grafana/driftscope-sglang\.json",
            "DriftscopeNothingAccepted",
        ),
    )
}
KINDS = {
    "server logs": _LOGS,
    "result files": _RESULTS,
    "metrics pages": _PAGES,
    "checkpoints": _FILES,
    "server options": _OPTIONS,
    "kinds of text": _TEXT,
    "boards and alerts": _BOARDS,
}
CASES: dict[str, Case] = {name: case for cases in KINDS.values() for name, case in cases.items()}
"""Cases by number and the thread that they are from."""
