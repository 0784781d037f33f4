"""Write a run in the format of another tool."""

from __future__ import annotations

from pathlib import Path

from driftscope.boundary.files import write_file
from driftscope.errors import NoDataError, UsageError
from driftscope.vocabulary import Interchange


def write_as(
    form: Interchange, run: Path, output: Path, where: str | None = None
) -> tuple[Path, ...]:
    """Write the run in this format: to the file `output`, or with PARQUET into this folder.

    `where`: the rounds to keep, a condition of `analyze --where`; UsageError with PARQUET, which
    holds every row. Raises NoDataError for a run that the format cannot describe, the reader's
    errors, and OSError.
    """
    if form is Interchange.PARQUET:
        if where is not None:
            raise UsageError(f"--format {form} writes every row; leave out --where")
        return _tables(run, output)
    from driftscope.analysis.query.row_filters import Filter
    from driftscope.interchange.acceptance_records import records_to_jsonl
    from driftscope.interchange.speculation_profile import profile_to_json
    from driftscope.pipeline import Inputs, measure

    measured = measure(Inputs(sources=[run], labels=[run.name], only=Filter(where=where)))
    if not measured.runs:
        raise NoDataError(
            f"{run}: is a replay, which counts no rounds by position; give the run recorded in the "
            "server"
        )
    if form is Interchange.AIPERF:
        (sums,) = measured.sums.values()
        text = records_to_jsonl(sums)
    else:
        text = profile_to_json(measured.runs[0])
    write_file(output, text.encode())
    return (output,)


def _tables(run: Path, folder: Path) -> tuple[Path, ...]:
    from driftscope.interchange.plain_parquet import files_of
    from driftscope.trace.reader import read_trace

    written = []
    for name, content in files_of(read_trace(run)):
        write_file(folder / name, content, parents=True)
        written.append(folder / name)
    return tuple(written)
