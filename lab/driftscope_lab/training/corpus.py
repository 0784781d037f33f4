"""The training text: Python source from pinned, hashed, pure-Python wheels.

The text is identical on every machine: `corpus.txt` (and `corpus-large.txt`) pins version and hash
of each wheel, and `CORPUS_SHA256` the text taken from them. An interpreter's own library would
differ between builds.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MANIFEST = Path(__file__).with_name("corpus.txt")
CORPUS_SHA256 = "c0defb1c962fdc5c0933463b888100653ecde0583d07c3ecab4ba03b0537e3cd"

HELD_OUT_SHARE = 20
"""One file in this many is held out, chosen by the md5 of its path."""
EXCLUDED = ("/tests/", "/_tests/", "/testing/", "_emoji_codes", "_spinners", "_unicode_data")
"""Test suites, and tables that contain no code."""
LENGTH_CHARS = (600, 150_000)
"""Shortest and longest file, in characters: shorter files are re-exports, and longer files would
dominate the corpus."""


class CorpusError(Exception):
    """The corpus cannot be fetched, or is not the corpus that the shipped trio was trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of the corpus; `path` is its path inside the wheel."""

    path: str
    text: str

    @property
    def held_out(self) -> bool:
        """Whether the file is held out from training."""
        digest = hashlib.md5(self.path.encode(), usedforsecurity=False).hexdigest()
        return int(digest, 16) % HELD_OUT_SHARE == 0


def load_corpus(cache: Path, manifest: Path = MANIFEST) -> list[SourceFile]:
    """Fetch the wheels missing from `cache`, read all, check the text. Raises CorpusError."""
    fetch_wheels(cache, manifest)
    wheels = pinned_wheels(cache, manifest)
    files = _selected(file for wheel in wheels for file in _read_wheel(wheel))
    digest = corpus_digest(files)
    if digest != CORPUS_SHA256:
        raise CorpusError(
            f"corpus in {cache}: sha256 {digest}, expected {CORPUS_SHA256}; "
            "empty the folder and fetch again"
        )
    return files


def fetch_wheels(cache: Path, manifest: Path = MANIFEST) -> None:
    """Download the pinned wheels into `cache`, unless all are there. Raises CorpusError."""
    if len(pinned_wheels(cache, manifest)) == len(pinned_hashes(manifest)):
        return
    cache.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "-r", str(manifest), "-d", str(cache)]
    done = subprocess.run(  # noqa: S603  this Python's pip, pinned hashes
        command, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CorpusError(f"pip could not fetch {manifest.name}: {done.stderr.strip()[-2000:]}")


def pinned_hashes(manifest: Path = MANIFEST) -> set[str]:
    """Return the sha256 of each wheel that the manifest names."""
    words = manifest.read_text(encoding="utf-8").split()
    return {word.removeprefix("--hash=sha256:") for word in words if word.startswith("--hash")}


def pinned_wheels(cache: Path, manifest: Path = MANIFEST) -> list[Path]:
    """Return the wheels of the manifest that are in `cache`, sorted by name."""
    wanted = pinned_hashes(manifest)
    return [
        wheel
        for wheel in sorted(cache.glob("*.whl"))
        if hashlib.sha256(wheel.read_bytes()).hexdigest() in wanted
    ]


def corpus_digest(files: Iterable[SourceFile]) -> str:
    """Return the hex sha256 over path, NUL, text, NUL of each file in order."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path}\0{file.text}\0".encode())
    return digest.hexdigest()


def _read_wheel(wheel: Path) -> Iterator[SourceFile]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                yield SourceFile(path=name, text=archive.read(name).decode())


def _selected(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Drop excluded paths, files outside LENGTH_CHARS and tab-indented files; sort by path."""
    shortest, longest = LENGTH_CHARS
    kept = (
        file
        for file in files
        if shortest <= len(file.text) <= longest
        and "\t\t" not in file.text
        and not any(part in f"/{file.path}" for part in EXCLUDED)
    )
    return sorted(kept, key=lambda file: file.path)
