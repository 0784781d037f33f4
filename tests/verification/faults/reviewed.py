"""Every fault of the review of 27 November 2026, typed again: what was said then, and now.

    PYTHONPATH=tests python -m verification.faults.reviewed

Each row makes its input, runs the command in a process of its own, and prints what it says first,
its exit code, and its CPU time and memory, as a table in Markdown. Faults of live servers have
engine tests and are not here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from support.hostile.models import header_of, linked, reshaped, rewrite, write_header
from support.runs import Spec, write_run

from driftscope_lab.trio import trio_path

FEW_S, LESS_MB, LIMIT_S = 2.0, 200.0, 60.0
"""Bounds of the issue for a file that is read or refused, and seconds after which a row ends."""
FILES = "inspect D --target trio --files-only"
LAST_RESORT, ENDLESS = "an error that is a bug in driftscope", "no end in 20 s and more"
_SCRIPT = """
import atexit, json, re, time
from pathlib import Path

def used():
    mb = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    Path("used.json").write_text(json.dumps({"cpu_s": time.process_time(), "mb": mb}))

atexit.register(used)
from driftscope.cli.app import main
main()
"""
_ERROR, _SHOWN = "driftscope: error: ", 200
_OLD_S = 1_700_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A row: what is made and typed, and what was said."""

    what: str
    typed: str
    before: str
    make: Callable[[Path], object]
    """Write the input into an empty folder, in which the command is typed."""
    heavy: bool = False
    """Whether models are run, so that the bounds of a file do not hold."""
    left: str = ""
    """A file that must be there afterwards."""


def _drafter(folder: Path) -> Path:
    return linked(trio_path() / "eagle3", folder / "D")


def _fields(**values: Any) -> Callable[[Path], None]:
    """Edit fields of the drafter's config; a text is taken as it is."""

    def make(folder: Path) -> None:
        path = _drafter(folder) / "config.json"
        content = json.loads(path.read_text())
        content["eagle_config"].pop("eagle_aux_hidden_state_layer_ids", None)
        rewrite(path, json.dumps({**content, **values}))

    return make


def _header(
    edit: Callable[[dict[str, Any]], object], behind: bytes = b""
) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        drafter = _drafter(folder)
        header, body = header_of(drafter)
        edit(header)
        text = re.sub(r'"(1e999)"', r"\1", json.dumps(header))
        write_header(drafter, text, body + behind)

    return make


def _entries(header: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for name, entry in header.items() if name != "__metadata__"]


def _overlap(header: dict[str, Any]) -> None:
    for entry in _entries(header):
        first, last = entry["data_offsets"]
        entry["data_offsets"] = [0, last - first]


def _shape(name: str, shape: list[int]) -> Callable[[Path], None]:
    return lambda folder: reshaped(_drafter(folder), name, shape)


def _remote_code(folder: Path) -> None:
    target = linked(trio_path() / "target", folder / "T")
    fields = json.loads((target / "config.json").read_text())
    names = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilForCausalLM"}
    fields |= {"model_type": "eviltype", "architectures": ["EvilForCausalLM"], "auto_map": names}
    rewrite(target / "config.json", json.dumps(fields))
    (target / "evil.py").write_text("open('CODE_RAN', 'w').close()\n")
    _drafter(folder)


def _nulls(folder: Path, ranks: int = 1) -> None:
    """Write a sound run, and one whose lists hold nulls."""
    write_run(folder / "runs" / "sound")
    run = write_run(folder / "runs" / "nulls", Spec(requests=12, tensor_parallel=ranks))
    for path in run.glob("draft-*.parquet"):
        table = pq.read_table(path)
        at = table.schema.get_field_index("sink_mass")
        lists = [[None] * len(values or ()) for values in table.column(at).to_pylist()]
        field = table.schema.field(at)
        pq.write_table(table.set_column(at, field, pa.array(lists, field.type)), path)


def _text(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def _histogram(folder: Path) -> None:
    counts = {"acceptance_histogram": [0, 10**9], "num_spec_steps": 10**9}
    counts |= {"num_accepted_draft_tokens": 10**9, "num_draft_tokens": 10**9}
    row = {"metrics": {"speculative_decoding": counts}}
    (folder / "FILE").write_text(json.dumps(row))


def _old(path: Path) -> None:
    for one in (*path.rglob("*"), path):
        os.utime(one, (_OLD_S, _OLD_S))


def _web_app(folder: Path) -> None:
    (folder / "webapp").mkdir()
    (folder / "webapp" / "manifest.json").write_text('{"name": "my app"}')
    (folder / "webapp" / "request-log-2024.parquet").write_text("data")
    _old(folder / "webapp")


def _odd_run(folder: Path) -> None:
    for name in ("r1", "r2", "r3"):
        write_run(folder / "runs" / name)
    (folder / "runs" / "r2" / "notes.txt").write_text("precious")
    _old(folder / "runs")


def _not_a_run(folder: Path) -> None:
    (folder / "runs" / "mine").mkdir(parents=True)
    (folder / "runs" / "mine" / "fault-report.json").write_text('{"my": "data"}')


def _many(header: dict[str, Any]) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header.update({f"t{at}": entry for at in range(1_400_000)})


INGEST = "ingest FILE"
FAULTS = (
    Fault(
        what="code in a target (1)",
        typed="inspect D --target T --prompts trio --limit 5 --k 2",
        before="ran the code after `y`, asked on stdout otherwise; exit 0",
        make=_remote_code,
        heavy=True,
    ),
    Fault(
        what="all tensors at the same bytes (2)",
        typed=FILES,
        before="No mistake in the files, exit 0",
        make=_header(_overlap),
    ),
    Fault(
        what="100 bytes behind the last tensor (2)",
        typed=FILES,
        before="No mistake in the files, exit 0",
        make=_header(lambda _: None, b"x" * 100),
    ),
    Fault(
        what="`ls` beside a run with nulls in lists (3)",
        typed="ls runs",
        before=f"{LAST_RESORT}, no line at all",
        make=_nulls,
        heavy=True,
    ),
    Fault(
        what="nulls in lists, two ranks (4)",
        typed="analyze runs/nulls -q -o r.html",
        before=LAST_RESORT,
        make=lambda folder: _nulls(folder, 2),
        heavy=True,
    ),
    Fault(
        what="170 bytes with a histogram of 10^9 rounds (5)",
        typed="ingest FILE -o RUN",
        before=f"{ENDLESS}, gigabytes",
        make=_histogram,
    ),
    Fault(
        what="a line of 240 kB of `Decode batch` (5)",
        typed=INGEST,
        before="33.9 CPU s",
        make=_text("FILE", "Decode batch" * 20_000),
    ),
    Fault(
        what="a line of 420 kB of `SpecDecoding metrics:` (5)",
        typed=INGEST,
        before="no end in 40 s",
        make=_text("FILE", "SpecDecoding metrics:" * 20_000),
    ),
    *(
        Fault(
            what=f"{name} of {words} (5)", typed=FILES, before=before, make=_fields(**{name: value})
        )
        for name, value, words, before in (
            ("num_hidden_layers", 10**6, "10^6", "22.7 CPU s, +2.35 GB"),
            ("num_hidden_layers", 10**9, "10^9", "no end"),
            ("num_aux_hidden_states", 10**9, "10^9", ENDLESS),
            ("eagle_aux_hidden_state_layer_ids", [1] * 10**6, "10^6 numbers", "44.7 CPU s"),
        )
    ),
    Fault(
        what="a header of 1.4 M tensors (5)",
        typed=FILES,
        before="59.3 CPU s, +1.4 GB",
        make=_header(_many),
    ),
    Fault(
        what="a JSON list of 240 MB (5)",
        typed=INGEST,
        before="no end in 40 s",
        make=_text("FILE", f"[{'1,' * 120_000_000}1]"),
    ),
    Fault(
        what="4 M fractions in lists of a request's times (5)",
        typed=INGEST,
        before="2.1 CPU s, 274 MB",
        make=_text("FILE", json.dumps({"itls": [[0.0123456] * 1000] * 4000})),
    ),
    Fault(
        what="offsets up to 1e999 (6)",
        typed=FILES,
        before=LAST_RESORT,
        make=_header(lambda header: _entries(header)[0].update(data_offsets=[0, "1e999"])),
    ),
    Fault(
        what="a shape of 1e999 (6)",
        typed=FILES,
        before=LAST_RESORT,
        make=_header(lambda header: _entries(header)[0].update(shape=["1e999"])),
    ),
    Fault(
        what="rope_theta of 401 digits (6)",
        typed=FILES,
        before=LAST_RESORT,
        make=_fields(rope_theta=10**400),
    ),
    Fault(
        what="speculators_model_type null (6)",
        typed=FILES,
        before=LAST_RESORT,
        make=_fields(speculators_model_type=None),
    ),
    Fault(
        what="fc.weight of shape [] (6)",
        typed=FILES,
        before=LAST_RESORT,
        make=_shape("fc.weight", []),
    ),
    Fault(
        what="fc.weight of 40 dimensions (6)",
        typed=FILES,
        before=LAST_RESORT,
        make=_shape("fc.weight", [1] * 40),
    ),
    Fault(
        what="a web app's manifest.json, and its data (7a)",
        typed="rm webapp -y --unclosed",
        before="removed: 1 run, its data with it",
        make=_web_app,
        left="webapp/request-log-2024.parquet",
    ),
    Fault(
        what="a run with somebody's notes among three (7b)",
        typed="prune runs --older-than 1d --keep 0 -y",
        before="stopped at it: the third run stayed for good",
        make=_odd_run,
        left="runs/r2/notes.txt",
    ),
    Fault(
        what="nothing to prune (7c)",
        typed="prune runs --older-than 1000d --keep 0 -y",
        before="no runs here, where `ls` lists some",
        make=lambda folder: write_run(folder / "runs" / "r1"),
    ),
    Fault(
        what="a folder with a fault-report.json (7d)",
        typed="ls runs",
        before='a run, "no drafter"',
        make=_not_a_run,
    ),
)


def row(fault: Fault, folder: Path) -> tuple[str, bool]:
    """Type one row's command; return its line, and whether it keeps what the issue asks for."""
    fault.make(folder)
    words = shlex.split(fault.typed.replace("--target trio", f"--target {trio_path() / 'target'}"))
    paths = map(os.path.abspath, [*sys.path, Path.cwd()])
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "240"},
            input="y\n" * 9,
            stdout=out,
            stderr=err,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    used = json.loads((folder / "used.json").read_text())
    texts = [(folder / name).read_text() for name in ("err", "out")]
    said = _said(texts, folder)
    small = fault.heavy or (used["cpu_s"] <= FEW_S and used["mb"] <= LESS_MB)
    kept = not fault.left or (folder / fault.left).exists()
    ran = (folder / "CODE_RAN").exists()
    clean = done.returncode >= 0 and "bug in driftscope" not in said
    right = small and kept and clean and not ran
    cells = (
        fault.what,
        f"`driftscope {fault.typed}`",
        fault.before,
        f"{said}{' THE CODE RAN' * ran}{' A FILE WAS REMOVED' * (not kept)}",
        str(done.returncode),
        f"{used['cpu_s']:.1f}",
        f"{used['mb']:.0f}",
        "yes" if right else "NO",
    )
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |", right


def _said(texts: list[str], folder: Path) -> str:
    """Return what a command says: its error, or else its first two lines without headings."""
    lines = [line.replace(f"{folder}/", "").strip() for text in texts for line in text.splitlines()]
    heading = r"loading|accepts|started  |\S+ for \S+:|$"
    errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    plain = [line for line in lines if not re.match(heading, line)]
    said = "; ".join(errors[:1] or plain[:2]) or "nothing"
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}..."


def main() -> None:
    """Print the table; exit with 1 if a row does not keep what the issue asks for."""
    parser = argparse.ArgumentParser(prog="python -m verification.faults.reviewed")
    parser.add_argument("--only", default="", help="rows whose first cell holds these words")
    options = parser.parse_args()
    titles = "fault", "typed", "said before", "said now", "exit", "CPU s", "MB", "right"
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    wrong = 0
    for fault in FAULTS:
        if options.only in fault.what:
            with tempfile.TemporaryDirectory() as folder:
                line, right = row(fault, Path(folder))
            wrong += not right
            print(line, flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
