"""Remove runs among folders that look like runs: no file of anybody else is touched."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from random import Random

from driftscope.errors import EXIT_ERROR, EXIT_OK
from verification.faults.command import outcome_of

OLD_S = 1_700_000_000
_FOREIGN = (
    ("manifest.json", '{"name": "my app", "icons": []}'),
    ("manifest.json", '{"schema_version": "3.0", "modules": []}'),
    ("status-page.json", '{"closed": true}'),
    ("status-worker0-1.json", "[]"),
    ("fault-report.json", '{"my": "data"}'),
    ("request-log-2024.parquet", "PAR1"),
    ("draft-thesis-0001.parquet", "PAR1"),
    ("notes.txt", "precious"),
    (".hidden", "precious"),
)
_COMMANDS = (
    *(("rm", "{each}", "-y"), ("rm", "{each}", "-y", "--unclosed")),
    *(("prune", "{all}", "--older-than", "1s", "--keep", "0", "-y"),),
    *(("prune", "{all}", "--max-total", "1", "--keep", "0", "--dry-run", "--json"),),
)


def remove_runs(random: Random, sound: Path, folder: Path) -> None:
    """`rm` and `prune` leave whatever is not a run, or has a file that no recorder wrote."""
    runs, foreign = folder / "runs", dict[Path, str]()
    for number in range(4):
        place = runs / f"r{number}"
        is_run = random.random() < 0.6
        shutil.copytree(sound, place) if is_run else place.mkdir(parents=True)
        for _ in range(random.choice((0, 1, 2)) if is_run else random.choice((1, 2, 3))):
            name, content = random.choice(_FOREIGN)
            if is_run and name in ("manifest.json", "status-worker0-1.json"):
                continue
            (place / name).write_text(content)
            foreign[place / name] = content
        for path in (*place.iterdir(), place):
            os.utime(path, (OLD_S, OLD_S))
    command = random.choice(_COMMANDS)
    before = sorted(runs.rglob("*"))
    for place in [runs / f"r{n}" for n in range(4)] if "{each}" in command else [runs]:
        words = [word.format(each=place, all=place) for word in command]
        done = outcome_of(words)
        assert done.code in (EXIT_OK, EXIT_ERROR)
        if "--json" in command and done.code == EXIT_OK:
            json.loads(done.out)
    gone = [path for path in foreign if not path.exists()]
    assert not gone, f"{gone[0].name} of somebody else was removed by {command[0]}"
    assert "--dry-run" not in command or sorted(runs.rglob("*")) == before
