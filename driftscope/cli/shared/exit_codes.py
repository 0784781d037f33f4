"""The exit codes in words, for every command's help."""

from __future__ import annotations

from driftscope.errors import EXIT_ERROR, EXIT_GATE_FAILED, EXIT_NO_DATA, EXIT_OK, EXIT_USAGE

EPILOG = (
    f"Exit codes: {EXIT_OK} fine, {EXIT_ERROR} error, {EXIT_USAGE} usage, "
    f"{EXIT_GATE_FAILED} gate failed, {EXIT_NO_DATA} no data."
)
