import hashlib
import re
import zipfile
from pathlib import Path

import pytest

from driftscope_lab.training import corpus
from driftscope_lab.training.corpus import CorpusError, SourceFile, notice

CODE = "def function():\n    return 1\n" * 30


def wheel(folder: Path, files: dict[str, str]) -> Path:
    """Write a wheel with these files, and return the manifest that pins it."""
    path, manifest = folder / "package-1.0-py3-none-any.whl", folder / "corpus.txt"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest.write_text(f"package==1.0 \\\n    --hash=sha256:{digest}\n")
    return manifest


def test_every_package_is_pinned_and_hashed() -> None:
    text = corpus.MANIFEST.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    entry = re.compile(r"[a-z0-9-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}")
    entries = " ".join(lines).replace("\\ ", " ")
    found = entry.findall(re.sub(r" +", " ", entries))
    assert len(found) == len(corpus.pinned_hashes()) == 14
    assert re.sub(r" +", " ", entries).strip() == " ".join(found)
    assert "://" not in text


def test_the_digest_of_the_whole_is_pinned() -> None:
    assert re.fullmatch("[0-9a-f]{64}", corpus.CORPUS_SHA256)


def test_tests_short_files_and_files_with_tabs_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("b.py", "a.py", "tests/c.py", "notes.txt")
    files = {f"package/{name}": CODE for name in names}
    files |= {"package/short.py": "x = 1\n", "package/tabs.py": CODE + "\t\tx = 1\n"}
    manifest = wheel(tmp_path, files)
    kept = [SourceFile(path=f"package/{name}", text=CODE) for name in ("a.py", "b.py")]
    monkeypatch.setattr(corpus, "CORPUS_SHA256", corpus.corpus_digest(kept))
    assert corpus.load_corpus(tmp_path, manifest) == kept


def test_a_corpus_other_than_the_pinned_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = wheel(tmp_path, {"package/code.py": CODE})
    monkeypatch.setattr(corpus, "CORPUS_SHA256", "0" * 64)
    with pytest.raises(CorpusError, match="expected"):
        corpus.load_corpus(tmp_path, manifest)
    files = [SourceFile(path="package/code.py", text=CODE)]
    monkeypatch.setattr(corpus, "CORPUS_SHA256", corpus.corpus_digest(files))
    assert corpus.load_corpus(tmp_path, manifest) == files


def test_a_failed_fetch_says_so(tmp_path: Path) -> None:
    manifest = tmp_path / "corpus.txt"
    manifest.write_text("this is no requirement\n --hash=sha256:00\n")
    with pytest.raises(CorpusError, match="pip could not fetch"):
        corpus.fetch_wheels(tmp_path / "cache", manifest)


def test_about_one_file_in_twenty_is_held_out() -> None:
    held = [SourceFile(path=f"package/{i}.py", text="").held_out for i in range(2000)]
    assert 60 < sum(held) < 140


def test_the_notice_holds_each_licence(tmp_path: Path) -> None:
    licence = "package-1.0.dist-info/licenses/LICENSE.txt"
    manifest = wheel(tmp_path, {licence: "Do as you like.", "package/license.py": "x"})
    text = notice(tmp_path, manifest)
    assert "package 1.0" in text
    assert text.endswith("Do as you like.\n")
