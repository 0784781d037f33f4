"""`driftscope serve --engine sglang` refuses what would record nothing, and else becomes SGLang's
server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Driftscope = Callable[..., "subprocess.CompletedProcess[str]"]
SERVE = ("serve", "--engine", "sglang", "some/model")
SPECULATION = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "a/drafter-1")
SERVER = """
import json, os, sys
environ = {k: v for k, v in os.environ.items() if k.startswith("DRIFTSCOPE_")}
print(json.dumps({"argv": sys.argv[1:], "environ": environ}))
sys.exit(7)
"""


@pytest.fixture
def sglang(tmp_path: Path) -> Path:
    """An SGLang whose server says how it was started."""
    package = tmp_path / "packages" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(SERVER)
    return package.parent


def test_it_becomes_the_server(without_engines: Driftscope, sglang: Path, tmp_path: Path) -> None:
    trace = tmp_path / "runs" / "{drafter}"
    done = without_engines(
        *SERVE, *SPECULATION, "--trace", trace, "--every", "4", "--port", "1", before=sglang
    )
    assert done.returncode == 7, "the exit code is the server's"
    call = json.loads(done.stdout)
    assert call["argv"] == ["--model-path", "some/model", *SPECULATION, "--port", "1"]
    environ = call["environ"]
    assert environ["DRIFTSCOPE_TRACE"] == str(tmp_path / "runs" / "drafter-1")
    assert (environ["DRIFTSCOPE_EVERY"], environ["DRIFTSCOPE_STRICT"]) == ("4", "1")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "no --speculative-algorithm"),
        ((*SPECULATION, "--control"), "for vLLM only"),
    ],
)
def test_it_refuses_what_would_record_nothing(
    without_engines: Driftscope, sglang: Path, options: tuple[str, ...], words: str
) -> None:
    done = without_engines(*SERVE, *options, before=sglang)
    assert done.returncode == 2 and not done.stdout
    assert words in done.stderr


def test_without_sglang(without_engines: Driftscope) -> None:
    done = without_engines(*SERVE, *SPECULATION)
    assert done.returncode == 1 and "SGLang is not installed here" in done.stderr
