"""What a run is: the engine, the models and the settings under which its rows were recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from driftscope.errors import DamagedTraceError, NotATraceError, SchemaVersionError
from driftscope.trace.schema import SCHEMA_VERSION

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Identity of a target or a drafter."""

    name: str
    architecture: str
    config_digest: str
    """sha256 of the model's configuration, first 16 hex digits."""
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One per run, written once when the engine has loaded its models."""

    run_id: str
    created_s: float
    driftscope_version: str
    engine: str
    """"vllm" or "reference"."""
    engine_version: str
    runner: str
    """"v1", "v2" (vLLM's model runner generations) or "reference"."""
    mode: str
    """How the drafter executes: "eager", "compiled", "piecewise graphs", "full graphs"."""
    recording: str
    """How rounds are recorded: "taps" (hooks in the served execution), "in-graph" or "shadow"."""
    method: str
    """The engine's name of the speculation method, such as "eagle3"."""
    k: int
    """Draft tokens per round as configured."""
    target: Model
    drafter: Model
    norm_flags: Mapping[str, bool]
    """fc_norm, norm_output, norm_before_fc, norm_before_residual as found on the loaded drafter."""
    drafter_layers: int
    aux_layers: tuple[int, ...]
    """Target layers captured for the drafter."""
    attention_backend: str
    kv_cache_dtype: str
    tp_rank: int = 0
    tp_size: int = 1
    dp_rank: int = 0
    every: int = 1
    """Each `every`-th draft step is recorded; verification is always recorded."""
    sink_tokens: int
    """The sink set is slots [0, sink_tokens)."""
    sink_source: str
    """"default" or "given"."""
    clock: str = "unix"
    schema_version: str = SCHEMA_VERSION
    notes: tuple[str, ...] = field(default=())
    """Warnings about this run that a reader must see."""

    def to_json(self) -> str:
        """Stable JSON: sorted keys, indented, newline at the end."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


def read_manifest(run: Path) -> Manifest:
    """The manifest of the run directory `run`.

    Raises NotATraceError, DamagedTraceError or SchemaVersionError.
    """
    path = run / MANIFEST
    if not run.exists():
        raise NotATraceError(
            f"{run}: no such directory; give the run directory that the probe wrote"
        )
    if not path.is_file():
        raise NotATraceError(
            f"{run}: no {MANIFEST} in it, so this is no driftscope run; "
            "give the directory that DRIFTSCOPE_TRACE named"
        )
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        version = raw["schema_version"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise DamagedTraceError(f"{path}: not a readable manifest ({error!r})") from error
    check_version(str(version), path)
    try:
        return _from_dict(raw)
    except (AttributeError, KeyError, TypeError) as error:
        raise DamagedTraceError(f"{path}: a field is missing or wrong ({error})") from error


def check_version(version: str, path: Path) -> None:
    """Raise SchemaVersionError when `version` has a newer major number than this reader."""
    major, _, _ = version.partition(".")
    ours, _, _ = SCHEMA_VERSION.partition(".")
    if not major.isdigit():
        raise DamagedTraceError(f"{path}: schema version {version!r} is not a version")
    if int(major) > int(ours):
        raise SchemaVersionError(
            f"{path}: trace schema {version}, this driftscope reads up to {ours}.x; "
            "upgrade driftscope"
        )


def _from_dict(raw: dict[str, Any]) -> Manifest:
    """Fields of a newer minor version are ignored."""
    known = {f.name for f in fields(Manifest)}
    values = {name: value for name, value in raw.items() if name in known}
    for name in ("target", "drafter"):
        wanted = {f.name for f in fields(Model)}
        values[name] = Model(**{k: v for k, v in raw[name].items() if k in wanted})
    for name in ("aux_layers", "notes"):
        values[name] = tuple(values.get(name, ()))
    return Manifest(**values)
