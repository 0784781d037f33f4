"""Lets a target write the text that its drafters learn from: user turns, then answers.

python -m driftscope_lab.training.write_text --target FOLDER -o DIR [--files N] [--seconds S]
                                             [--seed N] [--device cuda]

The target writes a user turn as it would answer: its chat template's user header is the whole
prompt, after a system prompt of one kind of task. Then it answers, greedily or at 0.7, in one to
twelve turns up to 4,096 tokens. A file that is there stays, and the command goes on after it.
Needs vLLM.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm import SamplingParams

SYSTEM_TEXTS = {
    "chat": (
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
        "You are a friendly assistant. Answer in a few sentences.",
        "You are an expert who explains things to beginners.",
    ),
    "code": (
        "You are a helpful coding assistant. Answer with Python code in a fenced block.",
        (
            "You are a senior programmer. Write short, commented functions in Python, JavaScript, "
            "C or SQL."
        ),
        "You review code and return the corrected code in a fenced block.",
    ),
    "json": (
        "You answer with a JSON object only.",
        "You extract the fields that the user names from a text and return them as JSON.",
        "You return a JSON list of objects, nothing else.",
    ),
    "tools": (
        (
            "You can call functions. Available: get_weather(city: str), search(query: str), "
            "add_event(title: str, date: str), convert(amount: float, from: str, to: str). Reply "
            'with <tool_call>{"name": ..., "arguments": {...}}</tool_call>.'
        ),
    ),
    "maths": (
        "You are a careful maths tutor. Solve the exercise step by step.",
        "You solve word problems and give the result in the last line.",
    ),
    "stories": ("You are a writer of short stories.", "You write poems, dialogues and scenes."),
    "translation": (
        "You translate what the user writes into French, Spanish or German and nothing else.",
        "You translate into English and explain difficult words.",
    ),
    "summaries": (
        "You summarise the text of the user in three sentences.",
        "You turn the text of the user into a list of key points.",
        "You rewrite the text of the user in a formal tone.",
    ),
}
"""Kind of task -> system prompts, of which one is drawn."""
PER_FILE = 64
FILES = 40
AT_ONCE = {"cpu": 64, "cuda": 512}
"""Device -> conversations that are written side by side."""
TURNS, TURN_SHARES = (1, 3, 12), (0.6, 0.3, 0.1)
USER_TOKENS = (48, 96, 96, 220)
USER_TEMPERATURE = 0.9
ANSWER_TOKENS = 320
SHORTEST_TURN = 4
"""Tokens below which a drawn user turn ends the conversation."""
LONGEST, CONTEXT = 3500, 4096
"""Tokens after which no turn follows, and the context that is served."""


@dataclass(slots=True, kw_only=True)
class Draft:
    """A conversation that is being written: token ids, its answers' (first, end), and the turns
    that are left."""

    kind: str
    ids: list[int]
    turns: int
    temperature: float
    answers: list[tuple[int, int]] = field(default_factory=list)
    answering: bool = False
    """Whether the target writes an answer now, not a user turn."""


class Writer:
    """A target in vLLM that writes conversations in its ChatML template."""

    def __init__(self, target: Path, device: str, seed: int) -> None:
        from transformers import AutoTokenizer
        from vllm import LLM

        self._tokenizer: Any = AutoTokenizer.from_pretrained(target)
        self._at_once = AT_ONCE[device]
        # Graphs of decoding steps alone are captured in seconds, without a compilation.
        graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
        memory = {"gpu_memory_utilization": 0.2, "kv_cache_memory_bytes": 12 << 30}
        on_gpu: dict[str, Any] = {"compilation_config": graphs, **memory}
        self._llm = LLM(
            str(target),
            max_model_len=CONTEXT,
            max_num_seqs=self._at_once,
            dtype="bfloat16",
            seed=seed,
            **(on_gpu if device == "cuda" else {"enforce_eager": True}),
        )
        self._end: int = self._tokenizer.convert_tokens_to_ids("<|im_end|>")

    def write(self, seed: int, until: float) -> Iterator[Draft]:
        """Yield conversations as they end. After `until`, of time.monotonic(), no turn begins."""
        numbers, asked = itertools.count(), itertools.count()
        engine, open_drafts = self._llm.llm_engine, dict[str, Draft]()

        def ask(one: Draft) -> None:
            name = f"{next(asked)}"
            open_drafts[name] = one
            engine.add_request(name, {"prompt_token_ids": one.ids}, _settings(one, self._end))

        while open_drafts or time.monotonic() < until:
            while len(open_drafts) < self._at_once and time.monotonic() < until:
                ask(self._begun(Random(f"{seed} {next(numbers)}")))
            for output in engine.step():
                one = open_drafts.pop(output.request_id.partition("-")[0])
                goes_on = self._take(one, list(output.outputs[0].token_ids))
                if goes_on and time.monotonic() < until:
                    ask(one)
                elif one.answers:
                    yield one

    def _begun(self, draw: Random) -> Draft:
        kind = draw.choice(list(SYSTEM_TEXTS))
        system = draw.choice(SYSTEM_TEXTS[kind])
        ids = self._ids(f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n")
        (turns,) = draw.choices(TURNS, TURN_SHARES)
        return Draft(kind=kind, ids=ids, turns=turns, temperature=draw.choice([0.0, 0.7]))

    def _take(self, one: Draft, ids: list[int]) -> bool:
        """Add what was written, and the header of what follows; return whether anything does."""
        if not one.answering:
            turn = [token for token in ids if token != self._end]
            if len(turn) < SHORTEST_TURN:
                return False
            one.ids += turn + self._ids("<|im_end|>\n<|im_start|>assistant\n")
            one.answering = True
            return True
        one.answers.append((len(one.ids), len(one.ids) + len(ids)))
        one.ids += ids
        one.turns -= 1
        if not one.turns or len(one.ids) >= LONGEST:
            return False
        cut = ids[-1:] != [self._end]
        one.ids += self._ids("<|im_end|>" * cut + "\n<|im_start|>user\n")
        one.answering = False
        return True

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids


def _settings(one: Draft, end: int) -> SamplingParams:
    """Return how the next turn is drawn."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    length = USER_TOKENS[len(one.ids) % len(USER_TOKENS)]
    return SamplingParams(
        temperature=one.temperature if one.answering else USER_TEMPERATURE,
        max_tokens=ANSWER_TOKENS if one.answering else length,
        stop_token_ids=[end],
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def save(drafts: Sequence[Draft], path: Path) -> None:
    """Write conversations as JSON Lines; the file is there only if it is whole."""
    partial = path.with_suffix(".partial")
    lines = (
        json.dumps(
            {
                "kind": one.kind,
                "temperature": one.temperature,
                "ids": one.ids,
                "answers": one.answers,
            }
        )
        for one in drafts
    )
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.replace(path)


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Exit code 0: all files are there."""
    parser = argparse.ArgumentParser(
        prog="python -m driftscope_lab.training.write_text",
        description="Let a target write the text that its drafters learn from.",
    )
    parser.add_argument("--target", type=Path, required=True, help="folder of the target")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write into")
    parser.add_argument("--files", type=int, default=FILES, help="end when so many are there")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing after them")
    parser.add_argument("--device", choices=AT_ONCE, default="cpu")
    parser.add_argument("--seed", type=int, default=0, help="one per process that writes")
    options = parser.parse_args(arguments)
    os.environ |= {"VLLM_PLUGINS": "none", "VLLM_CPU_KVCACHE_SPACE": "2"}
    options.output.mkdir(parents=True, exist_ok=True)
    files = len(list(options.output.glob(f"{options.seed}-*.jsonl")))
    seed = 10_000 * options.seed + files
    writer = Writer(options.target, options.device, seed)
    began, whole = time.monotonic(), list[Draft]()
    for one in writer.write(seed, began + options.seconds):
        whole.append(one)
        if len(whole) == PER_FILE:
            _end_file(whole, options, files, began)
            files += 1
            if files >= options.files:
                break
    if whole and files < options.files:
        _end_file(whole, options, files, began)
    return 0


def _end_file(whole: list[Draft], options: argparse.Namespace, number: int, began: float) -> None:
    """Save the conversations as one file, say so, and leave the list empty."""
    path = options.output / f"{options.seed}-{number:05d}.jsonl"
    save(whole, path)
    tokens = sum(end - first for one in whole for first, end in one.answers)
    whole.clear()
    sys.stderr.write(f"{path}: {tokens} tokens of answers, {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    raise SystemExit(main())
