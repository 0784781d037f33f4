"""Hostile texts, damaged bytes, and mutations that damage a run directory.

A mutation takes a copy of a sound run and a random number generator, and returns the path of the
run afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from support.hostile.texts import TEXTS

from driftscope.trace.segments import StreamFile

Mutation = Callable[[Path, Random], Path]
FRAGMENTS = (
    *TEXTS.values(),
    *("<script>alert(1)</script>", "</script><script>alert(2)</script>", "<!--"),
    *("<img src=x onerror=alert(3)>", '" onload="alert(4)', "[a](javascript:alert(5))"),
    *("[red]bold[/red]", "[/]", "| a | b |\n|---|", "`x`", "=1+1", "'; DROP TABLE draft; --"),
    *('"} 1\n# EOF\n', '{le="1"}', "a,b;c\t\"d\"\r\n'e'", "{{7*7}} %s {0} ${HOME} $(id)"),
    *("../../etc/passwd", "--help", "\\", "nan", "1e999", "²", "", " ", "é漢🙂"),
)
LONG = (300, 5000, 70_000)
HOSTILE: tuple[Any, ...] = (
    *(-1, 0, 1, 2**31, 2**63 - 1, -(2**63), 2**64, 10**30, 10**400, 1e308, -0.0, 1e-320),
    *(None, True, [], {}, [[]], [1] * 70_000, {"a": {"b": {}}}, float("nan"), float("inf")),
)
"""Values other than texts that replace something else."""


def text_of(random: Random) -> str:
    """Return a sequence of fragments, a long text, or random characters."""
    kind = random.random()
    if kind < 0.1:
        return random.choice("aé\u202e<\x1b") * random.choice(LONG)
    if kind < 0.3:
        return "".join(chr(random.randrange(0x11000)) for _ in range(random.randint(1, 20)))
    return "".join(random.choice(FRAGMENTS) for _ in range(random.randint(1, 4)))


def encodable(text: str) -> str:
    """Return `text` without lone surrogates, for a file format that cannot hold them."""
    return text.encode("utf-8", "replace").decode()


def argument_of(text: str) -> str:
    """Return `text` as a command line can hold it: no NUL, and surrogates of raw bytes only."""
    return encodable(text).replace("\0", "\udcff")[:4000]


def file_name_of(text: str) -> str:
    """Return `text` as the name of one file."""
    return argument_of(text).replace("/", "_")[:80] or "x"


def _hostile(random: Random) -> Any:
    return random.choice((text_of(random), random.choice(HOSTILE)))


_VALUES = (
    *(b"-1", b"1e999", b"9" * 40, b"null", b"NaN", b"[]", b"[" * 2000, b"{}", b'"x"', b"0"),
    *(b'"\\ud800"', str(2**60).encode()),
)


def damaged(content: bytes, random: Random) -> bytes:
    """Return the content with one to three of: a value replaced, a text put in, bits flipped, and a
    stretch that is missing, zero or there twice."""
    raw = bytearray(content)
    for _ in range(random.randint(1, 3)):
        at, kind = random.randrange(len(raw) + 1), random.randrange(4)
        places = [place for place, octet in enumerate(raw) if octet in b'0123456789"[{']
        if kind == 0 and places:
            at = random.choice(places)
            raw[at : at + random.choice((1, 1, 3))] = random.choice(_VALUES)
        elif kind == 1:
            raw[at:at] = encodable(text_of(random)[:2000]).encode()
        elif kind == 2:
            flip_bits(raw, random)
        else:
            stretch = raw[at : at + random.choice((1, 20, 4096, len(raw)))]
            raw[at : at + len(stretch)] = random.choice((b"", bytes(len(stretch)), stretch * 2))
    return bytes(raw)


def flip_bits(raw: bytearray, random: Random) -> bytearray:
    """Flip one to eight bits in place."""
    for _ in range(random.randint(1, 8) if raw else 0):
        raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
    return raw


def _of_a_file(change: Callable[[Path, Random], object], *endings: str) -> Mutation:
    """Return a mutation that changes one file whose name ends like that, if there is one."""

    def mutation(run: Path, random: Random) -> Path:
        found = sorted(path for path in run.iterdir() if path.name.endswith(endings or ""))
        if found:
            change(random.choice(found), random)
        return run

    return mutation


def exchange_json_value(path: Path, random: Random) -> None:
    """Replace, remove or add a value anywhere in a manifest or a status."""
    document = value = json.loads(path.read_text())
    while keys := list(value) if isinstance(value, dict) else list(range(len(value))):
        key = random.choice(keys)
        inner = value[key]
        if isinstance(inner, dict | list) and inner and random.random() < 0.7:
            value = inner
            continue
        if random.random() < 0.15:
            del value[key]
        elif isinstance(value, dict) and random.random() < 0.1:
            value[text_of(random)] = _hostile(random)
        elif isinstance(inner, str) and random.random() < 0.7:
            value[key] = text_of(random)
        else:
            value[key] = _hostile(random)
        break
    path.write_text(json.dumps(document))


NO_OBJECTS = (
    *(b"", b"{", b"[]", b"null", b"7", b"\xff\xfe", b"[" * 200_000, b'{"a":' * 50_000),
    *(b"9" * 6000, b'{"schema_version": "\xed\xa0\x80"}', b'{"k": 1e999}', b"\xef\xbb\xbf{}"),
)
"""Texts that are no JSON object, or none with the right fields."""


def exchange_column(path: Path, random: Random) -> None:
    """Give a column of a sealed file or a stream hostile values or another type, or remove or
    duplicate it. The digests are correct, as from a hostile writer."""
    table = table_of(path)
    if table.num_rows:
        change = random.choice((*(_hostile_values,) * 3, *_COLUMNS))
        write_table(path, change(table, random.randrange(table.num_columns), random))


def table_of(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path)
    with pa.OSFile(str(path)) as source:
        return pa.ipc.open_stream(source).read_all()


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table in the place of another, which the statuses describe no longer."""
    path.unlink()
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        stream = StreamFile(path, table.schema)
        for batch in table.to_batches():
            stream.append(batch)
        stream.close()
    for status in path.parent.glob("status-*.json"):
        value = json.loads(status.read_text())
        value.pop("digests", None)
        status.write_text(json.dumps(value))


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
    return random.choice((None, encodable(text_of(random))))


_OTHERS = (
    *map(pa.scalar, ("x", 1.5, [["deep"]], None, {"a": 1}, b"\xff", True)),
    pa.scalar(2**63, pa.uint64()),
)
_NAMES = ("", "x" * 5000, 'a"b', "step", "accepted", "\x1b[2J", "a.b")
_METADATA = (b"", b"\xff", b"9" * 5000, b"[" * 90_000, b'{"fed_rms": "x"}', b'{"x": "complement"}')


def _other_type(table: pa.Table, at: int, random: Random) -> pa.Table:
    column = pa.repeat(random.choice(_OTHERS), table.num_rows)
    return table.set_column(at, table.schema.field(at).name, column)


def _renamed(table: pa.Table, at: int, random: Random) -> pa.Table:
    names = table.column_names
    names[at] = random.choice(_NAMES)
    return table.rename_columns(names)


def _other_metadata(table: pa.Table, _: int, random: Random) -> pa.Table:
    keys = table.schema.metadata or {b"driftscope.schema_version": b""}
    return table.replace_schema_metadata({key: random.choice(_METADATA) for key in keys})


_COLUMNS: tuple[Callable[[pa.Table, int, Random], pa.Table], ...] = (
    _other_type,
    lambda table, at, _: table.remove_column(at),
    _renamed,
    _other_metadata,
    lambda table, _, random: pa.concat_tables([table[:1]] * random.choice((1000, 20_000))),
)


def exchange_file(path: Path, random: Random) -> None:
    """Replace a file with a pipe, a folder, a link to a device or to itself, an empty file, random
    bytes, another file of the run, or nothing."""
    other = random.choice(sorted(path.parent.iterdir())).read_bytes()
    path.unlink()
    random.choice(
        (
            lambda: os.mkfifo(path),
            path.mkdir,
            lambda: path.symlink_to("/dev/zero"),
            lambda: path.symlink_to(path),
            path.touch,
            lambda: path.write_bytes(random.randbytes(4096)),
            lambda: path.write_bytes(other),
            lambda: None,
        )
    )()


def copy_file(path: Path, random: Random) -> None:
    """Put a file of rows there once more, under another number, process or name."""
    stem = path.stem
    begin, _, number = stem.rpartition("-")
    names = (f"{begin}-{int(number) + 7:04d}", f"{stem} (1)", f"{stem}-copy", f"{begin}1-{number}")
    path.with_name(random.choice(names) + path.suffix).write_bytes(path.read_bytes())


def rename_file(path: Path, random: Random) -> None:
    """Give a file another number, process or record, or a name that is not text."""
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
    path = path.rename(path.with_name(name))
    if random.random() < 0.2:
        os.rename(path, os.fsencode(path.parent) + b"/status-\xff.json")  # noqa: PTH104


FOLDERS = (
    *("accepted=8", "replica=3", "request=abc", "drafted=1", "k=4", "time_s=1", "a*b", "a?b"),
    *("[ab]", "it's", 'a"b', "a b", "ü", "{time}", "-x", "a;b", "%41", "a\\b", "$(id)"),
)
"""Names that could be interpreted as something else."""


def rename_folder(run: Path, random: Random) -> Path:
    """Move the run into a folder whose name must not matter."""
    name = random.choice((random.choice(FOLDERS), f"{file_name_of(text_of(random))}x"))
    folder = run.parent / name
    folder.mkdir(exist_ok=True)
    return Path(shutil.move(run, folder / "run"))


TEXT_COLUMNS = ("label", "request", "finish_reason", "structured", "reason", "execution", "error")


def exchange_row_texts(run: Path, random: Random) -> Path:
    """Replace each text of some columns, such as a label, with a hostile one, consistently in all
    files."""
    columns = random.sample(TEXT_COLUMNS, random.randint(1, 3))
    renamed: dict[str | None, str | None] = {None: None}
    for path in sorted(path for path in run.iterdir() if path.suffix in (".parquet", ".arrows")):
        table = table_of(path)
        for at, field in enumerate(table.schema):
            if field.name in columns and pa.types.is_string(field.type):
                texts = table.column(at).to_pylist()
                renamed |= {t: encodable(text_of(random)) for t in texts if t not in renamed}
                column = pa.array([renamed[text] for text in texts], pa.string())
                table = table.set_column(at, field, column)
        write_table(path, table)
    return run


MUTATIONS: Mapping[str, Mutation] = {
    "bits": _of_a_file(
        lambda path, random: path.write_bytes(flip_bits(bytearray(path.read_bytes()), random))
    ),
    "bytes": _of_a_file(lambda path, random: path.write_bytes(damaged(path.read_bytes(), random))),
    "json values": _of_a_file(exchange_json_value, ".json"),
    "no json": _of_a_file(
        lambda path, random: path.write_bytes(random.choice(NO_OBJECTS)), ".json"
    ),
    "columns": _of_a_file(exchange_column, ".parquet", ".arrows"),
    "files": _of_a_file(exchange_file),
    "copies": _of_a_file(copy_file, ".parquet", ".arrows"),
    "file names": _of_a_file(rename_file),
    "folder names": rename_folder,
    "row texts": exchange_row_texts,
}
KEEPS_FIGURES = frozenset({"bits", "copies", "folder names"})
"""Mutations after which every figure is unchanged, or missing or wrong data is reported."""
