"""An inspection of the prompts that engines of tests are asked, by the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.engine_process.job import PROMPTS, K
from typer.testing import CliRunner

from driftscope.cli.app import app
from driftscope_lab.trio import CONDITIONS, load_prompts


def inspected(drafter: Path, target: Path, folder: Path) -> dict[str, Any]:
    """Return the document of `driftscope inspect --json`; the prompts are written to `folder`."""
    path = folder / "prompts.jsonl"
    texts = [p.text(CONDITIONS[at % 2]) for at, p in enumerate(load_prompts()[:PROMPTS])]
    rows = [json.dumps({"id": at, "body": {"prompt": text}}) for at, text in enumerate(texts)]
    path.write_text("\n".join(rows))
    options = ["--target", target, "--prompts", path, "--k", K, "--json"]
    done = CliRunner().invoke(app, ["inspect", str(drafter), *(str(each) for each in options)])
    document: dict[str, Any] = json.loads(done.stdout)
    return document
