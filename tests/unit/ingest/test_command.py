"""`driftscope ingest` prints figures side by side, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
from typer.testing import CliRunner

from driftscope.boundary.json_document import INGESTED
from driftscope.cli.app import app
from driftscope.errors import UsageError
from driftscope.ingest.catalogue import READERS
from driftscope.json_schema import schema_of

SAMPLES = Path(__file__).parent / "samples"


def test_two_files_stand_side_by_side() -> None:
    names = ("vllm-bench.json", "sglang-bench.jsonl")
    done = CliRunner().invoke(app, ["ingest", *(str(SAMPLES / name) for name in names)])
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "since the server's start" in text and "no interval: the file has sums only" in text


def test_the_document_follows_its_schema() -> None:
    every = sorted(str(path) for path in SAMPLES.iterdir())
    done = CliRunner().invoke(app, ["ingest", *every, "--json"])
    document = json.loads(done.stdout)
    jsonschema.validate(document, schema_of(INGESTED))
    assert len(document["files"]) == len(every)


def test_the_formats_are_listed() -> None:
    done = CliRunner().invoke(app, ["ingest", "--list"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert all(name in done.output for name in READERS)


def test_no_file_is_a_usage_error() -> None:
    done = CliRunner().invoke(app, ["ingest"])
    assert isinstance(done.exception, UsageError) and "--list" in str(done.exception)
