"""Follows imports through the packed vLLM, without running it, and names those that nothing serves.

python benchmarks/cuda/check_imports.py SITE [--host FILE]

An import counts as unconditional unless it stands inside a function, under TYPE_CHECKING, or in a
`try` that handles ImportError (`suppress(ImportError)` likewise). One under any other `if`, or in
such a `try`'s handler, is followed too; what nothing serves there is listed apart, for a reader to
judge. Other packages' own imports are check_load.py's matter.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wheels import read_host

ROOTS = (
    "vllm.entrypoints.llm",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.spec_decode.eagle",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.attention.backends.triton_attn",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor",
    "vllm.platforms.cuda",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.llama_eagle3",
)
# Distributions whose import name is not their own, and torch's, which the host has too.
HOST_MODULES = {
    "opencv-python-headless": "cv2",
    "pillow": "PIL",
    "protobuf": "google",
    "py-cpuinfo": "cpuinfo",
    "python-dateutil": "dateutil",
    "pyyaml": "yaml",
    "nvidia-ml-py": "pynvml",
    "prometheus-client": "prometheus_client",
    "grpcio": "grpc",
    "scikit-learn": "sklearn",
    "setuptools": "setuptools",
}
EITHER = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One `import` statement's module, as it stands in a file."""

    module: str
    importer: str
    line: int
    branch: bool


class Site:
    """The packed folder's modules."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, module: str) -> Path | None:
        """The source file, shared object or package folder of a module."""
        path = self.folder.joinpath(*module.split("."))
        if (path / "__init__.py").is_file():
            return path / "__init__.py"
        if path.with_suffix(".py").is_file() and "." not in path.name:
            return path.parent / f"{path.name}.py"
        binary = next(iter(sorted(path.parent.glob(f"{path.name}.*so"))), None)
        return binary or (path if path.is_dir() else None)


class Imports(ast.NodeVisitor):
    """The unconditional imports of one module."""

    def __init__(self, module: str, package: str) -> None:
        self.module = module
        self.package = package
        self.found: list[tuple[Import, tuple[str, ...]]] = []
        self._branch = 0

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node.lineno, ())

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parents = self.package.split(".")[: len(self.package.split(".")) - node.level + 1]
            base = ".".join([*parents, *([base] if base else [])])
        self._add(base, node.lineno, tuple(alias.name for alias in node.names))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Runs later: not followed."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Runs later: not followed."""

    def visit_Try(self, node: ast.Try) -> None:
        if any(_handles_import_error(handler) for handler in node.handlers):
            self._visit_all([*node.orelse, *node.finalbody])
            self._visit_branch([s for handler in node.handlers for s in handler.body])
        else:
            self.generic_visit(node)

    def visit_With(self, node: ast.With) -> None:
        if "suppress(ImportError" not in ast.unparse(node.items[0].context_expr):
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        test = ast.unparse(node.test)
        if test in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self._visit_all(node.orelse)
        elif test != "__name__ == '__main__'":
            self._visit_branch([*node.body, *node.orelse])

    def _visit_branch(self, nodes: list[ast.stmt]) -> None:
        self._branch += 1
        self._visit_all(nodes)
        self._branch -= 1

    def _visit_all(self, nodes: list[ast.stmt]) -> None:
        for node in nodes:
            self.visit(node)

    def _add(self, name: str, line: int, members: tuple[str, ...]) -> None:
        found = Import(module=name, importer=self.module, line=line, branch=self._branch > 0)
        self.found.append((found, members))


def _handles_import_error(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or any(name in ast.unparse(handler.type) for name in EITHER)


def follow(site: Site, roots: tuple[str, ...]) -> tuple[set[str], list[Import]]:
    """Modules of vLLM reached from the roots, and every import that leaves vLLM or fails in it."""
    reached: set[str] = set()
    outside: list[Import] = []
    waiting: deque[tuple[Import, tuple[str, ...]]] = deque(
        (Import(module=root, importer="(root)", line=0, branch=False), ()) for root in roots
    )
    while waiting:
        found, members = waiting.popleft()
        if found.module.partition(".")[0] != "vllm":
            outside.append(found)
            continue
        for module in _chain(found.module, members, site):
            if module in reached:
                continue
            path = site.find(module)
            if path is None:
                outside.append(found)
                continue
            reached.add(module)
            if path.suffix == ".py":
                for following in _imports(module, path, found.branch):
                    # The unconditional ones first, so that a module counts as what it is at worst.
                    (waiting.append if following[0].branch else waiting.appendleft)(following)
    return reached, outside


def _chain(module: str, members: tuple[str, ...], site: Site) -> Iterator[str]:
    """A module, its parents, and those of the imported names that are modules themselves."""
    parts = module.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    yield from (name for m in members if site.find(name := f"{module}.{m}") is not None)


def _imports(module: str, path: Path, branch: bool) -> Iterator[tuple[Import, tuple[str, ...]]]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    visitor = Imports(module, package)
    visitor.visit(ast.parse(path.read_text()))
    for found, members in visitor.found:
        yield (
            Import(
                module=found.module,
                importer=found.importer,
                line=found.line,
                branch=found.branch or branch,
            ),
            members,
        )


def host_modules(host: Path) -> set[str]:
    """Top-level import names of what the host has, by each distribution's name."""
    names = set(read_host(host))
    return {HOST_MODULES.get(name, name.replace("-", "_")) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--host", type=Path, default=Path(__file__).with_name("host.txt"))
    options = parser.parse_args()
    site, there = Site(options.site), host_modules(options.host)
    reached, outside = follow(site, ROOTS)
    print(f"{len(reached)} modules of vLLM reached from {len(ROOTS)} roots")
    unserved = [found for found in outside if not _served(found.module, site, there)]
    for found in sorted(unserved, key=lambda f: (f.branch, f.module, f.importer)):
        how = "behind an `if`" if found.branch else "UNSERVED"
        print(f"{how}: {found.module}  ({found.importer}:{found.line})")
    sys.exit(any(not found.branch for found in unserved))


def _served(module: str, site: Site, there: set[str]) -> bool:
    top = module.partition(".")[0]
    if top == "vllm":
        return False
    return top in sys.stdlib_module_names or top in there or site.find(top) is not None


if __name__ == "__main__":
    main()
