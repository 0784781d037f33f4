"""The request of `driftscope ablate`, and its execution."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftscope.ablate.ablation import Ablation
from driftscope.ablate.intervention import AS_SERVED, INTERVENTIONS
from driftscope.boundary import strict_json
from driftscope.boundary.file_input import first_line, read_bytes, read_text
from driftscope.cli.inspection.loaded_bench import EXTRA, TrialOptions, load_bench
from driftscope.cli.shared.extras import needs
from driftscope.cli.shared.progress_bar import steps
from driftscope.errors import UsageError
from driftscope.inspect.files.drafter_files import DrafterFiles, open_drafter
from driftscope.inspect.files.opening import Opening
from driftscope.inspect.files.target_files import TargetFiles, open_target
from driftscope.inspect.weights_digest import weights_digest
from driftscope.version import __version__

if TYPE_CHECKING:  # imports torch
    from driftscope.ablate.measurement.ablation_plan import AblationOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationRequest:
    """Arguments of the command."""

    drafter: str
    target: str
    prompts: str
    k: int
    positions: int
    most_prompts: int
    interventions: str | None
    template: Path | None
    opening: Opening

    def opened(self) -> tuple[DrafterFiles, TargetFiles]:
        """Open both checkpoints; raises CheckpointError."""
        return open_drafter(self.drafter, self.opening), open_target(self.target, self.opening)

    def result(
        self, files: DrafterFiles, target: TargetFiles, work_path: Path | None = None
    ) -> Ablation:
        """Run both models. With `work_path`, go on from what that file has kept, and keep there
        what is measured.

        Raises DriftscopeError for a checkpoint, a template or prompts that cannot be read or run,
        for an unknown intervention, and for the work file of another request.
        """
        wanted = _named(self.interventions)
        template = _template(self.template) if self.template else None
        options = TrialOptions(
            prompts=self.prompts,
            k=self.k,
            most_prompts=self.most_prompts,
            opening=self.opening,
        )
        with needs(EXTRA):
            from driftscope.ablate.ablation_run import run_ablation
            from driftscope.ablate.measurement.work_file import WorkFile

            identity = self._identity(files, target, wanted, template)
            work = WorkFile(work_path, identity) if work_path else None
            with work or nullcontext():
                return run_ablation(
                    files,
                    target,
                    lambda: load_bench(target, options),
                    self._options(wanted, template),
                    names=(self.drafter, self.target),
                    work=work,
                    progress=lambda prompts: steps(prompts, "Drafting"),
                )

    def _options(self, wanted: tuple[str, ...], template: str | None) -> AblationOptions:
        from driftscope.ablate.measurement.ablation_plan import AblationOptions
        from driftscope.ablate.measurement.prompt_writing import GivenTemplate

        given = GivenTemplate(name=str(self.template), text=template) if template else None
        return AblationOptions(k=self.k, wanted=wanted, positions=self.positions, template=given)

    def _identity(
        self,
        files: DrafterFiles,
        target: TargetFiles,
        wanted: tuple[str, ...],
        template: str | None,
    ) -> dict[str, Any]:
        """Return all that the counts depend on, by the names that an error shows."""
        from driftscope.workloads.suites.readers import prompts_of

        chosen = prompts_of(self.prompts)[: self.most_prompts]
        asked = [[each.key, list(each.messages), each.text] for each in chosen]
        return {
            "driftscope": __version__,
            "drafter": _model(files.folder),
            "--target": _model(target.folder),
            "--prompts": _digest(strict_json.dumps(asked).encode()),
            "--k": self.k,
            "--positions": self.positions,
            "--interventions": list(wanted),
            "--template": None if template is None else _digest(template.encode()),
        }


def _model(folder: Path) -> list[str | None]:
    config = _digest(read_bytes(folder / "config.json"))
    return [str(folder), config, weights_digest(str(folder))]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _template(path: Path) -> str:
    """Return the text of a chat template; raises UsageError."""
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"--template {path}: cannot be read ({first_line(error)})") from error
    if not text.strip():
        raise UsageError(f"--template {path}: is empty; give a chat template in Jinja")
    return text


def _named(names: str | None) -> tuple[str, ...]:
    """Return the wanted interventions in the order of the catalogue."""
    every = tuple(name for name in INTERVENTIONS if name != AS_SERVED)
    if names is None:
        return every
    asked = {name.strip() for name in names.split(",") if name.strip()}
    if unknown := asked - set(INTERVENTIONS):
        raise UsageError(
            f"--interventions {sorted(unknown)[0]}: no such intervention; there are "
            f"{', '.join(every)}"
        )
    return tuple(name for name in every if name in asked)
