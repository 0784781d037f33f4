"""Imports the packed vLLM on a machine without a GPU, with every library but the driver's real.

PYTHONPATH=SITE python3.12 benchmarks/cuda/check_load.py SITE [--host FILE]

Run it under the host's Python version, with the host's torch, triton and transformers installed. A
stand-in for libcuda.so.1 (compiled here, each function returns an error) lets the kernels' shared
objects load; vLLM is told that its platform is CUDA on a Hopper GPU. Nothing is computed. Also
names what was imported from distributions that the host's list lacks.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.metadata
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

MODULES = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm.cumem_allocator",
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.spec_decode.eagle",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.attention.backends.triton_attn",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.llama_eagle3",
    "vllm.model_executor.warmup.kernel_warmup",
    "vllm.model_executor.model_loader.dummy_loader",
    "vllm.compilation.backends",
    "vllm.compilation.passes.pass_manager",
    "vllm.v1.sample.rejection_sampler",
    "vllm.v1.structured_output.backend_xgrammar",
    "vllm.v1.worker.gpu.spec_decode.eagle.speculator",
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.openai.api_server",
)
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--host", type=Path, default=Path(__file__).with_name("host.txt"))
    options = parser.parse_args()
    stand_in_for_the_driver(options.site)
    pretend_hopper()
    failed = [name for name in MODULES if not _imports(name)]
    strangers = from_elsewhere(options.site, options.host)
    for name, modules in sorted(strangers.items()):
        print(f"neither packed nor on the host's list: {name} ({', '.join(sorted(modules))})")
    sys.exit(bool(failed or strangers))


def stand_in_for_the_driver(site: Path) -> None:
    """Load a libcuda.so.1 that has the functions which the packed shared objects name."""
    listing = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", *site.glob("vllm/**/*.so")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    words = {line.split()[-1] for line in listing.splitlines() if " U " in line}
    names = sorted(word for word in words if word[:2] == "cu" and word[2:3].isupper())
    source = "\n".join(f"int {name}(void) {{ return {NO_DEVICE}; }}" for name in names)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libcuda.so.1"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-xc", "-", "-o", library],
            check=True,
            input=source,
            text=True,
            stderr=subprocess.DEVNULL,
        )
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def pretend_hopper() -> None:
    """Make vLLM's platform CUDA with capability 9.0, which it would read from the driver."""
    import torch  # noqa: F401  (vLLM's shared objects need its libraries)
    from triton.backends.nvidia.driver import CudaDriver

    # Before vLLM looks for Triton, which it does on its first import.
    CudaDriver.is_active = staticmethod(lambda: True)
    import vllm.platforms
    from vllm.platforms.cuda import CudaPlatform
    from vllm.platforms.interface import DeviceCapability

    def capability(*_: Any, **__: Any) -> DeviceCapability:
        return DeviceCapability(9, 0)

    CudaPlatform.get_device_capability = capability
    vllm.platforms.current_platform = CudaPlatform()


def from_elsewhere(site: Path, host: Path) -> dict[str, set[str]]:
    """Distributions outside the pack and the host's list that something was imported from."""
    lines = (line.partition("#")[0].partition("==")[0] for line in host.read_text().splitlines())
    there = {_plain(line) for line in lines}
    owners = importlib.metadata.packages_distributions()
    strangers: dict[str, set[str]] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        # setuptools brings packages of its own in _vendor.
        if not file or "site-packages" not in file or "_vendor" in file:
            continue
        if Path(file).is_relative_to(site):
            continue
        dists = [_plain(dist) for dist in owners.get(name.partition(".")[0], [])]
        if dists and not there.intersection(dists):
            strangers.setdefault(dists[0], set()).add(name.partition(".")[0])
    return strangers


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")


def _imports(name: str) -> bool:
    try:
        importlib.import_module(name)
    except Exception:
        print(f"fails   {name}")
        traceback.print_exc(limit=-4)
        return False
    print(f"imports {name}")
    return True


if __name__ == "__main__":
    main()
