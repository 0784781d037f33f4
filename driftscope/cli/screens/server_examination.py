"""The checks that `driftscope doctor` was asked for, with the verdict first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from driftscope.errors import UsageError
from driftscope.lab_package import TRIO, needs_lab
from driftscope_probes.server.doctor import Check, catalogue, examine, verdict
from driftscope_probes.server.readiness import readiness


def examined_sglang() -> list[Check]:
    """Return the verdict on an SGLang in this environment and the checks behind it."""
    from driftscope_probes.server.sglang_doctor import SGLANG, examine_sglang

    with Console(stderr=True).status("Checking this machine (importing SGLang takes seconds)"):
        checks = list(examine_sglang())
    return [verdict(checks, SGLANG), *checks]


def examined(
    model: str | None, options: Sequence[str], run: Path | None, *, drafters: bool
) -> list[Check]:
    """Return the verdict and the checks behind it; only the catalogue if that is asked for.

    Raises UsageError for vLLM's options without a model.
    """
    if drafters:
        return list(catalogue())
    if options and (model is None or model.startswith(("{", "-"))):
        raise UsageError("give MODEL first, then the options of its server")
    if model is not None:
        checks = list(readiness(*_resolved(model, options)))
    else:
        with Console(stderr=True).status("Checking this machine (importing vLLM takes seconds)"):
            checks = list(examine(run))
    return [verdict(checks), *checks]


def _resolved(model: str, options: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return a model and options with the paths of the shipped small models."""
    if model != TRIO:
        return model, options
    with needs_lab():
        from driftscope_lab.trio import serving

    return serving.target_path(), serving.with_speculation(options)
