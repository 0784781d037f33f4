"""Compare the commands' answers with a record of them: `python -m verification.same`.

Runs analyze, compare, check, advise, watch --once, ls, inspect, ablate, ingest and replay over
every recorded run, simulated odd run, sample and shipped checkpoint of the repository. The record
holds per command its exit code, the findings with their severities, and the figures of its JSON,
rounded to 9 digits. Names and order of figures may change, a number that is gone is a difference.
The record is made of two passes and keeps what both printed, so that times and ages are left out.

`--record` writes `same.json.gz` anew; without it every difference is printed and the exit code
is 1. `--only WORD` runs or records the commands whose name contains WORD.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.analyses import leaves
from support.command import run_command
from support.odd_runs import ODD, RECORDED, ROOT
from support.stub_server import stub_server

from driftscope_lab.trio import trio_path

RECORD = Path(__file__).with_suffix(".json.gz")
SAMPLES = ROOT / "tests" / "unit" / "ingest" / "samples"
GALLERY = ROOT / "reports" / "gallery" / "traces"
CLOCK = "created_s"
"""Key of a figure that is the time of the record itself."""
DIGITS = 9
Answer = dict[str, Any]


def commands(folder: Path) -> Iterator[tuple[str, list[object]]]:
    """Yield a name and the arguments of every command."""
    runs = {name: ROOT / name for name in RECORDED}
    for name, write in ODD.items():
        runs[name] = folder / name
        if not runs[name].exists():
            write(runs[name])
    usual, plain = runs["usual"], GALLERY / "without"
    as_json = ["-q", "-o", folder / "r.html", "--json"]
    no_worse = ["--require", "no_worse(acceptance.mean_length, 5%)"]
    for name, run in runs.items():
        yield f"analyze {name}", ["analyze", run, *as_json]
        yield (f"analyze-baseline {name}", ["analyze", run, "--baseline", plain, *as_json])
        yield f"compare {name}", ["compare", usual, run, "--json"]
        yield (
            f"check {name}",
            ["check", run, "--baseline", usual, "--fail-on", "high", "--json", *no_worse],
        )
        yield f"advise {name}", ["advise", run, "--json"]
        yield f"watch {name}", ["watch", run, "--once", "--json"]
    for pair in ("drifting healthy", "healthy without", "server long-context"):
        first, second = (GALLERY / name for name in pair.split())
        yield f"compare-pair {pair}", ["compare", first, second, "--json"]
        yield f"advise-pair {pair}", ["advise", first, second, "--json"]
    for split in ("context", "label", "region"):
        yield f"analyze-by {split}", ["analyze", GALLERY / "server", "--by", split, *as_json]
    where = ("--where", "label = 'chat'")
    compared = ["compare", GALLERY / "drifting", GALLERY / "server", *where, "--json"]
    yield "compare-where", compared
    yield "analyze-where", ["analyze", GALLERY / "server", *where, *as_json]
    yield "ls", ["ls", GALLERY, "--json"]
    for sample in sorted(SAMPLES.iterdir()):
        yield f"ingest {sample.name}", ["ingest", sample, "--json"]
    trio = trio_path()
    for drafter in ("eagle3", "eagle31"):
        yield f"inspect-files {drafter}", ["inspect", trio / drafter, "--files-only", "--json"]
        yield (
            f"inspect {drafter}",
            ["inspect", trio / drafter, "--target", trio / "target", "--limit", 8, "--json"],
        )
        yield (
            f"ablate {drafter}",
            ["ablate", trio / drafter, "--target", trio / "target", "--limit", 5, "--json"],
        )


def replay(folder: Path) -> tuple[str, list[object], Path]:
    """Return the replay's name, its arguments, and the run that it writes."""
    run = folder / "replay-of-stub"
    return "replay", ["--limit", 6, "--warmup", 0, "--concurrency", 1, "-o", run], run


def answer(arguments: list[object]) -> Answer:
    """Run a command in this process; return its exit code, findings and figures."""
    done = run_command(*arguments, warned="ignore")
    figures: list[tuple[str, float]] = []
    findings: list[str] = []
    for document in _documents(done.stdout):
        figures += _figures(document)
        findings += _findings(document)
    return {"exit": done.returncode, "findings": sorted(findings), "figures": figures}


def _documents(text: str) -> list[Any]:
    with contextlib.suppress(json.JSONDecodeError):
        return [json.loads(text)]
    documents = []
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            documents.append(json.loads(line))
    return documents


def _figures(document: Any) -> list[tuple[str, float]]:
    """Return the path and value of every number."""
    return [
        (path, _rounded(float(value)))
        for path, value in leaves(document, "")
        if isinstance(value, int | float) and not isinstance(value, bool) and CLOCK not in path
    ]


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value


def _findings(value: Any) -> list[str]:
    """Return id and severity of everything that has both; answers and notes have no severity."""
    if isinstance(value, list):
        return [row for item in value for row in _findings(item)]
    if not isinstance(value, dict):
        return []
    own = [f"{value['id']} {value['severity']}"] if "id" in value and value.get("severity") else []
    return own + [row for item in value.values() for row in _findings(item)]


def answers(folder: Path, only: str) -> dict[str, Answer]:
    """Run every command; return the answers by name."""
    found = {}
    for name, arguments in commands(folder):
        if only in name:
            found[name] = answer(arguments)
            print(".", end="", flush=True, file=sys.stderr)
    name, options, run = replay(folder)
    if only in name:
        shutil.rmtree(run, ignore_errors=True)
        with stub_server() as stub:
            found[name] = answer(["replay", stub.url, *options])
        found["analyze replay-of-stub"] = answer(
            ["analyze", run, "-q", "-o", folder / "r.html", "--json"]
        )
    print(file=sys.stderr)
    return found


def stable(first: Answer, second: Answer) -> Answer:
    """Return what two passes have in common."""
    again = Counter(value for _, value in second["figures"])
    kept = []
    for path, value in first["figures"]:
        if again[value] > 0:
            again[value] -= 1
            kept.append((path, value))
    return {**first, "figures": kept}


def differences(name: str, before: Answer, now: Answer) -> list[str]:
    """Return a line for everything that was there before and is not now, or is another."""
    lines = [
        f"{name}: {key}: {before[key]} -> {now[key]}"
        for key in ("exit", "findings")
        if before[key] != now[key]
    ]
    left = Counter(value for _, value in now["figures"])
    distinct = set(left)
    gone = [(path, value) for path, value in before["figures"] if value not in distinct]
    lines += [f"{name}: {path} = {value} is gone" for path, value in gone]
    return lines


def main_command() -> int:
    """Record or compare; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--most", type=int, default=200, help="lines printed")
    options = parser.parse_args()
    os.environ.update(NO_COLOR="1", COLUMNS="200", OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = answers(folder, options.only)
        if options.record:
            again = answers(folder, options.only)
            known = json.loads(gzip.decompress(RECORD.read_bytes())) if options.only else {}
            record = {**known, **{name: stable(found[name], again[name]) for name in found}}
            with gzip.GzipFile(RECORD, "wb", mtime=0) as file:
                file.write(json.dumps(record, sort_keys=True).encode())
            print(f"written: {RECORD}, {len(record)} commands")
            return 0
    record = json.loads(gzip.decompress(RECORD.read_bytes()))
    lines = [
        line
        for name in record
        if name in found
        for line in differences(name, record[name], found[name])
    ]
    lines += [f"{name}: not run" for name in record if options.only in name and name not in found]
    print("\n".join(lines[: options.most]))
    folded = Counter(re.sub(r"\d+", "N", line.split(": ", 1)[1].split(" = ")[0]) for line in lines)
    for kind, count in folded.most_common(40):
        print(f"{count:6} x {kind}")
    print(f"{len(found)} commands, {len(lines)} differences")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main_command())
