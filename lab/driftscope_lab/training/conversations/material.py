"""The text that exchanges are made from: functions, prose, code and words of the corpus."""

from __future__ import annotations

import ast
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from driftscope_lab.training.corpus import SourceFile

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
