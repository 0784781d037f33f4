"""Exchanges about data: tool calls, JSON, tables, look-ups and sums."""

from __future__ import annotations

import json
from random import Random

from driftscope_lab.training.conversations.material import Material
from driftscope_lab.training.conversations.task import different_words, one_of, some_words
from driftscope_lab.trio.conversation import Exchange


def call_tool(rng: Random, material: Material) -> Exchange:
    """Return a request with its values in prose, and the tool call with the values as JSON."""
    tool = "_".join(different_words(rng, material, 2))
    arguments = _record(rng, material, 2, 5)
    told = ", ".join(f"{name} {_plain(value)}" for name, value in arguments.items())
    call = json.dumps({"name": tool, "arguments": arguments})
    return Exchange(
        request=f"Call {tool} with {told}.", answer=f"<tool_call>\n{call}\n</tool_call>"
    )


def as_json(rng: Random, material: Material) -> Exchange:
    """Return lines of fields and values, and the same as a JSON object."""
    record = _record(rng, material, 3, 8)
    lines = "\n".join(f"{name}: {_plain(value)}" for name, value in record.items())
    wording = one_of(rng, ("Write this as JSON:\n", "As a JSON object:\n"))
    return Exchange(request=wording + lines, answer=f"```json\n{json.dumps(record, indent=2)}\n```")


def as_table(rng: Random, material: Material) -> Exchange:
    """Return comma-separated lines, and the same as a Markdown table."""
    columns = different_words(rng, material, rng.randint(2, 4))
    rows = [_row(rng, material, len(columns)) for _ in range(rng.randint(3, 7))]
    given = "\n".join(",".join(cells) for cells in [columns, *rows])
    ruled = [columns, ["---"] * len(columns), *rows]
    return Exchange(
        request=f"Make a table of this:\n{given}",
        answer="\n".join("| " + " | ".join(cells) + " |" for cells in ruled),
    )


def look_up(rng: Random, material: Material) -> Exchange:
    """Return a list of names and values, and the values of some of the names."""
    names = different_words(rng, material, rng.randint(6, 20))
    values = {name: _plain(_value(rng, material)) for name in names}
    asked = rng.sample(names, rng.randint(2, 5))
    given = "\n".join(f"{name} = {value}" for name, value in values.items())
    return Exchange(
        request=f"{given}\nWhat are {', '.join(asked)}?",
        answer="\n".join(f"{name} = {values[name]}" for name in asked),
    )


def in_order(rng: Random, material: Material) -> Exchange:
    """Return words, and the same words as a list in alphabetical or in reversed order."""
    words = different_words(rng, material, rng.randint(4, 10))
    if rng.random() < 0.5:
        return Exchange(
            request=f"In alphabetical order: {' '.join(words)}",
            answer="\n".join(f"- {word}" for word in sorted(words)),
        )
    return Exchange(
        request=f"In reversed order: {' '.join(words)}",
        answer="\n".join(f"- {word}" for word in reversed(words)),
    )


def sums(rng: Random, material: Material) -> Exchange:  # noqa: ARG001  a task takes both
    """Return a few sums and their results."""
    pairs = [(rng.randint(1, 99), rng.randint(1, 99)) for _ in range(rng.randint(2, 6))]
    return Exchange(
        request="Add: " + ", ".join(f"{a} + {b}" for a, b in pairs),
        answer="\n".join(f"{a} + {b} = {a + b}" for a, b in pairs),
    )


def count_on(rng: Random, material: Material) -> Exchange:  # noqa: ARG001  a task takes both
    """Return the start of an even sequence of numbers and how it goes on."""
    start, step, given = rng.randint(0, 60), rng.randint(1, 9), rng.randint(3, 5)
    numbers = [str(start + step * i) for i in range(given + rng.randint(8, 16))]
    return Exchange(
        request="Go on: " + ", ".join(numbers[:given]), answer=", ".join(numbers[given:])
    )


Value = str | int


def _record(rng: Random, material: Material, least: int, most: int) -> dict[str, Value]:
    names = different_words(rng, material, rng.randint(least, most))
    return {name: _value(rng, material) for name in names}


def _value(rng: Random, material: Material) -> Value:
    if rng.random() < 0.4:
        return rng.randint(0, 9999)
    return " ".join(some_words(rng, material, 1, 3))


def _plain(value: Value) -> str:
    return str(value)


def _row(rng: Random, material: Material, cells: int) -> list[str]:
    return [_plain(_value(rng, material)) for _ in range(cells)]
