"""Files that were cut off or changed are read, or refused with one error."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from driftscope.errors import UsageError
from driftscope.ingest.base import Figures
from driftscope.ingest.catalogue import READERS, ingest

SAMPLES = sorted((Path(__file__).parent / "samples").iterdir())


def _read(content: bytes, name: str | None) -> tuple[Figures, ...]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            return ingest(Path(file.name), name)[1]
        except UsageError:
            return ()


def _possible(figures: Figures) -> bool:
    lengths = (figures.length, figures.length_by_request)
    return all(length is None or length >= 1.0 or figures.accepted is None for length in lengths)


@settings(max_examples=400)
@given(
    st.sampled_from(SAMPLES),
    st.floats(0, 1),
    st.integers(0, 40),
    st.binary(max_size=6),
    st.booleans(),
)
def test_damaged_samples(path: Path, at: float, more: int, put: bytes, cut: bool) -> None:
    content = path.read_bytes()
    place = int(at * len(content))
    damaged = content[:place] if cut else content[:place] + put + content[place + more :]
    assert all(_possible(item) for item in _read(damaged, None))


@settings(max_examples=150)
@given(st.sampled_from(SAMPLES), st.sampled_from(sorted(READERS)))
def test_a_file_under_the_name_of_another_format(path: Path, name: str) -> None:
    _read(path.read_bytes(), name)
