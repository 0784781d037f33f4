import hashlib
import re
import zipfile
from pathlib import Path

import pytest

from driftscope_lab.training import corpus
from driftscope_lab.training.corpus import CorpusError, SourceFile
from driftscope_lab.training.notice import notice

CODE = "def function():\n    return 1\n" * 30


def wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


@pytest.mark.parametrize(
    ("manifest", "packages"), [(corpus.MANIFEST, 14), (corpus.LARGE_MANIFEST, 20)]
)
def test_every_package_is_pinned_and_hashed(manifest: Path, packages: int) -> None:
    text = manifest.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    entry = re.compile(r"[a-z0-9-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}")
    entries = " ".join(lines).replace("\\ ", " ")
    found = entry.findall(re.sub(r" +", " ", entries))
    assert len(found) == len(corpus.pinned_hashes(manifest)) == packages
    assert re.sub(r" +", " ", entries).strip() == " ".join(found)
    assert "://" not in text


def test_the_digest_of_the_whole_is_pinned() -> None:
    for digest in corpus.CORPUS_SHA256.values():
        assert re.fullmatch("[0-9a-f]{64}", digest)


def test_the_larger_corpus_has_the_smaller_ones_wheels() -> None:
    assert corpus.pinned_hashes(corpus.MANIFEST) < corpus.pinned_hashes(corpus.LARGE_MANIFEST)


def test_a_folder_gives_its_python_files_in_order(tmp_path: Path) -> None:
    for name in ("b.py", "a.py", "tests/c.py", "short.py", "tabs.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(CODE)
    (tmp_path / "short.py").write_text("x = 1\n")
    (tmp_path / "tabs.py").write_text(CODE + "\t\tx = 1\n")
    assert [file.path for file in corpus.load_folder(tmp_path)] == ["a.py", "b.py"]


def test_a_corpus_other_than_the_pinned_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheel(tmp_path, "package", {"package/code.py": CODE})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest = tmp_path / "corpus.txt"
    manifest.write_text(f"package==1.0 \\\n    --hash=sha256:{digest}\n")
    monkeypatch.setitem(corpus.CORPUS_SHA256, manifest, "0" * 64)
    with pytest.raises(CorpusError, match="expected"):
        corpus.load_corpus(tmp_path, manifest)
    files = [SourceFile(path="package/code.py", text=CODE)]
    monkeypatch.setitem(corpus.CORPUS_SHA256, manifest, corpus.corpus_digest(files))
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
    path = wheel(tmp_path, "package", {licence: "Do as you like.", "package/license.py": "x"})
    manifest = tmp_path / "corpus.txt"
    manifest.write_text(f"--hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n")
    text = notice(tmp_path, manifest)
    assert "package 1.0" in text
    assert text.endswith("Do as you like.\n")
