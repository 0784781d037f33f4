"""`driftscope ablate` in a process of its own: Ctrl-C, then the same command again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.checkpoints import TARGET

from driftscope_lab.trio import trio_path

pytestmark = pytest.mark.process

LONGEST_S = 300.0


def _command(output: Path) -> list[str]:
    named = (
        "--interventions",
        "hide-sink,hide-chain,pin-size,served-dtype",
        "-o",
        str(output),
        "--json",
    )
    drafter = str(trio_path() / "eagle3")
    words = ("ablate", drafter, "--target", str(TARGET), "--prompts", "trio", "--k", "4")
    return [sys.executable, "-m", "driftscope", *words, *named, "-o", str(output)]


def test_ctrl_c_keeps_what_is_measured_and_the_same_command_goes_on(tmp_path: Path) -> None:
    output = tmp_path / "why.html"
    work = tmp_path / "why.html.work"
    running = subprocess.Popen(_command(output), stderr=subprocess.PIPE, text=True)
    until_s = time.monotonic() + LONGEST_S
    while not work.exists() and running.poll() is None and time.monotonic() < until_s:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=LONGEST_S)
    assert running.returncode == 130, said
    assert f"{work} keeps what is measured" in said and "Traceback" not in said
    kept = {each["key"] for each in json.loads(work.read_text())["measured"]}
    assert 0 < len(kept) < 64

    done = subprocess.run(_command(output), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not work.exists()
    document = json.loads(done.stdout)
    assert document["prompts"] == 64 and document["positions"] == 1172
    assert "What each intervention changes" in output.read_text()
