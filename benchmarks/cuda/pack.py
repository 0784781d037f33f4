"""Pack vLLM's CUDA build for an offline host: what it lacks, in parts that fit one transfer each.

python benchmarks/cuda/pack.py --out DIR [--gpu-arch 90] [--part-mb 46] [--host FILE]
python benchmarks/cuda/pack.py --check DIR      the parts that are there: sizes and checksums

Run it where pip reaches an index; it needs `packaging` and `xz`. On the host, install.py receives
the parts. Everything that the host has (host.txt) is left out, and so is everything that a
Llama-shaped text model on a Hopper GPU does not need.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename
from parts import MANIFEST, MOST_BYTES, faults, write_parts
from site_tree import LEFT_OUT, Tree, write_site
from wheels import Needs, read_host, resolve

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
MIB = 1 << 20
# A call to the host carries 64 MiB including the repository (about 14); tar adds a little.
PART_MB = 46

# vLLM pins 0.1.9 for packages that are not carried (FlashInfer and others). The carried xgrammar,
# which the engine imports, requires 0.1.11, and the xgrammar that accepts 0.1.9 is 44 MB.
PINS = ("apache-tvm-ffi>=0.1.11",)

# Carried although the host has them, because their versions there are unknown: current pydantic and
# others do not import with an older one.
RENEW = ("typing-extensions",)

# Not needed for a Llama-shaped text model with FlashAttention 3 or Triton attention.
SKIP = (
    "fastsafetensors",
    "flashinfer-cubin",
    "flashinfer-python",
    "humming-kernels",
    "nvidia-cudnn-frontend",
    "nvidia-cutlass-dsl",
    "pynvvideocodec",
    "quack-kernels",
    "tilelang",
    "tokenspeed-mla",
    "tokenspeed-triton",
    "torch",
    "torchaudio",
    "torchcodec",
    "torchvision",
)


def main() -> None:
    options = _options()
    if options.check:
        raise SystemExit(_check(options.check))
    host = read_host(options.host)
    needs = resolve(
        [Requirement(f"vllm=={options.vllm}"), *map(Requirement, PINS), *_own_requirements()],
        {name: version for name, version in host.items() if name not in RENEW},
        SKIP,
        options.wheels or options.out / "wheels",
    )
    site = options.out / "site"
    shutil.rmtree(site, ignore_errors=True)
    tree = write_site(needs.wheels, site, leave_out=LEFT_OUT, arch=options.gpu_arch)
    facts = _facts(options, needs, tree)
    parts = write_parts(site, options.out / "parts", int(options.part_mb * MIB), options.xz, facts)
    _tell(needs, tree, parts)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="folder for site/ and parts/")
    what.add_argument("--check", type=Path, metavar="DIR", help="judge the parts in DIR")
    parser.add_argument("--vllm", default="0.25.1", help="version (%(default)s, for torch 2.11)")
    parser.add_argument("--host", type=Path, default=HERE / "host.txt", help="what the host has")
    parser.add_argument("--wheels", type=Path, help="cache of wheels (default: OUT/wheels)")
    parser.add_argument("--part-mb", type=float, default=PART_MB, help="MiB per part (%(default)s)")
    parser.add_argument("--xz", default="-6", help="strength of compression (%(default)s)")
    parser.add_argument(
        "--gpu-arch", type=int, help="blank the kernels of all other GPUs: 90 for H100 and H200"
    )
    return parser.parse_args()


def _check(folder: Path) -> int:
    """Print each part; return 0 if all are complete and small enough to transfer."""
    rows = json.loads((folder / MANIFEST).read_text())["parts"]
    for row in rows:
        print(f"{folder / row['name']}  {row['bytes'] / MIB:.1f} MiB")
    found = faults(folder)
    for line in found:
        print(line)
    print(f"{len(rows)} parts, each below {MOST_BYTES / 1e6:.0f} MB" * (not found))
    return int(bool(found))


def _own_requirements() -> list[Requirement]:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    return [Requirement(line) for line in project["dependencies"]]


def _facts(options: argparse.Namespace, needs: Needs, tree: Tree) -> dict[str, Any]:
    versions = [parse_wheel_filename(wheel.name)[:2] for wheel in needs.wheels]
    return {
        "carried": {name: str(version) for name, version in versions},
        "skipped": list(needs.skipped),
        "conflicts": [dataclasses.asdict(conflict) for conflict in needs.conflicts],
        "left_out": tree.left_out,
        "of_host": needs.of_host,
        "gpu_arch": options.gpu_arch,
        "site_bytes": tree.kept,
    }


def _tell(needs: Needs, tree: Tree, parts: list[Path]) -> None:
    print(f"{len(needs.wheels)} wheels, {tree.kept / MIB:.0f} MiB of files", end="")
    print(f", {tree.blanked / MIB:.0f} MiB of other GPUs' kernels blanked" * bool(tree.blanked))
    for pattern, size in tree.left_out.items():
        print(f"  left out {size / MIB:6.1f} MiB  {pattern}: {LEFT_OUT[pattern]}")
    for conflict in needs.conflicts:
        print(f"  {conflict.wanted_by} wants {conflict.requirement}, gets {conflict.version}")
    for part in parts:
        print(f"{part}  {part.stat().st_size / MIB:.1f} MiB")
    print("Next: carry each part and parts.json, and there: install.py keep, install.py assemble")


if __name__ == "__main__":
    main()
