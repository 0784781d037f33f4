"""The request of `driftscope ablate`, and its execution."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from driftscope.ablate.ablation import Ablation
from driftscope.ablate.intervention import AS_SERVED, INTERVENTIONS
from driftscope.boundary.file_input import first_line, read_text
from driftscope.cli.inspection.loaded_bench import EXTRA, TrialOptions, load_bench
from driftscope.cli.shared.extras import needs
from driftscope.cli.shared.progress_bar import steps
from driftscope.errors import UsageError
from driftscope.inspect.files.drafter_files import open_drafter
from driftscope.inspect.files.opening import Opening
from driftscope.inspect.files.target_files import open_target


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

    def result(self) -> Ablation:
        """Run both models. Raises DriftscopeError for a checkpoint, a template or prompts that
        cannot be read or run, and for an unknown intervention."""
        wanted = _named(self.interventions)
        template = self.template and _template(self.template)
        files = open_drafter(self.drafter, self.opening)
        opened = open_target(self.target, self.opening)
        options = TrialOptions(prompts=self.prompts, k=self.k, opening=self.opening)
        with needs(EXTRA):
            from driftscope.ablate.ablation_run import run_ablation
            from driftscope.ablate.measurement.ablation_plan import AblationOptions
            from driftscope.ablate.measurement.prompt_writing import GivenTemplate

            return run_ablation(
                files,
                opened,
                lambda: load_bench(opened, options, self.most_prompts),
                AblationOptions(
                    k=self.k,
                    wanted=wanted,
                    positions=self.positions,
                    template=GivenTemplate(name=str(self.template), text=template)
                    if template
                    else None,
                ),
                names=(self.drafter, self.target),
                progress=lambda prompts: steps(prompts, "Drafting"),
            )


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
