"""The run that a user names: `latest`, FOLDER/latest, or a run directory, with Tab completion.

Each function is the callback of an argument or an option. It raises NotATraceError, which offers
the runs that there are, before a command reads anything.
"""

from __future__ import annotations

from pathlib import Path


def named_run(value: Path | None) -> Path | None:
    """Return the run that one argument names. Raises UsageError for an ablation, which has no
    rounds."""
    run = named_run_or_ablation(value)
    if run is None:
        return None
    from driftscope.errors import UsageError
    from driftscope.trace.runs.run_folder import is_ablation_run

    if is_ablation_run(run):
        raise UsageError(
            f"{run}: holds an ablation, not a recording; `driftscope analyze` reads it"
        )
    return run


def named_run_or_ablation(value: Path | None) -> Path | None:
    """Return the run or the ablation that one argument names."""
    if value is None:
        return None
    from driftscope.trace.runs.run_folder import found

    return found(value)


def named_run_or_inspection(value: Path | None) -> Path | None:
    """Return the run that one argument names; a JSON document is returned as it is."""
    return value if is_inspection(value) else named_run(value)


def is_inspection(value: Path | None) -> bool:
    """Whether a path names a document of `driftscope inspect --json`, not a run."""
    return value is not None and value.suffix.lower() == ".json" and not value.is_dir()


def named_runs(value: list[Path] | None) -> list[Path] | None:
    """Return the runs that a list of arguments names."""
    return None if value is None else [run for each in value if (run := named_run(each))]


def named_runs_or_ablations(value: list[Path] | None) -> list[Path] | None:
    """Return the runs and ablations that a list of arguments names."""
    if value is None:
        return None
    return [run for each in value if (run := named_run_or_ablation(each))]


def named_target(value: str) -> str:
    """Return the run that a target names; a URL is returned as it is."""
    if value.startswith(("http://", "https://")):
        return value
    return str(named_run(Path(value)))


def real_folder(value: Path) -> Path:
    """Return the folder to write into; raises UsageError for -, which cannot hold files."""
    if value == Path("-"):
        from driftscope.errors import UsageError

        raise UsageError("-: several files are written; give a folder")
    return value
