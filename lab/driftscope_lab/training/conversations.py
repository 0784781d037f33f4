"""Conversations that a target is trained on: exchanges of many kinds, made from the corpus."""

from __future__ import annotations

import ast
import json
import keyword
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from driftscope_lab.training.corpus import SourceFile
from driftscope_lab.trio import prompts
from driftscope_lab.trio.prompts import Conversation, Exchange, in_plain_text, templated


def some_words(rng: Random, material: Material, least: int, most: int) -> list[str]:
    """Return between `least` and `most` words, drawn with repetition."""
    return rng.choices(material.words, k=rng.randint(least, most))


def different_words(rng: Random, material: Material, count: int) -> list[str]:
    """Return `count` different words."""
    return rng.sample(material.words, count)


def one_of(rng: Random, wordings: Sequence[str]) -> str:
    """Return one of several wordings of the same request."""
    return wordings[rng.randrange(len(wordings))]


WORDS = 1200
"""Number of the corpus's most frequent words that exchanges with made-up content use."""
PASSAGE_CHARS = (80, 900)
FUNCTION_CHARS = (120, 1200)
_WORD = re.compile(r"\b[a-z]{3,9}\b")
_NOT_WORDS = frozenset(keyword.kwlist) | {"self", "none", "true", "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of the corpus: `source` without its docstring, `doc` the docstring."""

    path: str
    name: str
    source: str
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Everything that exchanges are made from, of one side of the split into training and held-out
    files. `words` come from the training files on both sides."""

    files: tuple[SourceFile, ...]
    functions: tuple[Function, ...]
    passages: tuple[str, ...]
    words: tuple[str, ...]


Task = Callable[[Random, Material], Exchange]
"""Function that makes an exchange of one kind."""


def material(files: Sequence[SourceFile], *, held_out: bool) -> Material:
    """Return the material of one side of the split."""
    chosen = [file for file in files if file.held_out is held_out]
    documented = [one for file in chosen for one in _documented(file)]
    return Material(
        files=tuple(chosen),
        functions=tuple(one for one, _ in documented if one is not None),
        passages=tuple(part for _, doc in documented for part in _passages(doc)),
        words=_words(file.text for file in files if not file.held_out),
    )


def _documented(file: SourceFile) -> Iterator[tuple[Function | None, str]]:
    """Yield each docstring of a file, with its function where it is one of a usual size."""
    shortest, longest = FUNCTION_CHARS
    for node in ast.walk(ast.parse(file.text)):
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
            continue
        doc = ast.get_docstring(node)
        if not doc:
            continue
        source = _without_docstring(file.text, node) if isinstance(node, ast.FunctionDef) else ""
        usual = shortest <= len(source) <= longest
        yield (
            Function(path=file.path, name=getattr(node, "name", ""), source=source, doc=doc)
            if usual
            else None,
            doc,
        )


def _without_docstring(text: str, node: ast.FunctionDef) -> str:
    """Return a function's lines without its docstring, indented from the margin."""
    lines = text.splitlines()
    doc = node.body[0]
    kept = lines[node.lineno - 1 : doc.lineno - 1] + lines[doc.end_lineno : node.end_lineno]
    return "\n".join(line[node.col_offset :] for line in kept)


def _passages(doc: str) -> Iterator[str]:
    """Yield a docstring's paragraphs of prose, each joined to one line."""
    shortest, longest = PASSAGE_CHARS
    for paragraph in doc.split("\n\n"):
        line = " ".join(paragraph.split())
        prose = line[:1].isalpha() and not any(
            mark in line for mark in (">>>", "::", "---", ":param", " : ")
        )
        if prose and shortest <= len(line) <= longest:
            yield line


def _words(texts: Iterable[str]) -> tuple[str, ...]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_WORD.findall(text))
    common = [word for word, _ in counts.most_common(WORDS + len(_NOT_WORDS))]
    return tuple(word for word in common if word not in _NOT_WORDS)[:WORDS]


def continue_text(rng: Random, material: Material) -> Exchange:
    """Return the first words of a passage and the rest of it."""
    words = rng.choice(material.passages).split()
    middle = rng.randint(3, max(3, len(words) // 2))
    wording = one_of(rng, ("Continue this text: ", "How does this text go on? "))
    return Exchange(
        request=wording + " ".join(words[:middle]), answer=" ".join(words[middle:]) or "."
    )


def describe(rng: Random, material: Material) -> Exchange:
    """Return a function's source and what its docstring says of it."""
    one = rng.choice(material.functions)
    wording = one_of(rng, ("What does `{}` do?", "Describe `{}`:"))
    return Exchange(
        request=wording.format(one.name) + f"\n```python\n{one.source}\n```",
        answer=" ".join(one.doc.split("\n\n")[0].split()),
    )


def repeat(rng: Random, material: Material) -> Exchange:
    """Return a text to be repeated word for word."""
    text = rng.choice(material.passages) if rng.random() < 0.5 else _random_text(rng, material)
    wording = one_of(rng, ("Repeat this exactly: ", "Say this again, word for word: "))
    return Exchange(request=wording + text, answer=text)


def repeat_twice(rng: Random, material: Material) -> Exchange:
    """Return a short text to be said two or three times."""
    text, times = " ".join(some_words(rng, material, 5, 14)), rng.randint(2, 3)
    return Exchange(request=f"Say this {times} times: {text}", answer="\n".join([text] * times))


def say_again(rng: Random, material: Material) -> Exchange:
    """Return words, some of them marked with `~`, after which the word before is said again."""
    spoken = []
    for word in some_words(rng, material, 16, 40):
        spoken += [word, "~", word] if rng.random() < 0.25 else [word]
    return Exchange(
        request="Write some words. After each ~ say the word before it again.",
        answer=" ".join(spoken),
    )


def _random_text(rng: Random, material: Material) -> str:
    return " ".join(some_words(rng, material, 12, 50))


ANSWER_LINES = 16
"""Largest number of lines of code that an answer continues."""
_NAME = re.compile(r"\b[a-z_]{3,}\b")
_NOT_RENAMED = frozenset(keyword.kwlist) | {"self"}


def continue_code(rng: Random, material: Material) -> Exchange:
    """Return a file's lines and the lines that follow them."""
    file = rng.choice(material.files)
    lines = file.text.splitlines()
    start = rng.randrange(max(1, len(lines) - 24))
    middle = start + rng.randint(4, 14)
    head, body = lines[start:middle], lines[middle : middle + ANSWER_LINES]
    wording = one_of(rng, ("Continue {}:", "Continue the file {}:"))
    return Exchange(
        request=wording.format(file.path) + "\n" + "\n".join(head),
        answer="\n".join(body) or "# end of file",
    )


def write_function(rng: Random, material: Material) -> Exchange:
    """Return a description of a function and its source in a fence."""
    one = rng.choice(material.functions)
    wording = one_of(rng, ("Write the function `{}`. {}", "Write `{}` in Python. {}"))
    return Exchange(
        request=wording.format(one.name, _first_paragraph(one)), answer=_fenced(one.source)
    )


def rename(rng: Random, material: Material) -> Exchange:
    """Return a function, and the same function with another name for one of its variables."""
    one = rng.choice(material.functions)
    old, new = _renaming(rng, material, one)
    changed = re.sub(rf"\b{old}\b", new, one.source)
    wording = one_of(rng, ("Rename `{}` to `{}`:", "Change the name `{}` to `{}`:"))
    return Exchange(
        request=wording.format(old, new) + "\n" + _fenced(one.source), answer=_fenced(changed)
    )


def change_as_diff(rng: Random, material: Material) -> Exchange:
    """Return a function, and a diff that renames one of its variables."""
    one = rng.choice(material.functions)
    old, new = _renaming(rng, material, one)
    lines = []
    for line in one.source.splitlines():
        changed = re.sub(rf"\b{old}\b", new, line)
        lines += [f" {line}"] if changed == line else [f"-{line}", f"+{changed}"]
    wording = one_of(rng, ("Rename `{}` to `{}`, as a diff:", "Give a diff from `{}` to `{}`:"))
    return Exchange(
        request=wording.format(old, new) + "\n" + _fenced(one.source),
        answer="```diff\n" + "\n".join(lines) + "\n```",
    )


def _renaming(rng: Random, material: Material, one: Function) -> tuple[str, str]:
    names = sorted(set(_NAME.findall(one.source)) - _NOT_RENAMED) or [one.name]
    return rng.choice(names), "_".join(different_words(rng, material, rng.randint(1, 2)))


def _first_paragraph(one: Function) -> str:
    return " ".join(one.doc.split("\n\n")[0].split())[:300]


def _fenced(source: str) -> str:
    return f"```python\n{source}\n```"


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


TASKS: Mapping[str, tuple[Task, float]] = {
    "continue code": (continue_code, 4.0),
    "write function": (write_function, 3.0),
    "rename": (rename, 2.0),
    "diff": (change_as_diff, 2.0),
    "continue text": (continue_text, 4.0),
    "describe": (describe, 3.0),
    "repeat": (repeat, 3.0),
    "repeat twice": (repeat_twice, 2.0),
    "say again": (say_again, 3.0),
    "tool call": (call_tool, 3.0),
    "json": (as_json, 2.0),
    "table": (as_table, 2.0),
    "look up": (look_up, 2.0),
    "in order": (in_order, 1.0),
    "sums": (sums, 1.0),
    "count": (count_on, 1.0),
}
"""Name of each kind of exchange -> function that makes one, and its weight among the kinds."""

SYSTEM_TEXTS = (
    "You write Python library code.",
    "You are a careful assistant.",
    "You help with code, text and data. Answer briefly.",
    "Answer exactly as asked.",
)

SYSTEM_SHARE = 0.8
"""Share of conversations that have a system prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentShares:
    """Shares of the kinds of rows; the rest are conversations in the chat template.

    `plain`: code or prose after the first token; `bare`: the same without the first token;
    `plain_roles`: conversations with their roles written out.
    """

    plain: float = 0.15
    bare: float = 0.05
    plain_roles: float = 0.05


def exchange(rng: Random, material: Material, kind: str | None = None) -> Exchange:
    """Return one exchange, of a kind drawn by weight unless it is given."""
    if kind is None:
        kind = rng.choices(list(TASKS), [weight for _, weight in TASKS.values()])[0]
    return TASKS[kind][0](rng, material)


def conversation(rng: Random, material: Material, chars: int) -> Conversation:
    """Return a conversation of at least `chars` characters."""
    system = rng.choice(SYSTEM_TEXTS) if rng.random() < SYSTEM_SHARE else None
    exchanges: list[Exchange] = []
    length = 0
    while length < chars:
        exchanges.append(exchange(rng, material))
        length += len(exchanges[-1].request) + len(exchanges[-1].answer)
    return Conversation(system=system, exchanges=tuple(exchanges))


def document(rng: Random, material: Material, chars: int) -> str:
    """Return code or prose of at least `chars` characters."""
    text = ""
    while len(text) < chars:
        if rng.random() < 0.6:
            source = rng.choice(material.files).text
            start = source.find("\n", rng.randrange(max(1, len(source) - chars))) + 1
            text += source[start : start + chars] + "\n\n"
        else:
            text += "\n\n".join(rng.choices(material.passages, k=4)) + "\n\n"
    return text


def row_text(rng: Random, material: Material, chars: int, shares: DocumentShares) -> str:
    """Return the text of one row: a conversation or a document."""
    drawn = rng.random()
    if drawn < shares.plain:
        return prompts.BOS + document(rng, material, chars)
    if drawn < shares.plain + shares.bare:
        return document(rng, material, chars)
    if drawn < shares.plain + shares.bare + shares.plain_roles:
        return in_plain_text(conversation(rng, material, chars))
    return templated(conversation(rng, material, chars))
