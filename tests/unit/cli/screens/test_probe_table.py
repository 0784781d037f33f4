"""The table of `probe status` prints texts of any origin as visible characters."""

from __future__ import annotations

from typing import Any

import pytest
from support.hostile.texts import TEXTS

from driftscope.cli.screens.probe_table import show


def _process(text: str) -> dict[str, Any]:
    return {
        "source": text,
        "closed": False,
        "answered": False,
        "rows": {},
        "dropped": {},
        "errors": {text: 1},
        "first_error": text,
        "control": {"labels": [text]},
    }


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_steers_the_terminal(
    capsys: pytest.CaptureFixture[str], text: str, as_json: bool
) -> None:
    show("run", [_process(text)], as_json=as_json)
    out, err = capsys.readouterr()
    for line in [*out.splitlines(), *err.splitlines()]:
        assert line.isprintable(), line
    assert err.count("\n") == 2


def test_a_password_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show("http://me:s3cret@host:8000", [], as_json=True)
    assert "s3cret" not in capsys.readouterr().out
