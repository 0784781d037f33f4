"""The run directory of an ablation: a manifest of mode `ablation`, and the JSON document."""

from __future__ import annotations

import hashlib
import time
import uuid
from pathlib import Path

from driftscope.ablate.ablation import Ablation
from driftscope.ablate.ablation_json import to_json
from driftscope.ablate.ablation_reading import DOCUMENT
from driftscope.boundary.files import read_bytes, write_file
from driftscope.errors import UsageError
from driftscope.inspect.files.drafter_files import DrafterFiles
from driftscope.inspect.files.target_files import TargetFiles
from driftscope.inspect.reference.replay import DEFAULT_N_SINK
from driftscope.inspect.weights_digest import weights_digest
from driftscope.trace.manifest import ABLATION, GREEDY, MANIFEST, Manifest, Model
from driftscope.trace.runs import is_ablation_run
from driftscope.version import __version__

_DIGITS = 16
_DTYPE = "float32"
_FLAGS = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")


def check_free(run: Path) -> None:
    """Raise UsageError if `run` is something that an ablation must not replace."""
    if run.exists() and not run.is_dir():
        raise UsageError(
            f"--output {run}: is a file; give a run directory, or a name that ends with .json"
        )
    if (run / MANIFEST).exists() and not is_ablation_run(run):
        raise UsageError(f"--output {run}: holds a run of a server; give another directory")


def write_run(run: Path, result: Ablation, drafter: DrafterFiles, target: TargetFiles) -> None:
    """Write the run directory; an ablation that is there is replaced. Raises OSError."""
    manifest = manifest_of(
        drafter, target, k=result.k, run_id=uuid.uuid4().hex[:12], created_s=time.time()
    )
    write_file(run / DOCUMENT, to_json(result).encode(), parents=True)
    write_file(run / MANIFEST, manifest.to_json().encode())


def manifest_of(
    drafter: DrafterFiles, target: TargetFiles, *, k: int, run_id: str, created_s: float
) -> Manifest:
    """Return the manifest of an ablation that begins at the Unix time `created_s`."""
    return Manifest(
        run_id=run_id,
        created_s=created_s,
        driftscope_version=__version__,
        engine="reference",
        engine_version=__version__,
        runner="reference",
        mode=ABLATION,
        recording="none",
        method="eagle3",
        k=k,
        target=_model(target.folder, target.raw.get("architectures")),
        drafter=_model(drafter.folder, drafter.raw.get("architectures")),
        norm_flags={name: drafter.flag(name) for name in _FLAGS},
        drafter_layers=drafter.layers,
        aux_layers=drafter.aux_layers or (),
        draft_sampling=GREEDY,
        attention_backend="torch",
        kv_cache_dtype="auto",
        sink_tokens=DEFAULT_N_SINK,
        sink_source="default",
    )


def _model(folder: Path, architectures: object) -> Model:
    named = architectures if isinstance(architectures, list) else []
    config = read_bytes(folder / "config.json")
    return Model(
        name=str(folder),
        architecture=str(named[0]) if named else "unknown",
        config_digest=hashlib.sha256(config).hexdigest()[:_DIGITS],
        dtype=_DTYPE,
        weights_digest=weights_digest(str(folder)),
    )
