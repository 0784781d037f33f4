"""Lets a target write the text that its drafters learn from: user turns, then answers.

python -m driftscope_lab.training.write_text --target FOLDER -o DIR [--files N]

The target writes a user turn as it would answer: its chat template's user header is the whole
prompt, after a system prompt of one kind of task. Then it answers, greedily or at 0.7, in one to
twelve turns up to 4,096 tokens. One file after another; a file that is there stays, so that the
command goes on where it was stopped, and a file depends on its number only. Needs vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

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
TURNS, TURN_SHARES = (1, 3, 12), (0.55, 0.3, 0.15)
USER_TOKENS = (48, 96, 96, 220)
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


class Writer:
    """A target in vLLM that writes conversations in its ChatML template."""

    def __init__(self, target: Path) -> None:
        from transformers import AutoTokenizer
        from vllm import LLM

        self._tokenizer: Any = AutoTokenizer.from_pretrained(target)
        self._llm = LLM(
            str(target),
            max_model_len=CONTEXT,
            max_num_seqs=32,
            enforce_eager=True,
            dtype="bfloat16",
        )
        self._end: int = self._tokenizer.convert_tokens_to_ids("<|im_end|>")

    def write(self, number: int) -> list[Draft]:
        """Return the conversations of the file `number`."""
        draw = Random(number)
        drafts = [self._begun(draw, number * PER_FILE + i) for i in range(PER_FILE)]
        open_drafts = drafts
        while open_drafts:
            open_drafts = self._asked(open_drafts, draw)
            open_drafts = self._answered(open_drafts, draw)
        return [one for one in drafts if one.answers]

    def _begun(self, draw: Random, index: int) -> Draft:
        kind = list(SYSTEM_TEXTS)[index % len(SYSTEM_TEXTS)]
        system = draw.choice(SYSTEM_TEXTS[kind])
        head = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"
        (turns,) = draw.choices(TURNS, TURN_SHARES)
        ids = self._ids(head)
        return Draft(kind=kind, ids=ids, turns=turns, temperature=draw.choice([0.0, 0.7]))

    def _asked(self, drafts: Sequence[Draft], draw: Random) -> list[Draft]:
        """Add a user turn and the header of the answer; return those with a turn worth asking."""
        limits = ((1.0, draw.choice(USER_TOKENS)) for _ in drafts)
        kept = []
        for one, ids in zip(drafts, self._sampled(drafts, limits, draw), strict=True):
            turn = [token for token in ids if token != self._end]
            if len(turn) >= SHORTEST_TURN:
                one.ids += turn + self._ids("<|im_end|>\n<|im_start|>assistant\n")
                kept.append(one)
        return kept

    def _answered(self, drafts: Sequence[Draft], draw: Random) -> list[Draft]:
        """Add an answer; return those that go on, with the header of their next turn."""
        limits = ((one.temperature, ANSWER_TOKENS) for one in drafts)
        kept = []
        for one, ids in zip(drafts, self._sampled(drafts, limits, draw), strict=True):
            one.answers.append((len(one.ids), len(one.ids) + len(ids)))
            one.ids += ids
            one.turns -= 1
            if one.turns and ids[-1:] == [self._end] and len(one.ids) < LONGEST:
                one.ids += self._ids("\n<|im_start|>user\n")
                kept.append(one)
        return kept

    def _sampled(
        self, drafts: Sequence[Draft], limits: Iterable[tuple[float, int]], draw: Random
    ) -> list[list[int]]:
        """Return what follows each draft, at its (temperature, most tokens)."""
        from vllm import SamplingParams, TokensPrompt

        settings = [
            SamplingParams(
                temperature=temperature,
                top_p=0.95 if temperature == 1.0 else 1.0,
                max_tokens=tokens,
                seed=draw.randrange(2**31),
                stop_token_ids=[self._end],
            )
            for temperature, tokens in limits
        ]
        prompts = [TokensPrompt(prompt_token_ids=one.ids) for one in drafts]
        outputs = self._llm.generate(prompts, settings, use_tqdm=False) if prompts else []
        return [list(one.outputs[0].token_ids) for one in outputs]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids


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
    parser.add_argument("--files", type=int, default=FILES)
    options = parser.parse_args(arguments)
    os.environ |= {"VLLM_PLUGINS": "none", "VLLM_CPU_KVCACHE_SPACE": "2"}
    options.output.mkdir(parents=True, exist_ok=True)
    writer: Writer | None = None
    for number in range(options.files):
        path = options.output / f"{number:05d}.jsonl"
        if path.exists():
            continue
        writer, began = writer or Writer(options.target), time.monotonic()
        drafts = writer.write(number)
        save(drafts, path)
        tokens = sum(end - first for one in drafts for first, end in one.answers)
        seconds = time.monotonic() - began
        sys.stderr.write(f"{path}: {tokens} tokens of answers in {seconds:.0f} s\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
