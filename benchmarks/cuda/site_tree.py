"""The folder that goes on the host's PYTHONPATH: wheels unpacked, and what it can do without."""

from __future__ import annotations

import fnmatch
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import fatbin

# Pattern to reason. vLLM's own imports of each are guarded or inside functions; check_imports.py
# and check_load.py look.
LEFT_OUT: Mapping[str, str] = {
    "vllm/vllm_flash_attn/_vllm_fa2_C*.so": "FlashAttention 2: Hopper uses 3",
    "vllm/_flashmla*_C*.so": "latent attention (DeepSeek)",
    "vllm/_qutlass_C*.so": "FP4 on sm_100",
    "vllm/third_party/fmha_sm100/*": "sm_100 attention",
    "vllm/third_party/deep_gemm/*": "FP8 matrix products",
    "vllm/vllm-rs": "the Rust front end, off unless VLLM_USE_RUST_FRONTEND",
    "vllm/_rust_tool_parser*.so": "tool calls parsed in Rust, imported on use",
    "vllm/entrypoints/serve/instrumentator/static/*": "Swagger, for --enable-offline-docs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What was written, in bytes."""

    kept: int
    left_out: dict[str, int]
    blanked: int


def write_site(
    wheels: Iterable[Path], site: Path, *, leave_out: Iterable[str], arch: int | None
) -> Tree:
    """Unpack the wheels into `site`; with `arch`, blank the kernels of other GPUs.

    Raises FileExistsError if two wheels hold the same file.
    """
    kept = blanked = 0
    left_out = dict.fromkeys(leave_out, 0)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                name = installed_name(member.filename)
                if name is None or member.is_dir():
                    continue
                pattern = next((p for p in left_out if fnmatch.fnmatch(name, p)), None)
                if pattern is not None:
                    left_out[pattern] += member.file_size
                    continue
                content = bytearray(archive.read(member))
                if arch is not None and ".so" in Path(name).suffixes:
                    blanked += fatbin.blank(content, arch)
                _write(site / name, content)
                kept += len(content)
    return Tree(kept=kept, left_out=left_out, blanked=blanked)


def installed_name(name: str) -> str | None:
    """Where pip would put a wheel's member below site-packages, None for scripts and the like."""
    top, _, rest = name.partition("/")
    if not top.endswith(".data"):
        return name
    scheme, _, rest = rest.partition("/")
    return rest if scheme in ("purelib", "platlib") else None


def _write(path: Path, content: bytearray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(content)
