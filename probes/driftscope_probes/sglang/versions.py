"""The versions of SGLang that this driftscope was tested with.

SGLang's speculation moves between releases: the seams of 0.5.9, 0.5.14 and 0.5.23 all differ. So
the probe refuses a version that it does not know, where it only warns of an unknown vLLM.
"""

from __future__ import annotations

from driftscope.errors import ProbeError

TESTED = ("0.5.23",)


def check_version(version: str) -> None:
    """Raise ProbeError for a version of SGLang that was not tested."""
    if version.partition("+")[0] not in TESTED:
        raise ProbeError(
            f"SGLang {version} is not supported by this driftscope, which was tested with "
            f"{', '.join(TESTED)}; `driftscope doctor --engine sglang` shows which seam differs"
        )
