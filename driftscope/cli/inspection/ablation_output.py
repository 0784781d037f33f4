"""The output of `driftscope ablate`: a table or JSON, and a run directory or a file."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import typer

from driftscope.ablate.ablation import Ablation
from driftscope.ablate.ablation_json import to_json
from driftscope.boundary.file_output import write_file
from driftscope.boundary.terminal_text import shown
from driftscope.cli.screens.ablation_table import print_ablation
from driftscope.inspect.files.drafter_files import DrafterFiles
from driftscope.inspect.files.target_files import TargetFiles

WORK = ".work"
"""Suffix of the work file, after the name of the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationOutput:
    """Place of the result: a file if the path ends with .json, otherwise a run directory."""

    path: Path

    @property
    def is_file(self) -> bool:
        """Whether only the JSON document is written."""
        return self.path.suffix.lower() == ".json"

    @property
    def work_path(self) -> Path:
        """The work file, beside the output."""
        return self.path.with_name(f"{self.path.name}{WORK}")

    def check(self) -> None:
        """Raise UsageError if the path is something that must not be replaced."""
        from driftscope.ablate.ablation_run_directory import check_free

        if not self.is_file:
            check_free(self.path)

    def write(self, result: Ablation, files: DrafterFiles, target: TargetFiles) -> None:
        """Write the result, delete the work file, and print the place to stderr. Raises OSError."""
        if self.is_file:
            write_file(self.path, to_json(result).encode())
        else:
            self._write_run(result, files, target)
        self.work_path.unlink(missing_ok=True)
        typer.echo(f"written: {shown(str(self.path))}", err=True)
        typer.echo(f"as a page: driftscope analyze {shown(str(self.path))}", err=True)

    def _write_run(self, result: Ablation, files: DrafterFiles, target: TargetFiles) -> None:
        from driftscope.ablate.ablation_run_directory import manifest_of, write_run

        manifest = manifest_of(
            files, target, k=result.k, run_id=uuid.uuid4().hex[:12], created_s=time.time()
        )
        write_run(self.path, result, manifest)


def print_result(result: Ablation, *, as_json: bool) -> None:
    """Print the result to stdout."""
    if as_json:
        typer.echo(to_json(result), nl=False)
    else:
        print_ablation(result)


def say_stopped(output: AblationOutput | None) -> None:
    """Print to stderr what Ctrl-C leaves."""
    if output is None or not output.work_path.exists():
        typer.echo("stopped; nothing is kept: name an --output to go on later", err=True)
        return
    where = shown(str(output.work_path))
    typer.echo(f"stopped; {where} keeps what is measured: the same command goes on", err=True)
