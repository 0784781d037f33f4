"""The report of an ablation, which `driftscope analyze` writes: the page "Why"."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import typer

from driftscope.ablate.ablation import Ablation
from driftscope.boundary.file_output import STDOUT
from driftscope.boundary.terminal_text import shown
from driftscope.cli.shared.report_format import Format
from driftscope.errors import UsageError
from driftscope.trace.runs.run_folder import is_ablation_run


def is_ablation(path: Path) -> bool:
    """Whether `path` names an ablation: its run directory, or a JSON document."""
    if path.is_dir():
        return is_ablation_run(path)
    return path.suffix.lower() == ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyReport:
    """Arguments of the command for an ablation."""

    paths: tuple[Path, ...]
    output: Path
    form: Format
    json_path: Path | None
    options: tuple[str, ...]
    """Options that were given and that only recorded runs have."""

    def write(self, *, quiet: bool = False) -> None:
        """Write the report, and print its table unless `quiet`.

        Raises UsageError for a file that is no ablation, for several runs and for options that do
        not apply, and OSError.
        """
        from driftscope.ablate.ablation_json import to_json
        from driftscope.ablate.ablation_reading import read_ablation
        from driftscope_reports.report_files import write_text

        self._check()
        result = read_ablation(self.paths[0])
        write_text(self.output, self._text(result))
        if self.json_path is not None:
            write_text(self.json_path, to_json(result))
        if not quiet:
            self._say(result)

    def _say(self, result: Ablation) -> None:
        """Print the table to stdout, unless a document is there, and the files to stderr."""
        from driftscope.cli.screens.ablation_table import print_ablation

        files = [path for path in (self.output, self.json_path) if path is not None]
        if STDOUT not in files:
            print_ablation(result)
        for path in files:
            if path != STDOUT:
                typer.echo(f"written: {shown(str(path))}", err=True)

    def _check(self) -> None:
        if len(self.paths) > 1:
            raise UsageError(f"{self.paths[0]}: an ablation is analysed alone; give it by itself")
        if self.options:
            raise UsageError(f"{self.options[0]}: does not apply to an ablation; leave it out")
        if self.form not in (Format.HTML, Format.JSON):
            raise UsageError(f"--format {self.form.value}: an ablation is written as html or json")
        if self.json_path == self.output:
            raise UsageError(f"--json and --output both name {self.output}; give two files")

    def _text(self, result: Ablation) -> str:
        from driftscope.ablate.ablation_json import to_json
        from driftscope_reports.html.ablation.page import to_html

        if self.form is Format.JSON:
            return to_json(result)
        words = ["driftscope", "analyze", str(self.paths[0]), "-o", str(self.output)]
        return to_html(result, command=shlex.join(words))
