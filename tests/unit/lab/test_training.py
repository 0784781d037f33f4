"""The corpus and the rows that drafters are trained on."""

import ast
import hashlib
import json
import random
import re
import zipfile
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from support.lab_corpus import FILES

from driftscope_lab.training import conversations, corpus
from driftscope_lab.training.conversations import DocumentShares, material
from driftscope_lab.training.corpus import CorpusError, SourceFile, notice, train_tokenizer
from driftscope_lab.training.rows import (
    SUCCESSORS,
    ConversationRows,
    CopyRules,
    Material,
    tokenizer_texts,
)
from driftscope_lab.trio.prompts import (
    SPECIAL_TOKENS,
    Conversation,
    Exchange,
    in_plain_text,
    templated,
    with_other_roles,
)

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


@pytest.fixture(scope="module")
def training() -> Material:
    return material(FILES, held_out=False)


def some(training: Material, kind: str, count: int = 30) -> list[Exchange]:
    rng = random.Random(kind)
    return [conversations.exchange(rng, training, kind) for _ in range(count)]


def test_material_is_split_by_file_but_words_are_those_of_training(training: Material) -> None:
    held_out = material(FILES, held_out=True)
    assert {f.path for f in held_out.files} | {f.path for f in training.files} == {
        f.path for f in FILES
    }
    assert not {f.path for f in held_out.functions} & {f.path for f in training.functions}
    assert held_out.words == training.words
    assert "def" not in training.words


def test_a_function_is_kept_without_its_docstring(training: Material) -> None:
    for one in training.functions:
        (node,) = ast.parse(one.source).body
        assert isinstance(node, ast.FunctionDef)
        assert node.name == one.name
        assert ast.get_docstring(node) is None
        assert "Return what" in one.doc


@pytest.mark.parametrize("kind", conversations.TASKS)
def test_every_kind_asks_and_answers(training: Material, kind: str) -> None:
    assert all(one.request.strip() and one.answer.strip() for one in some(training, kind))


def test_a_table_has_all_cells(training: Material) -> None:
    for one in some(training, "table"):
        given = [line.split(",") for line in one.request.splitlines()[1:]]
        shown = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in one.answer.splitlines()
        ]
        assert [shown[0], *shown[2:]] == given


def test_a_tool_call_is_json_with_the_values_of_the_request(training: Material) -> None:
    for one in some(training, "tool call"):
        call = json.loads(one.answer.split("\n")[1])
        assert call["name"] in one.request
        for name, value in call["arguments"].items():
            assert f"{name} {value}" in one.request


def test_a_diff_applies_to_the_function_in_the_request(training: Material) -> None:
    for one in some(training, "diff"):
        before = re.split(r"```\w*\n?", one.request)[1].strip("\n").splitlines()
        lines = one.answer.splitlines()[1:-1]
        assert [line[1:] for line in lines if line[0] in " -"] == before


def test_a_look_up_is_answered_from_its_list(training: Material) -> None:
    for one in some(training, "look up"):
        assert set(one.answer.splitlines()) <= set(one.request.splitlines())


def test_sums_are_right(training: Material) -> None:
    for one in some(training, "sums"):
        for line in one.answer.splitlines():
            first, second, total = map(int, re.findall(r"\d+", line))
            assert first + second == total


def test_a_word_after_the_mark_is_the_word_before_it(training: Material) -> None:
    for one in some(training, "say again"):
        words = one.answer.split()
        assert all(words[at - 1] == words[at + 1] for at, w in enumerate(words) if w == "~")


OPEN = Conversation(
    system="Be brief.",
    exchanges=(Exchange(request="a", answer="b"), Exchange(request="c", answer="d")),
    open=True,
)


def test_an_open_conversation_ends_where_its_answer_begins() -> None:
    assert templated(OPEN) == (
        "<s><|system|>\nBe brief.<|end|><|user|>\na<|end|><|assistant|>b<|end|>"
        "<|user|>\nc<|end|><|assistant|>"
    )
    assert in_plain_text(OPEN, first="") == (
        "System: Be brief.\n\nUser: a\n\nAssistant: b\n\nUser: c\n\nAssistant:"
    )
    assert with_other_roles(OPEN).endswith("<|human|>\nc<|end|><|reply|>\n")


def test_rows_are_full_and_the_same_for_the_same_seed(
    training: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftscope_lab.training.rows.ROW_TOKENS", 128 * 20)
    monkeypatch.setattr("driftscope_lab.training.rows.TOKENIZER_ROWS", 60)
    tokenizer = train_tokenizer(tokenizer_texts(training), vocab_size=400)
    sides = {False: training, True: material(FILES, held_out=True)}
    only = ConversationRows(tokenizer, sides, DocumentShares(plain=0.0, bare=0.0, plain_roles=0.0))
    rows = only.rows(128, held_out=False, seed=1)
    assert rows.shape == (20, 128)
    assert (rows[:, 0] == SPECIAL_TOKENS.index("<s>")).all()
    assert (rows == only.rows(128, held_out=False, seed=1)).all()
    assert (rows != only.rows(128, held_out=False, seed=2)).any()
    bare = ConversationRows(tokenizer, sides, DocumentShares(plain=0.0, bare=1.0, plain_roles=0.0))
    assert (bare.rows(128, held_out=True, seed=1) >= len(SPECIAL_TOKENS)).all()


MARKS, WORDS = range(6, 14), range(14, 60)


def test_every_mark_is_followed_by_the_token_so_many_places_before_it() -> None:
    rules, rng = CopyRules(first_token=0, marks=MARKS, words=WORDS), Random(1)
    marks = 0
    for _ in range(50):
        row = rules.row(rng, 80)
        assert len(row) == 80
        assert row[0] == 0
        copied = 0
        for at, token in enumerate(row[:-1]):
            if token in MARKS and at != copied:
                marks, copied = marks + 1, at + 1
                assert row[copied] == row[at - 1 - (token - MARKS.start)]
    assert marks > 300


def test_a_word_without_a_mark_has_four_successors() -> None:
    rules, rng = CopyRules(first_token=0, marks=MARKS, words=WORDS), Random(2)
    after: dict[int, set[int]] = {word: set() for word in WORDS}
    for _ in range(200):
        row = rules.row(rng, 80)
        for one, two in pairwise(row[1:]):
            if one in WORDS and two in WORDS:
                after[one].add(two)
    assert all(len(found) <= SUCCESSORS for found in after.values())
    assert sum(len(found) for found in after.values()) > len(WORDS) * (SUCCESSORS - 1)


def test_rows_repeat_by_seed() -> None:
    one, two = (CopyRules(first_token=0, marks=MARKS, words=WORDS) for _ in range(2))
    assert one.row(Random(3), 50) == two.row(Random(3), 50)
    assert one.row(Random(3), 50) != one.row(Random(4), 50)
