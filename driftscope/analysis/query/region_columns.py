"""SQL for the region of a round: the kind of text at the first token that it drafts."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.query.query_engine import Dialect
from driftscope.vocabulary import Language, Region

LISTS = (
    *("region_starts", "region_codes", "region_languages"),
    *("region_boundaries", "region_copies"),
)
"""Columns of RequestRow from which regions of rounds follow."""
_TOKEN = "(t.position + 2 - r.prompt_tokens)"  # noqa: S105  a token of text, no secret
"""Place of a round's first drafted token in the answer; the request is `r`, the round `t`."""


def region_column(name: str, dialect: Dialect) -> str:
    """Return the SQL of a column of `OF_REGIONS`, for a round `t` joined with its request `r`."""
    return _COLUMNS[name](dialect)


def _region(dialect: Dialect) -> str:
    return _named("r.region_codes", Region.ALL, dialect)


def _language(dialect: Dialect) -> str:
    return _named("r.region_languages", Language.ALL, dialect)


def _named(codes: str, vocabulary: Sequence[str], dialect: Dialect) -> str:
    """Return the SQL of the name that a list with a code for each region has for a round."""
    place = dialect.number_up_to("r.region_starts", _TOKEN)
    names = " ".join(f"WHEN {at} THEN {dialect.text(name)}" for at, name in enumerate(vocabulary))
    return f"CASE {dialect.element(codes, place)} {names} END"


def _boundary(dialect: Dialect) -> str:
    place = dialect.number_up_to("r.region_boundaries", _TOKEN)
    return f"{_TOKEN} - {dialect.element('r.region_boundaries', place)}"


def _copied(dialect: Dialect) -> str:
    place = dialect.number_up_to("r.region_copies", _TOKEN)
    return f"CASE WHEN r.region_copies IS NOT NULL THEN {place} % 2 END"


_COLUMNS = {"region": _region, "language": _language, "boundary": _boundary, "copied": _copied}
