"""`driftscope inspect` on every drafter class that the installed vLLM registers, as a table.

`make drafters` writes a tiny healthy checkpoint of each class (support/every_drafter.py), inspects
it, plants one fault of each kind that its class can have, and inspects it again. It fails if a
healthy checkpoint has an error, or a fault in a checked class is not named.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from support.checkpoints import save_model
from support.every_drafter import ALL, MASK_TOKEN, V, checkpoint_tensors, write

from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.checks.result import CheckLevel, Inspected
from driftscope.inspect.drafter_classes import Coverage
from driftscope.inspect.engine_loading import EngineProcess
from driftscope.inspect.inspection import Inspection, inspect_files
from driftscope_probes.server.doctor import drafter_classes, package_folder

Fields = dict[str, Any]
State = dict[str, torch.Tensor]
Plant = Callable[[Fields, State], bool]
"""Change config and weights in place; False if the class has no such thing."""
LISTS = ("target_layer_ids", "eagle_aux_hidden_state_layer_ids", "dspark_target_layer_ids")


def _matrix(state: State) -> str:
    """Return a matrix of a layer if there is one."""
    return max(state, key=lambda name: ("o_proj" in name, state[name].dim() == 2, name))


def _wrong_shape(_: Fields, state: State) -> bool:
    name = _matrix(state)
    state[name] = torch.cat([state[name], state[name][:1]])
    return True


def _missing(_: Fields, state: State) -> bool:
    del state[_matrix(state)]
    return True


def _places(fields: Fields) -> Iterator[tuple[Fields, str, Any]]:
    """Yield each field at the top and of blocks, with its place."""
    for place in (fields, fields.get("dflash_config") or {}):
        yield from ((place, name, value) for name, value in [*place.items()])


def _captured(fields: Fields, _: State) -> bool:
    for place, name, value in _places(fields):
        if name in LISTS:
            place[name] = [*value[:-1], 60]
            return True
    return False


def _mask(fields: Fields, _: State) -> bool:
    found = [(p, name) for p, name, value in _places(fields) if value == MASK_TOKEN]
    named = [(place, name) for place, name in found if "token" in name]
    for place, name in named:
        place[name] = V + 5
    return bool(named)


def _table(fields: Fields, state: State) -> bool:
    # Only drafters that read captured layers have such a table.
    if not any(name in LISTS for _, name, _ in _places(fields)):
        return False
    fields["draft_vocab_size"] = V // 2
    state["d2t"] = torch.zeros(V // 2, dtype=torch.int64)
    state["lm_head.weight"] = torch.rand(V // 2, fields["hidden_size"])
    return True


def _rope(fields: Fields, _: State) -> bool:
    layer = fields.get("transformer_layer_config", fields)
    without = "MedusaModel" in fields["architectures"] or "text_config" in fields
    if without or "rope_theta" not in layer:
        return False
    layer["rope_theta"] = 500000.0
    return True


PLANTED: dict[str, tuple[Plant, tuple[str, ...]]] = {
    "shape": (_wrong_shape, ("wrong_shape", "fc_width", "refused_by_engine")),
    "missing": (_missing, ("missing_tensor", "refused_by_engine", "mtp_heads_missing")),
    "captured": (_captured, ("captured_layers_range", "refused_by_engine")),
    "mask": (_mask, ("mask_token_range",)),
    "d2t": (_table, ("d2t_zero", "refused_by_engine")),
    "rope": (_rope, ("rope_theta_differs",)),
}
"""Fault -> how it is planted, and the results that name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Result for one class."""

    name: str
    coverage: str = Coverage.UNKNOWN
    errors: tuple[str, ...] = ()
    """Errors of the healthy checkpoint."""
    faults: dict[str, str] = field(default_factory=dict)
    """Fault -> `named`, `missed`, or `-` if the class has none."""
    reason: str
    """Why the class is not checked."""

    @property
    def right(self) -> bool:
        """Whether the healthy checkpoint has no error, and no fault of a checked class is
        missed."""
        checked = self.coverage == Coverage.CHECKED
        return not self.errors and not (checked and "missed" in self.faults.values())


def rows(folder: Path, vllm: EngineProcess, names: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the row of each class that vLLM registers, or of those named."""
    registered = sorted(drafter_classes(package_folder("vllm") or Path()))
    for name in names or registered:
        yield _row(folder / name, name, vllm)


def _row(folder: Path, name: str, vllm: EngineProcess) -> Row:
    if name not in ALL:
        return Row(name=name, reason="no tiny checkpoint")
    heads = "model.mtp.layers.0.eh_proj.weight"
    mark = heads if ALL[name].drafter is None else "fc.weight"
    drafter, target = write(folder / "empty", name, {mark: (1,)})
    opened = Inspected(drafter=open_drafter(str(drafter)), target=open_target(str(target)))
    answer = vllm.ask(opened)
    if not answer.parameters:
        reason = answer.unknown or "; ".join(result.found for result in answer.results)
        return Row(name=name, reason=reason)
    tensors = checkpoint_tensors(ALL[name], answer.parameters)
    drafter, target = write(folder / "healthy", name, tensors)
    healthy = _inspected(drafter, target, vllm)
    errors = (found.id for found in healthy.results if found.level is CheckLevel.ERROR)
    return Row(
        name=name,
        coverage=healthy.coverage,
        errors=tuple(errors),
        faults={name: _planted(folder / name, drafter, target, name, vllm) for name in PLANTED},
        reason="; ".join(healthy.unknown.not_recognised[1:]) if healthy.unknown else "",
    )


def _inspected(drafter: Path, target: Path, vllm: EngineProcess) -> Inspection:
    return inspect_files(str(drafter), None if drafter == target else str(target), engine=vllm)


def _planted(folder: Path, drafter: Path, target: Path, fault: str, vllm: EngineProcess) -> str:
    plant, ids = PLANTED[fault]
    fields = json.loads((drafter / "config.json").read_text())
    state = load_file(drafter / "model.safetensors")
    in_target = drafter == target
    if (in_target and fault not in ("shape", "missing")) or not plant(fields, state):
        return "-"
    save_model(folder, fields, state)
    inspection = _inspected(folder, folder if in_target else target, vllm)
    found = {result.id for result in inspection.results if result.level is not CheckLevel.NOTE}
    return "named" if found & set(ids) else "missed"


def main() -> int:
    """Print the table; return 1 if a row is wrong."""
    with tempfile.TemporaryDirectory() as folder, EngineProcess() as vllm:
        found = list(rows(Path(folder), vllm, sys.argv[1:]))
    width = max(len(row.name) for row in found)
    print(f"{'class':{width}}  {'inspect says':18} healthy  {'  '.join(f'{n:8}' for n in PLANTED)}")
    for row in found:
        errors = ", ".join(row.errors) or ("no error" if row.faults else "")
        cells = "  ".join(f"{row.faults.get(name, ''):8}" for name in PLANTED)
        line = f"{row.name:{width}}  {row.coverage:18} {errors:8} {cells}  {row.reason[:90]}"
        print(line.rstrip())
    for coverage in Coverage:
        print(f"{sum(row.coverage == coverage for row in found)} {coverage}")
    wrong = [row.name for row in found if not row.right]
    print(f"wrong: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
