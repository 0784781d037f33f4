"""The cases: what somebody had, what they would type, and what has to be printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from driftscope.errors import EXIT_NO_DATA

INPUTS = Path(__file__).parent / "inputs"


class Led(StrEnum):
    """Whether driftscope led to the cause when the case was first tried."""

    YES = "led"
    PARTLY = "partly"
    NO = "no"
    MISLED = "misled"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command, with what it has to print."""

    command: str
    """Words of the command without `driftscope`, split at spaces."""
    says: tuple[str, ...] = ()
    """Patterns that the output has, white space as one space."""
    never: tuple[str, ...] = ()
    """Patterns that would mislead."""
    code: int = 0
    config: str = ""
    """Value of --speculative-config, which may have spaces."""

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words of the command."""
        more = ("--speculative-config", self.config) if self.config else ()
        return (*self.command.split(), *more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case."""

    number: str
    source: str
    """Thread that it is from."""
    kind: str
    before: Led
    """What it was when the case was first tried."""
    right: str
    """Right answer in words."""
    steps: tuple[Step, ...] = field(default=())
    slow: bool = False
    """Whether it takes a minute."""


LOGS, RESULTS, PAGES = "server logs", "result files", "metrics pages"
FILES, OPTIONS, TEXT, BOARDS = "checkpoints", "server options", "kinds of text", "boards and alerts"
_EAGLE3 = '{"method": "eagle3", "model": "%s", "num_speculative_tokens": 3}'
_CRASH = ("bug in driftscope", "Traceback")


def _inspect(place: str, *says: str, never: tuple[str, ...] = (), code: int = EXIT_NO_DATA) -> Step:
    """Inspect a drafter whose target has too few tensors to run, so that files alone tell."""
    return Step(
        command=f"inspect {place}/drafter --target {place}/target",
        says=says,
        never=(*never, *_CRASH),
        code=code,
    )


CASES: tuple[Case, ...] = (
    Case(
        number="01",
        source="mratsim/sglang-qwen38fn-sm120-turbo#2",
        kind=LOGS,
        before=Led.MISLED,
        right="1.83, not 3.07: 18 of 30 lines at 1.00, from 10:04, while requests queue",
        steps=(
            Step(
                command="ingest 01-sglang-collapse.log -o run-01",
                says=(r" 1\.83 ", "18 of 30 lines .*10:04:40", "37 queued requests"),
            ),
            Step(
                command="analyze run-01",
                says=("18 of 30 lines", "1.83"),
                never=("TOO LITTLE DATA",),
            ),
            Step(command="check run-01 --fail-on falls_in_log", says=("broken",), code=3),
        ),
    ),
    Case(
        number="02",
        source="local-inference-lab/vllm#54",
        kind=LOGS,
        before=Led.MISLED,
        right="broken, not idle: 8,330 tokens were drafted, 1 accepted",
        steps=(
            Step(
                command="ingest 02-vllm-dead.log -o run-02",
                says=(r" 1,190 +1\.00 ", "nothing is accepted: 1 of 8,330"),
            ),
            Step(
                command="analyze run-02",
                says=("2 of 2 lines|nothing is accepted",),
                never=("TOO LITTLE DATA",),
            ),
        ),
    ),
    Case(
        number="04",
        source="llama.cpp#23269",
        kind=LOGS,
        before=Led.NO,
        right="the drafter's own counts since the start: 1,308 drafts, 2.53 tokens per round",
        steps=(
            Step(
                command="ingest 04-llamacpp-old.log",
                says=(r"draft-mtp .*1,308 +2\.53 ", r"70\.0% .*105 of 150", "since the server"),
            ),
        ),
    ),
    Case(
        number="05",
        source="vllm#9539, #6768, #7301",
        kind=LOGS,
        before=Led.NO,
        right="4,400 rounds of 10,500 emitted tokens: 2.39; what system efficiency is",
        steps=(
            Step(
                command="ingest 05-vllm-v0.log",
                says=(r" 3 +4,400 +2\.39 ", r"System efficiency is emitted tokens / \(rounds"),
            ),
        ),
    ),
    Case(
        number="06",
        source="llama.cpp#24536, #25792",
        kind=LOGS,
        before=Led.NO,
        right="2.00 with 0.62 and 0.38 by position, and each drafter's own counts",
        steps=(
            Step(
                command="ingest 06-llamacpp-drafters.log",
                says=(r" 2 +123 +2\.00 .*0\.62 0\.38", r"ngram-mod +\S+ +7 +13\.86", "draft-mtp"),
                never=("does not fit together",),
            ),
        ),
    ),
    Case(
        number="07",
        source="llamacpp-rocm#129, ROCmFPX#44, llama.cpp#28433",
        kind=LOGS,
        before=Led.NO,
        right="4.30 over 1,000 rounds; 2.55 over five requests, with an interval",
        steps=(
            Step(command="ingest 07-llamacpp-mean-len.log", says=(r" 1,000 +4\.30 ",)),
            Step(command="ingest 07-llamacpp-requests.log", says=(r" 100 +2\.55 +2\.\d\d to ",)),
        ),
    ),
    Case(
        number="08",
        source="logs of docker compose",
        kind=LOGS,
        before=Led.YES,
        right="2.88 through prefixes and colours",
        steps=(Step(command="ingest 08-compose.log", says=(r" 3 +1,000 +2\.88 .*0\.82 0\.61",)),),
    ),
    Case(
        number="10",
        source="vllm#33497, #51742",
        kind=RESULTS,
        before=Led.NO,
        right="K = 1, 94,000 rounds, 1.36",
        steps=(Step(command="ingest 10-vllm-console.txt", says=(r" 1 +94,000 +1\.36 ",)),),
    ),
    Case(
        number="11",
        source="sglang#13376, #13553",
        kind=RESULTS,
        before=Led.NO,
        right="5.86, which is the server's since its start, not this run's",
        steps=(
            Step(
                command="ingest 11-sglang-console.txt",
                says=(r" 5\.86 .*3100\.2", "since its start, not this run's"),
            ),
        ),
    ),
    Case(
        number="12",
        source="vllm#24049",
        kind=PAGES,
        before=Led.MISLED,
        right="engine 5 is at 1.08, the other seven at 2.1 to 2.6",
        steps=(
            Step(command="ingest 12-vllm-dp.prom", says=(r"engine 5 +3 +24 +1\.08 ",)),
            Step(command="watch URL/12-vllm-dp --once", says=("engine 5", r"1\.08")),
        ),
    ),
    Case(
        number="13",
        source="neutree, and repositories with ray_vllm_spec_decode_*",
        kind=PAGES,
        before=Led.NO,
        right="Ray's names are vLLM's: engine 5 is at 1.08",
        steps=(
            Step(command="ingest 13-ray.prom", says=(r"engine 5 +3 +24 +1\.08 ",)),
            Step(command="watch URL/13-ray --once", says=("engine 5", r"1\.08")),
        ),
    ),
    Case(
        number="15",
        source="sglang-jax#1584",
        kind=PAGES,
        before=Led.PARTLY,
        right="K = 3, and at 1.00 with 4 requests running nothing is accepted",
        steps=(
            Step(
                command="ingest 15-sglang-collapsed.prom",
                says=(r" 3 +– +1\.00 ", "nothing is accepted"),
            ),
            Step(
                command="watch URL/15-sglang-collapsed --once",
                says=(r"1\.00", "nothing is accepted"),
            ),
        ),
    ),
    Case(
        number="17",
        source="llama.cpp#12603",
        kind=RESULTS,
        before=Led.YES,
        right="18.7% of the draft tokens; rounds are not in the file, so no length",
        steps=(
            Step(
                command="ingest 17-llamacpp-timings.json",
                says=(r"18\.7% of the draft tokens", "counts no rounds"),
            ),
        ),
    ),
    Case(
        number="20",
        source="speculators#1065, vllm#54526",
        kind=FILES,
        before=Led.MISLED,
        right="vLLM builds fc for 3 captured layers, the checkpoint has 4: an error",
        steps=(_inspect("20", "captured_layers_uncounted, certain", "4 layers", code=3),),
    ),
    Case(
        number="21",
        source="vllm#50170",
        kind=FILES,
        before=Led.PARTLY,
        right="the config names no captured layers; the default, [2, 40, 77], may not be its own",
        steps=(
            _inspect(
                "21",
                "names no captured layers",
                r"\[2, 40, 77\]",
                never=(r"No mistake in the files\. note",),
            ),
        ),
    ),
    Case(
        number="22",
        source="vllm#48894, sglang#10787",
        kind=FILES,
        before=Led.YES,
        right="2,048 positions of the target's 131,072",
        steps=(_inspect("22", "context_shorter", "--max-model-len 2048"),),
    ),
    Case(
        number="23",
        source="speculators#574",
        kind=FILES,
        before=Led.YES,
        right="the scaling of rotary positions was lost",
        steps=(_inspect("23", "rope_scaling_differs", "'factor': 8.0"),),
    ),
    Case(
        number="24",
        source="sglang#14920, #32334, ATOM#1605",
        kind=FILES,
        before=Led.MISLED,
        right="it loads: without captured layers there is no fc",
        steps=(_inspect("24", "0 errors, 2 warnings", "not_run", never=("fc.weight",)),),
    ),
    Case(
        number="25",
        source="vllm#42143",
        kind=FILES,
        before=Led.YES,
        right="no mistake",
        steps=(_inspect("25", "0 errors, 1 warning", "not_run"),),
    ),
    Case(
        number="26",
        source="folders of the EAGLE repository, vllm#11126",
        kind=OPTIONS,
        before=Led.MISLED,
        right="EAGLE-3 by its tensors; vLLM serves it as eagle3",
        steps=(
            Step(
                command="inspect 26/drafter --allow-pickle",
                says=(r"EAGLE-3, \d+ checks: 0 errors",),
                never=_CRASH,
            ),
            Step(
                command="doctor trio",
                config=_EAGLE3 % "26/drafter",
                says=("^ready", "EAGLE-3"),
                never=("not supported", "DRIFTSCOPE_STRICT"),
            ),
        ),
    ),
    Case(
        number="27",
        source="vllm#18906",
        kind=FILES,
        before=Led.YES,
        right="a narrow drafter needs its own embedding, which was cut off",
        steps=(
            _inspect("27", "0 errors"),
            Step(
                command="inspect 27/stripped --target 27/target",
                says=("missing_tensor", "no embed_tokens.weight"),
                code=3,
            ),
        ),
    ),
    Case(
        number="28",
        source="SpecForge#219",
        kind=FILES,
        before=Led.YES,
        right="no false alarm: YaRN as the target's",
        steps=(_inspect("28", "0 errors, 1 warning", "not_run"),),
    ),
    Case(
        number="29",
        source="SpecForge#431",
        kind=FILES,
        before=Led.NO,
        right="no false alarm: a text's mrope positions are plain; the drafter ends at 8,192",
        steps=(_inspect("29", "0 errors, 2 warnings", "context_shorter", "not_run"),),
    ),
    Case(
        number="30",
        source="ROCmFPX#44",
        kind=FILES,
        before=Led.NO,
        right="captured layer 36 of 0 to 35; mask token outside the vocabulary",
        steps=(_inspect("30", "captured_layers_range", "mask_token_range", code=3),),
    ),
    Case(
        number="31",
        source="Model-Optimizer#750",
        kind=FILES,
        before=Led.YES,
        right="the MTP head is not in the checkpoint, and so the server cannot speculate",
        steps=(
            Step(command="inspect 31/target", says=("mtp_heads_missing, certain",), code=3),
            Step(
                command="doctor 31/target",
                config='{"method": "mtp", "num_speculative_tokens": 1}',
                says=("^not ready", "lacks MTP heads"),
                code=1,
            ),
        ),
    ),
    Case(
        number="32",
        source="vllm#43455, llm-compressor#2735",
        kind=FILES,
        before=Led.MISLED,
        right="DeepSeek-V4's head lies under mtp.0: it is there",
        steps=(
            Step(
                command="inspect 32/target",
                says=("DeepSeekV4MTPModel", "0 errors", "not compared"),
                never=("mtp_heads_missing", *_CRASH),
            ),
        ),
    ),
    Case(
        number="33",
        source="vllm#41789",
        kind=FILES,
        before=Led.NO,
        right="a Gemma 4 assistant, of which not everything is compared",
        steps=(
            Step(
                command="inspect 33/drafter",
                says=("Gemma 4 assistant", "not compared"),
                never=("give the drafter's folder first", *_CRASH),
            ),
        ),
    ),
    Case(
        number="34",
        source="Medusa heads of five layers",
        kind=FILES,
        before=Led.NO,
        right="vLLM drops the heads' biases unless medusa_fc_bias is on, and stops here, because "
        "truncated_vocab_size is not the vocabulary's and no token_map is there",
        steps=(
            Step(
                command="inspect 34/drafter",
                says=("medusa_bias_dropped", r"assert \(self.truncated_vocab_size =="),
                code=3,
            ),
        ),
    ),
    Case(
        number="35",
        source="vLLM's longcat_flash_mtp.py",
        kind=FILES,
        before=Led.MISLED,
        right="LongCat-Flash's head is there",
        steps=(
            Step(
                command="inspect 35/target",
                says=("LongCatFlashMTPModel", "0 errors"),
                never=("mtp_heads_missing", *_CRASH),
            ),
        ),
    ),
    Case(
        number="40",
        source="vllm#21345, #20436",
        kind=OPTIONS,
        before=Led.MISLED,
        right="drafters in the speculators format are served, and recorded as EAGLE-3",
        steps=tuple(
            Step(
                command=command,
                config=config,
                says=("^ready", "EAGLE-3"),
                never=("not supported", "names no drafter"),
            )
            for name in ("Eagle3DraftModel", "Eagle3Speculator")
            for command, config in (
                (f"doctor 40/{name}", ""),
                ("doctor trio", _EAGLE3 % f"40/{name}"),
            )
        ),
    ),
    Case(
        number="40e",
        source="vllm#32165",
        kind=OPTIONS,
        before=Led.MISLED,
        right="the value is not JSON, and where",
        steps=(
            Step(
                command="doctor trio",
                config='{"method": "eagle3", "model": "x", kv_cache_dtype="auto"}',
                says=("is not JSON", "column"),
                never=("names no drafter",),
                code=2,
            ),
        ),
    ),
    Case(
        number="41",
        source="SpecForge, raw_data/data.json",
        kind=RESULTS,
        before=Led.PARTLY,
        right="2.17 in mtbench, with and without the model's name, one line or pretty",
        steps=tuple(
            Step(command=f"ingest 41-specforge{name}", says=(r"mtbench, batch 1 .* 2\.17 ",))
            for name in (".json", "-pretty.jsonl", "-model.jsonl")
        ),
    ),
    Case(
        number="43",
        source='vllm: "0 % with FI Cutlass DeepSeekR1 NVFP4 ep"',
        kind=LOGS,
        before=Led.NO,
        right="4,100 rounds, 1.02; nothing beyond depth 1",
        steps=(
            Step(
                command="ingest 43-rounding.log",
                says=(r" 3 +4,100 +1\.02 .*0\.02 0\.00", "beyond depth 1"),
            ),
        ),
    ),
    Case(
        number="44",
        source="speculators#613",
        kind=LOGS,
        before=Led.NO,
        right="only depth 1 lives: 0.15, 0.00 ...",
        steps=(
            Step(
                command="ingest 44-depth-1.log -o run-44",
                says=(r" 8 +988 +1\.15 .*0\.15 0\.00", "beyond depth 1, where 15.0%"),
            ),
            Step(command="analyze run-44", says=("beyond depth 1",)),
        ),
    ),
    Case(
        number="45",
        source="suffix decoding with K = 12",
        kind=LOGS,
        before=Led.NO,
        right="500 rounds that verified 2.4 of 12 tokens: no rate beyond depth 1",
        steps=(
            Step(
                command="ingest 45-suffix.log",
                says=(r" 12 +500 +1\.80 .*0\.34 – –", "no rate beyond depth 1"),
            ),
        ),
    ),
    Case(
        number="46",
        source="vllm#43455, local-inference-lab/vllm#54",
        kind=RESULTS,
        before=Led.MISLED,
        right="nothing is accepted: 9 of 168,000; the healthy run accepts 4.77",
        steps=(
            Step(
                command="ingest 46-dead.json -o dead",
                says=(r" 8 +21,000 +1\.00 ", "nothing is accepted: 9 of 168,000"),
            ),
            Step(command="ingest 46-healthy.json -o healthy", says=(r" 450,000 +4\.77 ",)),
            Step(
                command="analyze dead",
                says=("nothing is accepted|Nothing is accepted",),
                never=("TOO LITTLE DATA",),
            ),
            Step(command="check dead --fail-on nothing_accepted", says=("broken",), code=3),
            Step(command="compare dead healthy", says=("healthy accepts more than dead",)),
        ),
    ),
    Case(
        number="47",
        source="tool formats of vLLM's parsers",
        kind=TEXT,
        before=Led.MISLED,
        right="the argument of a call is json in 23 of 23 formats",
        steps=(
            Step(
                command="regions 47-tool-formats.json",
                says=("gpt-oss-tool json", "kimi-k3 json", "step3 json", "llama4-pythonic json"),
                never=(r"(?<!\S)(?!gemma4-think )\S+ prose",),
            ),
        ),
    ),
    Case(
        number="48",
        source="mostlygeek/llama-swap#1032",
        kind=RESULTS,
        before=Led.PARTLY,
        right="1.18 from the response, its event stream, and a proxy's envelope",
        steps=tuple(
            Step(command=f"ingest 48-{name}", says=(r" 3 +44 +1\.18 .*0\.09 0\.05",))
            for name in ("one.json", "stream.txt", "wrapped.json")
        ),
    ),
    Case(
        number="49",
        source="vllm#24243, #27737",
        kind=RESULTS,
        before=Led.NO,
        right="5,000 rounds, 2.50, 0.70 0.50 0.30",
        steps=(
            Step(command="ingest 49-offline.txt", says=(r" 3 +5,000 +2\.50 .*0\.70 0\.50 0\.30",)),
        ),
    ),
    Case(
        number="50",
        source="TensorRT-LLM#9855, #17082, #17474",
        kind=RESULTS,
        before=Led.NO,
        right="1.88 over the rounds that drafted; counts of 0 were not filled",
        steps=(
            Step(command="ingest 50-trtllm-iterations.json", says=(r" 8 +1\.88 ",)),
            Step(
                command="ingest 50-trtllm-perf-metrics.jsonl",
                says=("no draft token was counted", r" 200\.0 "),
            ),
        ),
    ),
    Case(
        number="52",
        source="sglang#11144",
        kind=LOGS,
        before=Led.PARTLY,
        right="42 rounds of the request, 2.81 without the prefill's token",
        steps=(Step(command="ingest 52-finish.log", says=(r" 42 +2\.81 ", "finished requests")),),
    ),
    Case(
        number="53",
        source="mlc-llm#2789",
        kind=RESULTS,
        before=Led.NO,
        right="100 rounds, 2.50; step 0 is the target's own token",
        steps=(Step(command="ingest 53-mlc.json", says=(r" 3 +100 +2\.50 .*0\.80 0\.50 0\.20",)),),
    ),
    Case(
        number="54",
        source="llama.cpp#26389",
        kind=PAGES,
        before=Led.YES,
        right="87 rounds, 2.92, with `_total` in the names or without",
        steps=tuple(
            Step(command=f"ingest 54-llamacpp{name}.prom", says=(r" 3 +87 +2\.92 .*0\.80 0\.63",))
            for name in ("", "-no-total")
        ),
    ),
    Case(
        number="55",
        source="bench of Modular's MAX",
        kind=RESULTS,
        before=Led.NO,
        right="2.34, the sum of its rates",
        steps=(Step(command="ingest 55-max.json", says=(r" 2 +– +2\.34 .*0\.84 0\.50",)),),
    ),
    Case(
        number="59",
        source="vllm#33330",
        kind=FILES,
        before=Led.OPEN,
        right="open: the thread has no answer; nothing is wrong in the files",
        steps=(_inspect("59", "0 errors", "names no captured layers"),),
    ),
    Case(
        number="61",
        source="vllm#50170, on the shipped pair",
        kind=FILES,
        before=Led.YES,
        right="without layer ids the default repeats a layer of so small a target",
        steps=(Step(command="inspect 61/drafter --target trio", says=("2, 3, 3",), code=3),),
        slow=True,
    ),
    Case(
        number="62",
        source="vllm#50170, llama.cpp#27040, on the shipped pair",
        kind=FILES,
        before=Led.PARTLY,
        right="it was trained on [2, 3, 5]",
        steps=(
            Step(
                command="inspect 62/drafter --target trio --prompts trio --limit 12",
                says=(r"\[2, 3, 5\]",),
                never=("layers are one too high",),
                code=3,
            ),
        ),
        slow=True,
    ),
    Case(
        number="63",
        source="sglang#16974",
        kind=LOGS,
        before=Led.MISLED,
        right="K = 2, not 1: the rate of this version is length / (K + 1)",
        steps=(
            Step(
                command="ingest 63-sglang-old-rate.log",
                says=(r"DP1 +2 +– +1\.8[45] ", r"DP0 +2 +– +1\.89 "),
            ),
        ),
    ),
    Case(
        number="64",
        source="Loki's HTTP API, newest first",
        kind=LOGS,
        before=Led.MISLED,
        right="vllm-1 died after its first line; vllm-0 is well",
        steps=(
            Step(
                command="ingest 64-loki-answer.json",
                says=(
                    r"vllm-1 APIServer pid=1 +3 +603 +1\.61 ",
                    r"vllm-0 APIServer pid=1 +3 +603 +2\.82 ",
                    "2 of 3 lines at 1.00: nothing was accepted there, from 06-02 09:15:10",
                ),
            ),
        ),
    ),
    Case(
        number="65",
        source="journalctl -o json, which writes lines with colours as bytes",
        kind=LOGS,
        before=Led.MISLED,
        right="2 of 4 lines accept nothing",
        steps=(
            Step(
                command="ingest 65-journald.json",
                says=(r" 3 +804 +1\.91 ", "2 of 4 lines at 1.00"),
            ),
        ),
    ),
    Case(
        number="66",
        source="notes on a pipeline of four ranks (file 59102321425)",
        kind=LOGS,
        before=Led.NO,
        right="1.06, of which the counts were cut off",
        steps=(Step(command="ingest 66-cut.md", says=(r" – +– +1\.06 ",)),),
    ),
    Case(
        number="67",
        source="metrics of vLLM V0 (file 41328798604)",
        kind=PAGES,
        before=Led.NO,
        right="60% of the draft tokens; V0 counts no rounds, so there is no length",
        steps=(Step(command="ingest 67-vllm-v0.prom", says=(r"60\.0% of the draft tokens",)),),
    ),
    Case(
        number="68",
        source="pages with underscores in place of colons (file 56203079365)",
        kind=PAGES,
        before=Led.NO,
        right="2.10 over 400 rounds; a count of times without their sum is no time",
        steps=(
            Step(
                command="ingest 68-underscores.prom",
                says=(r" 2 +400 +2\.10 +– +0\.65 0\.45 +– +–",),
            ),
        ),
    ),
    Case(
        number="69",
        source="mit-han-lab/fastrl#4",
        kind=LOGS,
        before=Led.PARTLY,
        right="above its threshold of 48 requests it does not draft",
        steps=(
            Step(
                command="ingest 69-sglang-threshold.log",
                says=(
                    "2 of 4 lines at 1.00: nothing was accepted or drafted there",
                    "48 running requests, and 12 in the other lines",
                ),
            ),
        ),
    ),
    Case(
        number="70",
        source="sweeps over K, vllm#49163",
        kind=RESULTS,
        before=Led.MISLED,
        right="one drafter at K = 3 and 7: neither accepts more",
        steps=(
            Step(command="ingest 70-k3.txt -o k3", says=(r" 3 +18,000 +2\.85 ",)),
            Step(command="ingest 70-k7.txt -o k7", says=(r" 7 +18,000 +3\.76 ",)),
            Step(
                command="compare k3 k7",
                says=("cannot tell how the runs compare",),
                never=("accepts more",),
                code=EXIT_NO_DATA,
            ),
        ),
    ),
    Case(
        number="rules",
        source="vllm#24049, neutree: boards and alerts without the probe",
        kind=BOARDS,
        before=Led.NO,
        right="a board without the probe; rules by replica; an absolute floor for SGLang",
        steps=(
            *(
                Step(
                    command=f"dashboards --engine {engine} -o {engine}",
                    says=(rf"grafana/driftscope-{engine}\.json", "DriftscopeNothingAccepted"),
                )
                for engine in ("vllm", "sglang")
            ),
        ),
    ),
    Case(
        number="draft",
        source="syv-ai/qwen38-27b-rtx3090#73",
        kind=OPTIONS,
        before=Led.NO,
        right="drafts are greedy because draft_sample_method was left out",
        steps=(
            Step(
                command="doctor trio",
                config=_EAGLE3 % "26/drafter",
                says=("draft_sample_method",),
            ),
            Step(
                command="doctor trio",
                config='{"method": "eagle3", "model": "26/drafter", "num_speculative_tokens": 3, '
                '"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}',
                says=("synthetic", "simulated"),
            ),
        ),
    ),
)
