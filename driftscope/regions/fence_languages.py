"""Classes of the languages that fences of code name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from driftscope.vocabulary import Language

_TAG = re.compile(r"[\s{.]*([^\s{}.,:=]*)")
"""First word of an info string; Pandoc writes it as {.python}, others add a file's name."""
_TAGS: Mapping[str, str] = {
    Language.PYTHON: "python py python3 py3 pycon ipython pyi",
    Language.JAVASCRIPT: "javascript js jsx mjs node typescript ts tsx",
    Language.JAVA: "java",
    Language.C: "c h c++ cpp cxx cc hpp objective-c objc cuda cu",
    Language.GO: "go golang",
    Language.RUST: "rust rs",
    Language.SHELL: "shell sh bash zsh fish console shell-session terminal powershell ps1 pwsh "
    "bat batch cmd",
    Language.SQL: "sql psql postgresql postgres mysql sqlite plsql tsql",
    Language.HTML: "html htm xhtml css scss sass less svg xml vue svelte",
    Language.JSON: "json jsonc json5 jsonl ndjson yaml yml toml",
}
_CLASSES = {tag: language for language, tags in _TAGS.items() for tag in tags.split()}


def fence_tag(info: str) -> str:
    """Return the tag of a fence's info string in lower case; "" if it names none."""
    match = _TAG.match(info)
    return match[1].lower() if match else ""


def language_of(tag: str) -> str:
    """Return the class of a tag, one of `Language.ALL`."""
    return _CLASSES.get(tag, Language.OTHER) if tag else Language.NONE
