"""Examines whether an SGLang server with given options can be recorded, from SGLang's source files.

Nothing of SGLang is imported. Its registry is the `EntryClass` of each file in models/; a target's
class is replaced by that of its heads in ModelConfig._config_draft_model.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from driftscope.boundary.bounds import MAX_JSON_BYTES
from driftscope.boundary.files import read_text
from driftscope.inspect.drafter_classes import DRAFTS, architectures_of
from driftscope_probes.server.doctor import (
    ExaminedItem,
    config_of,
    counted,
    fact,
    problem,
    tree_of,
)
from driftscope_probes.server.start import option_values

_ALGORITHM, _DRAFT = "--speculative-algorithm", "--speculative-draft-model-path"
_TOP_K = "--speculative-eagle-topk"
_HOOKED = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM")
"""Algorithms whose workers the probe hooks: EAGLEWorkerV2, what is derived from it, NGRAMWorker."""
_ENTRY = re.compile(r"^EntryClass\s*=\s*(?:\[(.*?)\]|(\w+))", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"\w+")


def drafter_check(model: str, given_options: Sequence[str], folder: Path) -> ExaminedItem:
    """Check the drafter that the options name, and its class if its config is on this machine."""
    options = dict(option_values(given_options))
    if not (given := options.get(_ALGORITHM, "").upper()):
        detail = "no drafter: requests and the times of steps are recorded, to compare with"
        return ExaminedItem(topic="drafter", ok=True, detail=detail)
    known = algorithms(folder)
    if known and given not in known:
        hint = f"give one of {', '.join(sorted(known))}"
        return problem("drafter", f"SGLang has no speculative algorithm {given}", hint)
    if given not in _HOOKED:
        detail = f"the probe hooks no worker of SGLang's {given}, so nothing is recorded"
        return problem("drafter", detail, "driftscope watch URL reads SGLang's own counters")
    if given == "NGRAM":
        return counted("NGRAM drafts without a model")
    config = config_of(options.get(_DRAFT) or model)
    named = architectures_of(config)
    if not named:
        return fact("drafter", f"{given}: the class is checked when the server loads it")
    served = draft_classes(folder).get(named[0], named[0])
    registered = model_classes(folder)
    if registered and served not in registered:
        detail = f"SGLang looks up {served} for {named[0]}, which it does not register"
        return problem("drafter", detail, "give a drafter of SGLang's, or another SGLang")
    if given != "STANDALONE" and not DRAFTS.search(served):
        detail = f"SGLang would load {served} as it is named, which is no drafter's class"
        names = ", ".join(sorted(name for name in registered if DRAFTS.search(name)))
        return problem("drafter", detail, f"name the drafter's class in its config, of: {names}")
    if given == "STANDALONE":
        return counted(f"SGLang serves {served} as a draft model, which reads tokens alone")
    if options.get(_TOP_K, "1") != "1":
        return counted(f"{_TOP_K} is {options[_TOP_K]}, and trees are not looked into")
    detail = (
        f"{served} is recorded: acceptance, timing and, as far as a forward at the start shows "
        "them, attention mass, RMS and top-1 probability"
    )
    return ExaminedItem(topic="drafter", ok=True, detail=detail)


def algorithms(folder: Path) -> frozenset[str]:
    """Return SGLang's speculative algorithms, with their other names; none if they are not where
    this driftscope knows them."""
    found = set[str]()
    for module, name in (("spec_info", "SpeculativeAlgorithm"), ("spec_registry", "")):
        for node in tree_of(f"sglang.srt.speculative.{module}", folder).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                members = (part for part in node.body if isinstance(part, ast.Assign))
                found |= {t.id for part in members for t in part.targets if isinstance(t, ast.Name)}
            elif isinstance(node, ast.Assign | ast.AnnAssign) and "ALIASES" in ast.dump(node):
                parts = (part for part in ast.walk(node) if isinstance(part, ast.Constant))
                found |= {part.value for part in parts if isinstance(part.value, str)}
    return frozenset(found)


def model_classes(folder: Path) -> frozenset[str]:
    """Return the architectures that SGLang registers."""
    found = set[str]()
    for path in sorted((folder / "srt" / "models").glob("*.py")):
        try:
            text = read_text(path, limit=MAX_JSON_BYTES)
        except (OSError, ValueError):
            continue
        for several, one in _ENTRY.findall(text):
            found |= set(_NAME.findall(several or one))
    return frozenset(found)


def draft_classes(folder: Path) -> Mapping[str, str]:
    """Return the class that SGLang drafts with, by the architecture that a config names, where both
    differ."""
    found = dict[str, str]()
    tree = tree_of("sglang.srt.configs.model_config", folder)
    functions = (part for part in ast.walk(tree) if isinstance(part, ast.FunctionDef))
    for function in functions:
        if function.name != "_config_draft_model":
            continue
        for branch in (part for part in ast.walk(function) if isinstance(part, ast.If)):
            names = [*_strings(branch.test), *_strings_named(branch.test, tree)]
            assigned = [name for part in branch.body for name in _assigned(part)]
            found |= {name: assigned[-1] for name in names if assigned and name not in found}
    return found


def _strings(node: ast.AST) -> list[str]:
    parts = (part for part in ast.walk(node) if isinstance(part, ast.Constant))
    return [part.value for part in parts if isinstance(part.value, str)]


def _strings_named(node: ast.AST, tree: ast.Module) -> list[str]:
    """Return the strings of the module's constants that an expression names."""
    named = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    constants = (part for part in tree.body if isinstance(part, ast.Assign))
    wanted = (part for part in constants if ast.unparse(part.targets[0]) in named)
    return [name for part in wanted for name in _strings(part.value)]


def _assigned(node: ast.AST) -> list[str]:
    """Return the strings that are assigned to `architectures`."""
    assigned = (part for part in ast.walk(node) if isinstance(part, ast.Assign))
    wanted = (part for part in assigned if "architectures" in ast.unparse(part.targets[0]))
    return [name for part in wanted for name in _strings(part.value)]
