"""Looks into vLLM's source files without importing vLLM, which takes many seconds."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path

from driftscope.boundary.bounds import MAX_JSON_BYTES
from driftscope.boundary.files import read_text
from driftscope_probes.vllm.support import HookPoint

_REGISTRY = "vllm.model_executor.models.registry"
_DRAFTERS = "_SPECULATIVE_DECODING_MODELS"
"""vLLM's table of the drafters' architectures: architecture -> (module, class)."""


def vllm_folder() -> Path | None:
    """Return the folder of the package vllm; None if it is not installed."""
    spec = importlib.util.find_spec("vllm")
    found = list(spec.submodule_search_locations or ()) if spec else []
    return Path(found[0]) if found else None


def has(hook: HookPoint, folder: Path) -> bool:
    """Return whether the class or function that `hook` names is in vLLM's source.

    A method that a class inherits from another file counts as present: only an import shows it.
    """
    tree = _tree(_file(hook.module, folder))
    if tree is None:
        return False
    first, *rest = hook.name.split(".")
    found = next((node for node in _definitions(tree) if node.name == first), None)
    if found is None or not rest or not isinstance(found, ast.ClassDef):
        return found is not None and not rest
    own = {name for node in ast.walk(found) for name in _names(node)}
    return rest[0] in own or bool(found.bases)


def drafter_classes(folder: Path) -> Mapping[str, str]:
    """Return vLLM's drafter classes by the architecture that a checkpoint's config names; {} if the
    table is not where this driftscope knows it."""
    tree = _tree(_file(_REGISTRY, folder))
    for node in tree.body if tree else ():
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        if any(isinstance(name, ast.Name) and name.id == _DRAFTERS for name in node.targets):
            return dict(_classes(node.value))
    return {}


def _classes(table: ast.Dict) -> Iterator[tuple[str, str]]:
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple):
            last = value.elts[-1]
            if isinstance(last, ast.Constant):
                yield str(key.value), str(last.value)


def _file(module: str, folder: Path) -> Path:
    parts = module.split(".")[1:]
    path = folder.joinpath(*parts)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def _tree(path: Path) -> ast.Module | None:
    try:
        return ast.parse(read_text(path, limit=MAX_JSON_BYTES))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None


_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _definitions(tree: ast.Module) -> Iterator[_Definition]:
    return (node for node in ast.walk(tree) if isinstance(node, _Definition))


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement in a class defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.Assign):
        yield from (each.id for each in node.targets if isinstance(each, ast.Name))
