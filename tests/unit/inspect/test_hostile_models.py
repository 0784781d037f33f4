"""No value of any file of a model leads to more than an error of one line, and none takes long.

`make faults` tries the same edits on more models, and runs them.
"""

from __future__ import annotations

import json
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import AUX, TARGET, as_speculators, changed, speculators_names
from support.command import assert_fails, run_command
from support.hostile.models import (
    every_edit,
    header_of,
    linked,
    reshaped,
    rewrite,
    with_value,
    write_header,
)

from driftscope.errors import EXIT_ERROR, CheckpointError
from driftscope.inspect.checkpoints import open_drafter
from driftscope.inspect.checks.mtp_heads import left_out
from driftscope.inspect.files import read_header
from driftscope.inspect.inspection import inspect_files, to_json
from driftscope.inspect.trial.drafting import as_served
from driftscope_lab.trio import trio_path

EAGLE3 = trio_path() / "eagle3"
TARGET_LAYERS = 4
SHARE = 7
"""One edit in so many is tried, with another value for each field."""


def _attempt(drafter: Path, target: Path = TARGET) -> None:
    """Inspect both and make the drafter ready to run; an error has one line."""
    for work in (
        lambda: to_json(inspect_files(str(drafter), str(target)), 0),
        lambda: as_served(open_drafter(str(drafter)), TARGET_LAYERS).check(),
    ):
        try:
            work()
        except CheckpointError as error:
            assert "\n" not in str(error)


def _config_edits(model: Path, name: str, *, more: bool = True) -> Iterator[str]:
    content: dict[str, Any] = json.loads((model / name).read_text())
    for label, text in islice(every_edit(content, more=more), 0, None, SHARE):
        print(label)  # which edit failed
        yield text


def test_any_value_of_a_drafters_config(tmp_path: Path) -> None:
    drafter = linked(trio_path() / "eagle31", tmp_path / "drafter")
    for text in _config_edits(drafter, "config.json"):
        rewrite(drafter / "config.json", text)
        _attempt(drafter)


def test_any_value_of_a_config_in_the_speculators_format(tmp_path: Path) -> None:
    made = changed(tmp_path / "a", config=as_speculators, weights=speculators_names)
    drafter = linked(made, tmp_path / "drafter")
    for text in _config_edits(made, "config.json", more=False):
        rewrite(drafter / "config.json", text)
        _attempt(drafter)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_any_value_of_a_targets_files(tmp_path: Path, name: str) -> None:
    target = linked(TARGET, tmp_path / "target")
    for text in _config_edits(TARGET, name, more=name == "config.json"):
        rewrite(target / name, text)
        _attempt(EAGLE3, target)


def test_any_value_of_a_header(tmp_path: Path) -> None:
    drafter = Path(shutil.copytree(EAGLE3, tmp_path / "drafter"))
    header, body = header_of(drafter)
    some = {name: header[name] for name in ("fc.weight", "norm.weight", "__metadata__")}
    for label, text in islice(every_edit(some, more=False), 0, None, SHARE):
        print(label)
        rest = {name: entry for name, entry in header.items() if name not in some}
        write_header(drafter, f"{text[:-1]}, {json.dumps(rest)[1:]}", body)
        _attempt(drafter)


@pytest.mark.parametrize("name", ["fc.weight", "norm.weight", "lm_head.weight"])
@pytest.mark.parametrize("shape", [[], [0], [0, 768], [7], [3, 5], [1] * 8, [1] * 65])
def test_any_shape_of_a_tensor(tmp_path: Path, name: str, shape: list[int]) -> None:
    drafter = Path(shutil.copytree(EAGLE3, tmp_path / "drafter"))
    reshaped(drafter, name, shape)
    _attempt(drafter)
    done = run_command("inspect", drafter, "--target", TARGET, "--files-only")
    assert done.returncode in (1, 3) and "Warning" not in done.stderr


def _overlapping(model: Path) -> None:
    header, body = header_of(model)
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            entry["data_offsets"] = [0, end - begin]
    write_header(model, json.dumps(header), body)


def _followed(model: Path) -> None:
    header, body = header_of(model)
    write_header(model, json.dumps(header), body + bytes(100))


def _preceded(model: Path) -> None:
    header, body = header_of(model)
    for name, entry in header.items():
        if name != "__metadata__":
            entry["data_offsets"] = [offset + 8 for offset in entry["data_offsets"]]
    write_header(model, json.dumps(header), bytes(8) + body)


def _unknown_type(model: Path) -> None:
    header, body = header_of(model)
    header["fc.weight"]["dtype"] = "F33"
    write_header(model, json.dumps(header), body)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_overlapping, "does not begin where the tensor before it ends"),
        (_preceded, "does not begin where the tensor before it ends"),
        (_followed, "100 bytes follow its last tensor"),
        (_unknown_type, "safetensors refuses it"),
    ],
)
def test_a_file_that_engines_refuse_is_no_sound_file(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    drafter = Path(shutil.copytree(EAGLE3, tmp_path / "drafter"))
    damage(drafter)
    done = run_command("inspect", drafter, "--target", TARGET, "--files-only")
    assert_fails(done, EXIT_ERROR, words)


def _field(name: str, text: str) -> Callable[[Path], None]:
    def edit(model: Path) -> None:
        content = json.loads((model / "config.json").read_text())
        content.setdefault(name, 0)
        (model / "config.json").write_text(with_value(content, (name,), text))

    return edit


def _tensors(number: int) -> Callable[[Path], None]:
    def edit(model: Path) -> None:
        entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        write_header(model, json.dumps({f"x{n}": entry for n in range(number)}), b"")

    return edit


def _empty_entries(model: Path) -> None:
    entries = ",".join(f'"{n}":{{}}' for n in range(1_500_000))
    write_header(model, f"{{{entries}}}", b"")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_field("num_hidden_layers", "1000000000"), "num_hidden_layers is 1000000000"),
        (_field("num_hidden_layers", "1000000"), "num_hidden_layers is 1000000"),
        (_field("num_aux_hidden_states", "1000000000"), "num_aux_hidden_states is 1000000000"),
        (_field(AUX, json.dumps(list(range(10**6)))), f"{AUX} is [0, 1"),
        (_field("rope_theta", "1" + 400 * "0"), "out of bounds"),
        (_tensors(250_000), "has more than 1048576 values"),
        (_empty_entries, "bytes, more than"),
    ],
    ids=["10^9 layers", "10^6 layers", "states", "layer list", "401 digits", "tensors", "entries"],
)
def test_a_small_file_takes_neither_long_nor_much(
    tmp_path: Path, edit: Callable[[Path], None], words: str
) -> None:
    drafter = Path(shutil.copytree(EAGLE3, tmp_path / "drafter"))
    edit(drafter)
    began_s = time.process_time()
    with pytest.raises(CheckpointError, match=words.replace("[", r"\[").replace("^", r"\^")):
        inspect_files(str(drafter), str(TARGET))
    assert time.process_time() - began_s < 2.0


def test_a_header_within_the_bound_takes_little_memory(tmp_path: Path) -> None:
    _tensors(60_000)(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(read_header(tmp_path / "model.safetensors")) == 60_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize("entry", ["re:(a+)+$", "re:(.*)*x", "re:.*.*.*.*x", "re:" + "(" * 4000])
def test_a_pattern_without_an_end_is_not_tried(entry: str) -> None:
    began_s = time.process_time()
    left_out("model." + "a" * 200 + ".weight", {"ignore": [entry]})
    assert time.process_time() - began_s < 1.0
