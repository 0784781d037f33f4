"""Mutations that damage a run directory: bytes, JSON, columns, files and names.

Each mutation takes a copy of a sound run and a random number generator, and returns the path of the
run afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from driftscope.trace.segments import StreamFile
from verification.faults.command import encodable, file_name_of, text_of

Mutation = Callable[[Path, Random], Path]

NUMBERS = (-1, 0, 1, 2**31, 2**63 - 1, -(2**63), 2**64, 10**30, 1e308, -0.0, 1e-320)
HOSTILE: tuple[Any, ...] = (
    *NUMBERS,
    None,
    True,
    "",
    "x" * 70_000,
    "\x1b[2J\x1b]0;PWN\x07",
    "\u202etxt.exe",
    "\x00",
    "\ud800",
    "<script>alert(1)</script>",
    "'; DROP TABLE draft; --",
    "../../etc/passwd",
    [],
    {},
    [[]],
    [1] * 70_000,
    {"a": {"b": {}}},
    float("nan"),
    float("inf"),
    "1e999",
    "²",
)
"""Values that replace something else."""
FOLDERS = (
    "accepted=8",
    "replica=3",
    "request=abc",
    "drafted=1",
    "k=4",
    "time_s=1",
    "a*b",
    "a?b",
    "[ab]",
    "it's",
    'a"b',
    "a b",
    "ü",
    "{time}",
    "-x",
    "a;b",
    "%41",
    "a\\b",
    "$(id)",
)
"""Folder names that must not matter."""


def _some(run: Path, random: Random, *endings: str) -> Path | None:
    found = sorted(path for path in run.iterdir() if path.name.endswith(endings))
    return random.choice(found) if found else None


def flip_bits(run: Path, random: Random) -> Path:
    """Flip one to eight bits of one file."""
    path = _some(run, random, "")
    content = bytearray(path.read_bytes()) if path else bytearray()
    for _ in range(random.randint(1, 8) if content else 0):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    if path:
        path.write_bytes(content)
    return run


def cut_bytes(run: Path, random: Random) -> Path:
    """Truncate a file, or remove, duplicate or zero a part of it."""
    path = _some(run, random, "")
    if path is None or not (content := path.read_bytes()):
        return run
    begin, length = random.randrange(len(content)), random.choice((1, 7, 64, 4096))
    stretch = content[begin : begin + length]
    path.write_bytes(
        random.choice(
            (
                content[:begin],
                content[:begin] + content[begin + length :],
                content[:begin] + stretch + content[begin:],
                content[:begin] + bytes(len(stretch)) + content[begin + length :],
                content + random.randbytes(length),
            )
        )
    )
    return run


def exchange_json_value(run: Path, random: Random) -> Path:
    """Replace, remove or add a value anywhere in a manifest or a status."""
    path = _some(run, random, ".json")
    if path is None:
        return run
    value = json.loads(path.read_text())
    _exchange(value, random)
    path.write_text(json.dumps(value))
    return run


def _exchange(value: Any, random: Random) -> None:
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = random.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and random.random() < 0.7:
            value = value[key]
            continue
        if random.random() < 0.15:
            del value[key]
        elif isinstance(value, dict) and random.random() < 0.1:
            value[str(random.choice(HOSTILE))] = random.choice(HOSTILE)
        else:
            value[key] = random.choice(HOSTILE)
        return


def break_json(run: Path, random: Random) -> Path:
    """Replace a file with text that is not a JSON object."""
    path = _some(run, random, ".json")
    texts = (
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"a":' * 50_000,
        b"9" * 6000,
        b'{"schema_version": "\xed\xa0\x80"}',
        b'{"k": 1e999}',
        b"\xef\xbb\xbf{}",
    )
    if path:
        path.write_bytes(random.choice(texts))
    return run


def exchange_column(run: Path, random: Random) -> Path:
    """Give a column of a sealed file or a stream hostile values or another type, or remove or
    duplicate it. The digests are correct, as from a hostile writer."""
    path = _some(run, random, ".parquet", ".arrows")
    if path is None:
        return run
    table = table_of(path)
    if not table.num_rows:
        return run
    at = random.randrange(table.num_columns)
    write_table(path, random.choice(_COLUMNS)(table, at, random))
    for status in run.glob("status-*.json"):  # it describes the original file
        value = json.loads(status.read_text())
        value.pop("digests", None)
        status.write_text(json.dumps(value))
    return run


def table_of(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path)
    with pa.OSFile(str(path)) as source:
        return pa.ipc.open_stream(source).read_all()


def write_table(path: Path, table: pa.Table) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    path.unlink()
    stream = StreamFile(path, table.schema)
    for batch in table.to_batches():
        stream.append(batch)
    stream.close()


def _hostile_values(table: pa.Table, at: int, random: Random) -> pa.Table:
    field, values = table.schema.field(at), table.column(at).to_pylist()
    for row in random.sample(range(len(values)), random.randint(1, min(3, len(values)))):
        values[row] = _hostile_of(field.type, random)
    return table.set_column(at, field.with_nullable(True), pa.array(values, field.type))


def _hostile_of(kind: pa.DataType, random: Random) -> Any:
    if pa.types.is_integer(kind):
        wide = kind.bit_width == 64
        return random.choice((None, -1, 0, 2**31 - 1, *((2**63 - 1, -(2**63)) if wide else ())))
    if pa.types.is_timestamp(kind):
        return random.choice((None, 0, -1, 2**62))
    if pa.types.is_floating(kind):
        return random.choice((None, float("nan"), float("inf"), -1.0, 1e300, 0.0))
    if pa.types.is_list(kind):
        value = _hostile_of(kind.value_type, random)
        return random.choice((None, [], [value], [value] * 100_000))
    if pa.types.is_boolean(kind):
        return None
    text = random.choice([text for text in HOSTILE if isinstance(text, str)])
    return random.choice((None, text.encode("utf-8", "replace").decode()))


def _other_type(table: pa.Table, at: int, random: Random) -> pa.Table:
    name = table.schema.field(at).name
    column = random.choice(
        (
            pa.array(["x"] * table.num_rows),
            pa.array([1.5] * table.num_rows),
            pa.array([[["deep"]]] * table.num_rows),
            pa.nulls(table.num_rows),
            pa.array([{"a": 1}] * table.num_rows),
            pa.array([b"\xff"] * table.num_rows),
            pa.array([2**63] * table.num_rows, pa.uint64()),
            pa.array([True] * table.num_rows),
        )
    )
    return table.set_column(at, name, column)


def _gone(table: pa.Table, at: int, random: Random) -> pa.Table:
    return table.remove_column(at)


def _renamed(table: pa.Table, at: int, random: Random) -> pa.Table:
    names = table.column_names
    names[at] = random.choice(("", "x" * 5000, 'a"b', "step", "accepted", "\x1b[2J", "a.b"))
    return table.rename_columns(names)


def _other_metadata(table: pa.Table, at: int, random: Random) -> pa.Table:
    metadata = dict(table.schema.metadata or {})
    for key in metadata or {b"driftscope.schema_version": b""}:
        metadata[key] = random.choice(
            (b"", b"\xff", b"9" * 5000, b"[" * 90_000, b'{"fed_rms": "x"}', b'{"x": "complement"}')
        )
    return table.replace_schema_metadata(metadata)


def _many_equal_rows(table: pa.Table, at: int, random: Random) -> pa.Table:
    return pa.concat_tables([table.slice(0, 1)] * random.choice((1000, 20_000)))


_COLUMNS = (
    _hostile_values,
    _hostile_values,
    _hostile_values,
    _other_type,
    _gone,
    _renamed,
    _other_metadata,
    _many_equal_rows,
)


def exchange_file(run: Path, random: Random) -> Path:
    """Replace a file with a pipe, a folder, a link to a device or to nowhere, an empty file or
    another kind."""
    path = _some(run, random, "")
    if path is None:
        return run
    content = path.read_bytes()
    path.unlink()
    kind = random.randrange(8)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to("/dev/zero")
    elif kind == 3:
        path.symlink_to(path)
    elif kind == 4:
        path.touch()
    elif kind == 5:
        path.write_bytes(random.randbytes(4096))
    elif kind == 6:
        other = _some(run, random, "")
        path.write_bytes(other.read_bytes() if other else content)
    return run


def rename_file(run: Path, random: Random) -> Path:
    """Give a file another number, process or record, or a name that is not text."""
    path = _some(run, random, "")
    if path is None:
        return run
    name = random.choice(
        (
            path.name.replace("worker0", "worker" + "9" * random.choice((1, 30))),
            path.name.replace("worker0", "worker0.dp" + "8" * random.choice((1, 30))),
            path.name.replace("draft", "verify"),
            path.name.replace("0000", "9" * 40),
            "status-\x1b[2J.json",
            path.name.replace(".parquet", ".arrows"),
            path.name.replace("-", "--"),
            path.name + ".partial",
        )
    )
    path.rename(run / name)
    if random.random() < 0.2:
        os.rename(run / name, os.fsencode(run) + b"/status-\xff.json")  # noqa: PTH104
    return run


def rename_folder(run: Path, random: Random) -> Path:
    """Move the run into a folder whose name could be interpreted as something else."""
    folder = run.parent / random.choice(FOLDERS)
    folder.mkdir(exist_ok=True)
    return Path(shutil.move(run, folder / "run"))


TEXT_COLUMNS = ("label", "request", "finish_reason", "structured", "reason", "execution", "error")


def exchange_texts(run: Path, random: Random) -> Path:
    """Replace each text of some columns, such as a label, with a hostile one, consistently in all
    files."""
    columns = random.sample(TEXT_COLUMNS, random.randint(1, 3))
    renamed: dict[str, str] = {}
    for path in sorted(run.iterdir()):
        if path.suffix in (".parquet", ".arrows"):
            _rename_texts(path, columns, renamed, random)
    for status in run.glob("status-*.json"):  # it describes the original files
        value = json.loads(status.read_text())
        value.pop("digests", None)
        status.write_text(json.dumps(value))
    return run


def _rename_texts(
    path: Path, columns: Sequence[str], renamed: dict[str, str], random: Random
) -> None:
    table = table_of(path)
    for name in columns:
        if name not in table.column_names or not pa.types.is_string(table.schema.field(name).type):
            continue
        texts = table.column(name).to_pylist()
        for text in dict.fromkeys(texts):
            renamed.setdefault(text, encodable(text_of(random)))
        at = table.schema.get_field_index(name)
        column = pa.array([text and renamed[text] for text in texts], pa.string())
        table = table.set_column(at, table.schema.field(at), column)
    write_table(path, table)


def exchange_json_texts(run: Path, random: Random) -> Path:
    """Replace some texts of the manifest and the statuses with hostile ones."""
    for path in sorted(run.glob("*.json")):
        value = json.loads(path.read_text())
        path.write_text(json.dumps(_with_texts(value, random)))
    return run


def _with_texts(value: Any, random: Random) -> Any:
    if isinstance(value, dict):
        return {name: _with_texts(inner, random) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_texts(inner, random) for inner in value]
    return text_of(random) if isinstance(value, str) and random.random() < 0.15 else value


def text_as_folder(run: Path, random: Random) -> Path:
    """Move the run into a folder with a hostile name."""
    folder = run.parent / f"{file_name_of(text_of(random))}x"
    folder.mkdir(exist_ok=True)
    return Path(shutil.move(run, folder / "run"))


MUTATIONS: Mapping[str, Mutation] = {
    "bits": flip_bits,
    "bytes": cut_bytes,
    "json values": exchange_json_value,
    "no json": break_json,
    "columns": exchange_column,
    "files": exchange_file,
    "file names": rename_file,
    "folder names": rename_folder,
    "folder texts": text_as_folder,
    "json texts": exchange_json_texts,
    "row texts": exchange_texts,
}
KEEPS_FIGURES = frozenset({"bits", "folder names", "folder texts"})
"""Mutations after which every figure is unchanged, or missing or wrong data is reported."""
