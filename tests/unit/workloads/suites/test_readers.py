"""Files that people have: small ones made by hand, in the formats of the public ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from driftscope.errors import UsageError
from driftscope.workloads.suites.prompts import Prompt
from driftscope.workloads.suites.readers import read_prompts


def _jsonl(path: Path, *rows: dict[str, Any]) -> list[Prompt]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_prompts(path)


def _json(path: Path, value: Any) -> list[Prompt]:
    path.write_text(json.dumps(value))
    return read_prompts(path)


def _asked(prompt: Prompt) -> str:
    (message,) = prompt.messages
    assert message["role"] == "user"
    return str(message["content"])


def test_speed_bench(tmp_path: Path) -> None:
    table = pa.table(
        {
            "question_id": ["q7", "q8"],
            "category": ["coding", "math"],
            "sub_category": ["a", "b"],
            "turns": [["sort this", "now faster"], ["2 + 2"]],
            "source": ["x", "x"],
            "multiturn": [True, False],
        }
    )
    pq.write_table(table, tmp_path / "test.parquet")
    prompts = read_prompts(tmp_path / "test.parquet")
    assert [(p.key, p.category, _asked(p)) for p in prompts] == [
        ("q7", "coding", "sort this"),
        ("q8", "math", "2 + 2"),
    ]


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
    path = tmp_path / name
    prompts = _jsonl(path, *rows) if path.suffix == ".jsonl" else _json(path, rows)
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
    first, second, third = _jsonl(tmp_path / "log.jsonl", batch, tuning, text)
    assert first.key == "c1" and first.tools == (tool,) and len(first.messages) == 2
    assert first.options == {"temperature": 0.3}, "model and stream are the replay's own"
    assert _asked(second) == "q", "the answer is not sent back"
    assert (third.text, third.options) == ("Once", {"max_tokens": 5})


def test_guidellm(tmp_path: Path) -> None:
    new = {
        "request_id": "r1",
        "request_args": json.dumps(
            {"method": "POST", "body": {"messages": [{"role": "user", "content": "new"}]}}
        ),
    }
    old = {"id": "r2", "prompt": "old", "output": "x"}
    report = {
        "benchmarks": [
            {"requests": {"successful": [new, old], "errored": [{"prompt": "lost"}]}},
            {"requests": {"successful": [new]}},
        ]
    }
    prompts = _json(tmp_path / "benchmarks.json", report)
    assert [_asked(p) for p in prompts] == ["new", "old"]


def test_a_result_of_vllm_bench_gives_requests_as_long(tmp_path: Path) -> None:
    result = {"date": "x", "input_lens": [100, 1000], "output_lens": [7, 9], "ttfts": [0.1, 0.1]}
    short, long = _json(tmp_path / "result.json", result)
    assert (short.options, long.options) == ({"max_tokens": 7}, {"max_tokens": 9})
    assert 8 < len(_asked(long)) / len(_asked(short)) < 11


@pytest.mark.parametrize("length", ["1e999", "-1", "1e300", "null", '{"a": 1}'])
def test_a_length_that_no_request_has_is_refused(tmp_path: Path, length: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(f'{{"input_lens": [{length}], "output_lens": [7]}}')
    with pytest.raises(UsageError, match="not readable"):
        read_prompts(path)


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
