"""Prompt suites: shipped ones, files of prompts, and their forms."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from driftscope.errors import UsageError
from driftscope.workloads.suites.plan import LoadLevel, plan
from driftscope.workloads.suites.prompts import Prompt, chat, prompts_of, read_prompts, shipped_sets
from driftscope.workloads.suites.suite import (
    ServerFacts,
    changed,
    load_suite,
    parse_suite,
    shipped_suites,
)
from driftscope.workloads.suites.transforms import TRANSFORMS, NotApplicableError, prompt_text
from driftscope_lab.trio import load_prompts
from driftscope_lab.trio.prompts import in_plain_text, templated

FACTS = ServerFacts(url="http://x/v1", model="m", max_model_len=2300)
ASKED = chat("k", "How are you?", system="Be brief.")


def _apply(name: str, prompt: Prompt = ASKED, seed: int = 0, **fields: Any) -> Prompt:
    kind = TRANSFORMS[name].model_validate(fields)
    return kind.apply(prompt, random.Random(seed), FACTS)


def _texts(prompt: Prompt) -> list[str]:
    return [str(message["content"]) for message in prompt.messages]


@pytest.mark.parametrize("name", shipped_suites())
def test_a_shipped_suite_is_a_controlled_experiment(name: str) -> None:
    """Each prompt in every condition, and each condition another request than the baseline."""
    suite = load_suite(name)
    assert suite.file.about and suite.file.baseline in suite.conditions
    made = suite.make(ServerFacts(url="u", model="m", max_model_len=200_000), seed=1)
    assert made.notes == ()
    keys = {condition: [p.key for p in prompts] for condition, prompts in made.conditions.items()}
    assert len({tuple(key) for key in keys.values()}) == 1
    first = made.conditions[suite.file.baseline][0]
    for condition, prompts in made.conditions.items():
        if condition != suite.file.baseline:
            assert prompts[0] != first and prompts[0].key == first.key


def test_the_documentation_names_every_shipped_suite() -> None:
    page = (Path(__file__).parents[4] / "docs" / "suites.md").read_text(encoding="utf-8")
    section = page.split("## Shipped suites\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE)) == set(shipped_suites())


@pytest.mark.parametrize("name", shipped_sets())
def test_shipped_prompts(name: str) -> None:
    prompts = prompts_of(name)
    assert len(prompts) >= 8
    assert len({p.key for p in prompts}) == len({str(p.messages) for p in prompts}) == len(prompts)


def test_the_trios_prompts_are_those_that_it_was_held_out_from() -> None:
    """Both conditions are renderings of the same conversations."""
    for prompt, held_out in zip(prompts_of("trio"), load_prompts(), strict=True):
        alone = held_out.conversation(1)
        assert f"<s>{prompt_text('roles', prompt.messages)}" == in_plain_text(alone)
        rendered = "".join(f"<|{m['role']}|>\n{m['content']}<|end|>" for m in prompt.messages)
        assert f"<s>{rendered}<|assistant|>" == templated(alone)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("about: x", "prompts: Field required"),
        ("[1", "not YAML"),
        ("{prompts: chat, baseline: b, conditions: {a: []}}", "baseline 'b' is not one"),
        ("{prompts: chat, baseline: a, conditions: {a: []}, sed: 1}", "sed: Extra inputs"),
        ("{prompts: chat, baseline: a, conditions: {a: [{shout: {}}]}}", "no transform 'shout'"),
        ("{prompts: chat, baseline: a, conditions: {a: [{filler: {}}]}}", "filler: tokens"),
        ("{prompts: chat, baseline: a, conditions: {a: [{whitespace: {tabs: 2}}]}}", "tabs"),
        (
            "{prompts: chat, baseline: a, conditions: {a: []}, rate: [0]}",
            "rate: give a number above 0",
        ),
        ("{prompts: c, baseline: a, conditions: {a: []}, rate: [1], concurrency: [1, 2]}", "one"),
    ],
)
def test_a_suite_that_is_not_right_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_suite(text, "mine")


def test_a_suite_in_no_text_or_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    for number, content in enumerate((b"about: \xa2", b"prompts: " + b"[" * 20_000)):
        path = tmp_path / f"{number}.yaml"
        path.write_bytes(content)
        with pytest.raises(UsageError, match=f"{number}.yaml: (not readable as text|nested too)"):
            load_suite(str(path))


def test_a_suite_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"prompt": "hello"}\n')
    (tmp_path / "mine.yaml").write_text(
        "{prompts: mine.jsonl, baseline: a, conditions: {a: [], b: [{whitespace: {}}]}}"
    )
    suite = load_suite(str(tmp_path / "mine.yaml"))
    made = suite.make(FACTS)
    assert suite.name == "mine" and list(made.conditions) == ["a", "b"]
    assert _texts(made.conditions["a"][0]) == ["hello"]
    with pytest.raises(UsageError, match="neither a shipped suite"):
        load_suite(str(tmp_path / "other.yaml"))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_is_documented_and_seeded(name: str) -> None:
    fields: dict[str, Any] = {
        "system": {"text": "policy"},
        "filler": {"tokens": 300},
        "sampling": {"temperature": 1.0},
    }.get(name, {})
    assert len(TRANSFORMS[name].__doc__ or "") > 40
    assert _apply(name, **fields) == _apply(name, **fields) != ASKED
    assert _apply(name, **fields).key == ASKED.key


def test_filler_is_as_long_as_asked_and_what_does_not_fit_is_left_out() -> None:
    added = len(_texts(_apply("filler", tokens=1000))[-1]) - len(_texts(ASKED)[-1])
    assert 4000 <= added < 4600
    turns = _apply("filler", tokens=1000, form="turns")
    assert len(turns.messages) > 10 and _texts(turns)[-1] == "How are you?"
    with pytest.raises(NotApplicableError, match="do not fit the server's 2300"):
        _apply("filler", tokens=4000)
    with pytest.raises(NotApplicableError, match="rules do not fit"):
        _apply("system", text="policy", tokens=2100)
    made = load_suite("long-context").make(FACTS)
    assert "1k" in made.conditions and "4k" not in made.conditions
    assert any(note.startswith("condition 4k left out") for note in made.notes)


def test_a_needle_lies_where_it_should_and_is_asked_for() -> None:
    text = _texts(_apply("filler", tokens=1900, needle=0.5))[-1]
    place = text.index("Remember that locker") / len(text)
    assert 0.3 < place < 0.7
    locker = text[text.index("Remember that ") + 14 : text.index(" has the code")]
    assert text.endswith(f"Also say which code {locker} has.")


def test_an_agents_loop() -> None:
    called = _apply("agent_loop", steps=3, kinds=["diff", "json"])
    roles = [m["role"] for m in called.messages]
    assert roles == ["system", "user", *["assistant", "tool"] * 3]
    asked, result = called.messages[2:4]
    assert asked["tool_calls"][0]["id"] == result["tool_call_id"]
    assert "diff --git" in result["content"] and '"rows"' in called.messages[5]["content"]
    inline = _apply("agent_loop", steps=2, inline=True)
    assert [m["role"] for m in inline.messages[2:]] == ["assistant", "user"] * 2


def test_prompts_without_a_conversation_are_not_changed_in_silence() -> None:
    with pytest.raises(NotApplicableError, match="plain text"):
        changed(Prompt(key="t", text="Once upon a time"), [TRANSFORMS["reworded"]()], FACTS, "seed")


def _plan(seed: int) -> list[tuple[str, str]]:
    conditions = {name: [chat(f"p{n}", "x") for n in range(6)] for name in ("a", "b", "c")}
    shots = plan(conditions, [LoadLevel(concurrency=2)], repeat=2, seed=seed)
    assert [shot.order for shot in shots] == list(range(36))
    return [(shot.prompt.key, shot.condition) for shot in shots]


def test_the_order_is_random_paired_and_repeatable() -> None:
    assert _plan(1) == _plan(1) != _plan(2)
    assert set(Counter(_plan(1)).values()) == {2}
    groups = [_plan(1)[at : at + 3] for at in range(0, 36, 3)]
    assert all(len({key for key, _ in group}) == 1 for group in groups)
    assert len({tuple(c for _, c in group) for group in groups}) > 2


def _read(path: Path, *rows: object) -> list[Prompt]:
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(lines if path.suffix == ".jsonl" else json.dumps(rows))
    return read_prompts(path)


def _asked(prompt: Prompt) -> str:
    (message,) = prompt.messages
    assert message["role"] == "user"
    return str(message["content"])


def test_speed_bench(tmp_path: Path) -> None:
    keys, kinds = ["q7", "q8"], ["coding", "math"]
    turns = [["sort this", "now faster"], ["2 + 2"]]
    columns = {"question_id": keys, "category": kinds, "turns": turns, "multiturn": [True, False]}
    pq.write_table(pa.table(columns), tmp_path / "test.parquet")
    prompts = read_prompts(tmp_path / "test.parquet")
    wanted = [("q7", "coding", "sort this"), ("q8", "math", "2 + 2")]
    assert [(p.key, p.category, _asked(p)) for p in prompts] == wanted


MT_BENCH = {
    "question_id": 81,
    "category": "writing",
    "turns": ["Write a poem.", "Now in prose."],
    "reference": [],
}
SHAREGPT = [
    {
        "id": "a",
        "conversations": [
            {"from": "human", "value": "hi"},
            {"from": "gpt", "value": "hello"},
            {"from": "human", "value": "bye"},
        ],
    },
    {"id": "b", "conversations": [{"from": "gpt", "value": "no question"}]},
]


@pytest.mark.parametrize(
    ("name", "rows", "wanted"),
    [
        ("question.jsonl", [MT_BENCH], [("81", "writing", "Write a poem.")]),
        (
            "HumanEval.jsonl",
            [{"prompt": "def a():"}, {"prompt": "def b():"}],
            [("HumanEval-0", None, "def a():"), ("HumanEval-1", None, "def b():")],
        ),
        ("sharegpt.json", SHAREGPT, [("a", None, "hi")]),
        (
            "same-key.jsonl",
            [{"id": "x", "prompt": "1"}, {"id": "x", "prompt": "2"}],
            [("x", None, "1")],
        ),
    ],
)
def test_rows_of_public_benchmarks(
    tmp_path: Path, name: str, rows: list[Any], wanted: list[tuple[str, str | None, str]]
) -> None:
    prompts = _read(tmp_path / name, *rows)
    assert [(p.key, p.category, _asked(p)) for p in prompts] == wanted


def test_openai_requests(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    batch = {
        "custom_id": "c1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "gpt",
            "stream": True,
            "temperature": 0.3,
            "tools": [tool],
            "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        },
    }
    tuning = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    text = {"request": {"prompt": "Once", "max_tokens": 5}}
    first, second, third = _read(tmp_path / "log.jsonl", batch, tuning, text)
    assert first.key == "c1" and first.tools == (tool,) and len(first.messages) == 2
    assert first.options == {"temperature": 0.3}, "model and stream are the replay's own"
    assert _asked(second) == "q", "the answer is not sent back"
    assert (third.text, third.options) == ("Once", {"max_tokens": 5})


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "x", "no reader for .csv"),
        ("a.jsonl", '{"prompt": "x"}\n{"pro', "line 2"),
        ("a.jsonl", "[1]\n", "line 1: a row that is not an object"),
        ("a.json", "{", "not readable"),
        ("a.json", "3", "neither a list nor an object"),
        ("a.jsonl", '{"answer": "x"}\n', "no prompt in its 1 rows"),
        ("a.parquet", "x", "not readable"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: str, words: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UsageError, match=words) as caught:
        read_prompts(path)
    assert str(path) in str(caught.value)
