"""Serve one kind of drafter, or one class that vLLM registers, and compare what was recorded.

`kinds_main.py FOLDER RUNNER NAME on|off|constructed [ARCTIC]`, with the probe, without it, or a
class without an engine, writes NAME-RUNNER-(on|off|constructed).json. ARCTIC: folder of the package
arctic-inference, for suffix decoding.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from verification.zoo import ZOO
from verification.zoo.classes import serve as serve_class
from verification.zoo.constructed import discovered
from verification.zoo.kind import MAX_TOKENS, prompts

SAMPLING = {"temperature": 0, "max_tokens": MAX_TOKENS, "ignore_eos": True, "detokenize": False}


def main() -> None:
    folder, (runner, name, probe, *arctic) = Path(sys.argv[1]), sys.argv[2:]
    if name == "suffix":
        sys.path.insert(0, *(arctic or [str(Path(__file__).parent / "stand_in")]))
    result = folder / f"{name}-{runner}-{probe}.json"
    try:
        if probe == "constructed":
            found = discovered(folder, name)
        else:
            serve = run_engine if name in ZOO else serve_class
            found = serve(folder, runner, name, probe == "on")
        result.write_text(json.dumps(found))
    except BaseException as error:
        words = " ".join(str(error).split())
        result.write_text(json.dumps({"error": f"{type(error).__name__}: {words[:300]}"}))
        raise


def run_engine(folder: Path, runner: str, name: str, probe: bool) -> dict[str, Any]:
    """Return the tokens, and with the probe the largest errors of the recording."""
    from support.engine_process.engine_main import spec_decode
    from vllm import LLM, SamplingParams

    from verification.zoo.compare import anatomy_of, compare
    from verification.zoo.witness import Witness

    kind, models = ZOO[name], folder / "models" / name
    run = folder / f"{name}-{runner}-run"
    witness = None
    if probe:
        os.environ["DRIFTSCOPE_TRACE"] = str(run)
        os.environ["DRIFTSCOPE_EVERY"] = "1"
        os.environ["DRIFTSCOPE_TOKEN_IDS"] = "1"
        os.environ["DRIFTSCOPE_DISTANCE_EVERY"] = "1"
        if (anatomy := anatomy_of(name, runner)) is not None:
            witness = Witness(name, anatomy.norm)
            witness.install(runner)
    llm = LLM(
        **kind.llm(models),
        distributed_executor_backend="uni",
        worker_extension_cls="verification.zoo.kinds_main.Reach",
    )
    if witness is not None:
        (model,) = llm.collective_rpc("drafter_model")
        witness.watch(model)
    ids = [{"prompt_token_ids": prompt} for prompt in prompts()]
    outputs = llm.generate(ids, SamplingParams(**SAMPLING), use_tqdm=False)
    found: dict[str, Any] = {
        "tokens": [list(o.outputs[0].token_ids) for o in outputs],
        "metrics": spec_decode(llm),
    }
    if probe:
        llm.collective_rpc("close_trace")
        llm.llm_engine.engine_core.shutdown()
        found |= compare(run, name, witness)
    return found


class Reach:
    """Methods that are called in the worker."""

    model_runner: Any

    @property
    def proposer(self) -> Any:
        """The drafter's proposer or speculator."""
        runner = self.model_runner
        return getattr(runner, "speculator", None) or runner.drafter

    def drafter_model(self) -> Any:
        """The module itself, under the probe's proxy."""
        model = self.proposer.model
        return getattr(model, "__wrapped__", model)

    def close_trace(self) -> None:
        """Close the trace as at the end of a process."""
        self.proposer._driftscope_recorder.close()


if __name__ == "__main__":
    main()
