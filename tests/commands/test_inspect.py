"""`driftscope inspect` prints what is wrong with a checkpoint, and its exit code says how bad."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.checkpoints import TARGET, changed
from support.command import assert_fails, run_command
from support.inspections import inspection_document
from support.runs import Spec, write_run

from driftscope.boundary.json_document import INSPECTION
from driftscope.errors import (
    EXIT_ERROR,
    EXIT_GATE_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NO_DATA,
    EXIT_OK,
    EXIT_USAGE,
)
from driftscope.inspect.inspection import Soundness
from driftscope.json_schema import schema_of
from driftscope_lab.trio import trio_path


def _inspect(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_command("inspect", *arguments)


def test_a_shipped_drafter_passes_even_strictly() -> None:
    done = _inspect(trio_path() / "eagle31", "--target", TARGET, "--files-only", "--strict")
    assert done.returncode == EXIT_OK, done.stdout
    assert "0 errors, 0 warnings" in " ".join(done.stdout.split())
    assert "No mistake in the files." in done.stdout
    assert not done.stderr


def test_an_error_exits_with_3_and_names_the_line_to_change(tmp_path: Path) -> None:
    """Also in its JSON document and its page."""
    path = changed(tmp_path / "a", config=lambda fields: fields.update(fc_norm=False))
    page, asked = tmp_path / "report.html", (path, "--target", TARGET, "--files-only")
    done = _inspect(*asked)
    assert done.returncode == EXIT_GATE_FAILED
    assert 'change: "fc_norm": true' in done.stdout
    assert "No mistake" not in done.stdout
    done = _inspect(*asked, "--json", "-o", page)
    document = json.loads(done.stdout)
    jsonschema.validate(document, schema_of(INSPECTION))
    assert document["exit_code"] == done.returncode == EXIT_GATE_FAILED
    assert document["results"][0]["id"] == "fc_norm_unused"
    assert done.stderr == f"written: {page}\n"
    assert document["results"][0]["title"] in page.read_text(encoding="utf-8")


def test_a_warning_exits_with_3_only_strictly(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=lambda fields: fields.update(rope_theta=5e5))
    arguments = path, "--target", TARGET, "--files-only"
    assert _inspect(*arguments).returncode == EXIT_OK
    assert _inspect(*arguments, "--strict").returncode == EXIT_GATE_FAILED


def test_a_pickle_with_code_is_one_line_that_names_what_it_asks_for(tmp_path: Path) -> None:
    path, touched = changed(tmp_path / "a"), tmp_path / "touched"
    (path / "model.safetensors").unlink()
    # Protocol 0: call os.system with one text.
    code = f"cposix\nsystem\n(S'touch {touched}'\ntR."
    (path / "pytorch_model.bin").write_bytes(code.encode())
    assert_fails(_inspect(path), EXIT_ERROR, "--allow-pickle")
    assert_fails(_inspect(path, "--allow-pickle"), EXIT_ERROR, "posix.system")
    assert not touched.exists()


def test_a_drafter_that_cannot_be_run_still_has_its_files_checked(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", weights=lambda state: state.pop("midlayer.mlp.up_proj.weight"))
    done = _inspect(path, "--target", TARGET, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == EXIT_GATE_FAILED
    assert found["results"][0]["id"] == "missing_tensor"
    (note,) = [result for result in found["results"] if result["id"] == "not_run"]
    assert "up_proj" in note["found"]
    assert found["trial"] is None


def test_models_that_were_to_be_run_and_could_not_be_are_no_pass(tmp_path: Path) -> None:
    target = changed(tmp_path / "target", "target")
    for file in target.glob("token*"):
        file.unlink()
    arguments = trio_path() / "eagle31", "--target", target, "--prompts", "trio", "--limit", 5
    done, strict = _inspect(*arguments), _inspect(*arguments, "--strict")
    assert (done.returncode, strict.returncode) == (EXIT_NO_DATA, EXIT_GATE_FAILED)
    words = " ".join(done.stdout.split())
    assert "cannot be told" in words and "the drafter was not run" in words


@pytest.mark.parametrize("option", [("--write-config", "config.json"), ("--expected-length", 4)])
def test_what_needs_a_run_is_refused_without_one(option: tuple[object, ...]) -> None:
    assert_fails(_inspect(trio_path() / "eagle31", *option), EXIT_USAGE, "--target")


@pytest.mark.slow
def test_only_a_length_to_compare_with_makes_a_drafter_sound() -> None:
    """`tests/engines/test_inspected.py` has inspections without one."""
    arguments = trio_path() / "eagle31", "--target", TARGET, "--prompts", "trio", "--limit", 8
    # The interval of 8 prompts is about a sixth of the length wide.
    for length, code, answer in ((3, EXIT_OK, Soundness.SOUND), (8, 3, Soundness.UNEXPLAINED)):
        done = _inspect(*arguments, "--expected-length", length, "--json")
        assert (done.returncode, json.loads(done.stdout)["answer"]) == (code, answer)


def test_a_run_that_accepts_less_than_the_inspection_is_named(tmp_path: Path) -> None:
    """`tests/engines/test_inspected.py` compares the inspection of a drafter with its server."""
    document, run = inspection_document(tmp_path, (0.9, 0.85, 0.8, 0.8, 0.8)), tmp_path / "live"
    write_run(run, Spec(k=5, conditional=(0.5, 0.4, 0.3, 0.3, 0.3)))
    done = run_command("compare", document, run)
    assert done.returncode == EXIT_OK, done.stderr
    assert "live accepts less than the inspection promises" in " ".join(done.stdout.split())
    assert "accepted to depth 5" in done.stdout


@pytest.mark.slow
def test_a_repair_is_named_and_written_with_the_document_that_the_schema_describes(
    tmp_path: Path,
) -> None:
    path = changed(tmp_path / "a", config=lambda fields: fields.update(norm_output=False))
    written = tmp_path / "fixed.json"
    few = ("--prompts", "trio", "--limit", 8)
    done = _inspect(path, "--target", TARGET, *few, "--write-config", written, "--json")
    document = json.loads(done.stdout)
    jsonschema.validate(document, schema_of(INSPECTION))
    assert document["results"][0]["id"] == "repaired_by.norm_output"
    assert document["results"][0]["change"] == '"norm_output": true'
    assert done.returncode == EXIT_GATE_FAILED
    shipped = json.loads((trio_path() / "eagle31" / "config.json").read_text())
    assert json.loads(written.read_text()) == shipped


def _interrupted(after: str, drafter: Path, page: Path) -> dict[str, Any]:
    """Press Ctrl-C once a line on stderr holds `after`; return the document."""
    command = [
        *(sys.executable, "-m", "driftscope", "inspect", str(drafter), "--target", str(TARGET)),
        *("--prompts", "trio", "--limit", "8", "--json", "-o", str(page)),
    ]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs ignore it, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if after in line:
                process.send_signal(signal.SIGINT)
                break
        printed = process.stdout.read()
        said = "".join(lines) + process.stderr.read()
    assert process.returncode == EXIT_INTERRUPTED, said
    assert "Traceback" not in said
    document: dict[str, Any] = json.loads(printed)
    jsonschema.validate(document, schema_of(INSPECTION))
    assert document["stopped"] and document["exit_code"] == EXIT_INTERRUPTED
    assert f"written: {page}\n" in said
    return document


@pytest.mark.process
@pytest.mark.slow
def test_ctrl_c_leaves_what_was_measured_in_every_output(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    document = _interrupted("repairs follow", trio_path() / "eagle31", page)
    trial = document["trial"]
    assert trial["prompts"] == 8
    assert trial["acceptance"]["mean_length"] > 3
    left_out = [
        skipped["id"] for skipped in trial["not_applicable"] if "Ctrl-C" in skipped["reason"]
    ]
    assert "first_token_off" in left_out
    assert len(left_out) + len(trial["tried"]) == 34
    assert "stopped by Ctrl-C: another one may help more" in page.read_text(encoding="utf-8")


@pytest.mark.process
@pytest.mark.slow
def test_ctrl_c_before_the_drafter_is_measured_leaves_the_checks_of_files(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=lambda fields: fields.update(fc_norm=False))
    document = _interrupted("loading the target", path, tmp_path / "page.html")
    assert document["trial"] is None
    notes = {result["id"]: result["found"] for result in document["results"]}
    assert notes["not_run"] == "stopped by Ctrl-C before the drafter was measured"
    assert "fc_norm_unused" in notes
