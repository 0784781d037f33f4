"""Messages of errors."""

from __future__ import annotations

from driftscope.errors import MAX_MESSAGE, UsageError


def test_a_message_that_quotes_a_long_input_keeps_its_begin_and_end() -> None:
    message = str(UsageError(f"--where: {'x' * 100_000} is no column; see docs/conditions.md"))
    assert message.startswith("--where: xxx")
    assert message.endswith("is no column; see docs/conditions.md")
    assert len(message) < MAX_MESSAGE + 50


def test_a_short_message_is_kept_as_it_is() -> None:
    assert str(UsageError("give two files")) == "give two files"
