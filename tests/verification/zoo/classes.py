"""Every drafter class that vLLM registers, served here with random weights and recorded.

`python -m verification.zoo.classes [NAME...]` prints a table: whether this machine serves a class,
what the probe found in its drafter, and how far its figures are from a second computation. Of what
it does not serve, the class is constructed without an engine and looked into.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from support.checkpoints import save_model
from support.every_drafter import ALL, LAYERS, TARGET, V, write

from driftscope_probes.server.doctor import drafter_classes, package_folder
from verification.zoo.compare import CLASSES, _classes, _index, _rms, row_of
from verification.zoo.constructed import SOURCE, as_source
from verification.zoo.engines import run_constructed, run_engines
from verification.zoo.kind import Anatomy
from verification.zoo.witness import Witness

RUNNERS = ("v1", "v2")
DEPTHS = 3
PROMPTS = (6, 11, 40)
MAX_TOKENS = 10
TIMEOUT_S = 120


def method_of(name: str) -> dict[str, Any]:
    """Return vLLM's method for a class, and what else it is to be told."""
    if name.startswith(("PEagle", "Peagle")):
        return {"method": "eagle3", "parallel_drafting": True}
    if "DSpark" in name:
        return {"method": "dspark"}
    if "DFlash" in name or "LiLiCorr" in name or "MuseGlimmer" in name:
        return {"method": "dflash"}
    if name == "MedusaModel":
        return {"method": "medusa"}
    if "Eagle3" in name:
        return {"method": "eagle3"}
    return {"method": "eagle" if name.startswith("Eagle") else "mtp"}


def serve(folder: Path, runner: str, name: str, probe: bool) -> dict[str, Any]:
    """Return the tokens that a class's tiny model makes, and what was recorded. `name` may have a
    change of `PLANTS` after a plus."""
    tag = name
    name, _, plant = tag.partition("+")
    drafter, target, configs = configured(folder / f"{tag}-{runner}-{probe}", name)
    bf16 = "linear_attention" in configs or name == "InklingMTPModel"
    for change in filter(None, (REPAIRS.get(name), PLANTS.get(plant))):
        change()
    run = folder / f"{tag}-{runner}-run"
    if probe:
        os.environ |= {"DRIFTSCOPE_TRACE": str(run), "DRIFTSCOPE_EVERY": "1"}
    for module in IMAGES:  # no image is ever sent
        sys.modules.setdefault(module, MagicMock())
    import torch
    from vllm import LLM, SamplingParams
    from vllm.model_executor.model_loader import dummy_loader

    torch._dynamo.config.disable = True  # for functions compiled beside eager models
    dummy_loader.initialize_single_dummy_weight = random_weight
    finish_dummies(dummy_loader.DummyModelLoader)
    witness = Witness(name, None) if probe else None
    if witness is not None:
        witness.install(runner)
    speculation = {**method_of(name), "num_speculative_tokens": DEPTHS}
    if drafter != target:
        speculation["model"] = str(drafter)
    llm = LLM(
        model=str(target),
        load_format="dummy",
        speculative_config=speculation,
        dtype="bfloat16" if bf16 else "float32",
        language_model_only="text_config" in configs or "Omni" in name,
        **({"block_size": 16} if "Bailing" in name else {}),
        max_model_len=128,
        max_num_seqs=4,
        num_gpu_blocks_override=64,
        enforce_eager=True,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        distributed_executor_backend="uni",
        worker_extension_cls="verification.zoo.kinds_main.Reach",
    )
    norms: list[tuple[int, Any, Any]] = []
    if witness is not None:
        (model,) = llm.collective_rpc("drafter_model")
        witness.watch(model)
        watch_norms(model, witness, norms)
    prompts = [{"prompt_token_ids": [(7 * i) % (V - 3) + 2 for i in range(n)]} for n in PROMPTS]
    sampling = SamplingParams(
        temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, detokenize=False
    )
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    found: dict[str, Any] = {"tokens": [list(o.outputs[0].token_ids) for o in outputs]}
    if probe:
        llm.collective_rpc("close_trace")
        llm.llm_engine.engine_core.shutdown()
        found |= recorded(run)
        try:
            found["worst"] = compared(run, name, runner, witness, norms)
        except Exception as error:
            found["worst"] = {"not compared": repr(error)[:200]}
    return found


def configured(folder: Path, name: str, *, alone: bool = False) -> tuple[Path, Path, str]:
    """Write a class's configs with sizes that are served here, and return the folders of drafter
    and target, and both texts. `alone`: the target is a plain one."""
    drafter, target = write(folder, name, {})
    if alone or name in ON_ANOTHER:
        target = save_model(folder / "plain", plain_target(name), {})
    texts = ""
    for path in {drafter, target}:
        config = served_here(json.loads((path / "config.json").read_text()))
        save_model(path, config, {})
        know_config(config)
        texts += json.dumps(config)
    return drafter, target, texts


def watch_norms(model: Any, witness: Witness, seen: list[tuple[int, Any, Any]]) -> None:
    """Keep what enters and leaves each norm of the drafter, with the number of the forward."""

    def before(norm: Any, inputs: Any) -> None:
        norm.entered = [x.clone() for x in inputs if x is not None]

    def after(norm: Any, _: Any, output: Any) -> None:
        made = output[0] if isinstance(output, tuple) else output
        forward = id(witness._forward)
        seen.append((forward, sum(norm.entered), made.clone()))

    for module in model.modules():
        if "norm" in type(module).__name__.lower():
            module.register_forward_pre_hook(before)
            module.register_forward_hook(after)


def compared(
    run: Path, name: str, runner: str, witness: Witness, norms: list[tuple[int, Any, Any]]
) -> dict[str, float]:
    """Return the largest error of each column: masses absolute, RMS relative."""
    from driftscope.trace.manifest import read_manifest
    from driftscope.trace.reader import read_trace
    from driftscope_probes.vllm.support import kind_for

    rows, manifest = read_trace(run).draft.to_pylist(), read_manifest(run)
    kind = kind_for(SimpleNamespace(parallel_drafting=False, **method_of(name)))
    anatomy = Anatomy(block=kind.block, first=kind.lead + kind.ahead, lead=kind.lead)
    seen = _index(witness.drafts, rows, anatomy)
    worst: dict[str, float] = {}

    def note(column: str, error: Any) -> None:
        worst[column] = max(worst.get(column, 0.0), float(error))

    for row in rows:
        draft, b = seen[row["request"].split("-")[0], row["position"]]
        k, p = row["k"], row["position"]
        for d in range(k):
            forward, at = row_of(draft, b, p, d, anatomy)
            note("attention", forward.output_errors.get(at, 0.0))
            for layer, weights in enumerate(forward.weights[: manifest.drafter_layers]):
                wanted = _classes(weights[at], p + kind.lead, row["prompt_tokens"])
                for column, value in zip(CLASSES, wanted, strict=True):
                    mine = row[column] and row[column][d * manifest.drafter_layers + layer]
                    if mine is not None and mine == mine:
                        note("mass", abs(mine - max(value, 0.0)))
            of_norms = [(x[at], y[at]) for f, x, y in norms if f == id(forward) and len(x) > at]
            outputs = [x[at] for x in forward.outputs]
            states = {
                "prenorm_rms": [x for x, _ in of_norms] + outputs,
                "postnorm_rms": [y for _, y in of_norms],
            }
            if forward.hidden is not None and kind.fed:
                states["in_rms"] = [forward.hidden[at]]
            if kind.chained and d + 1 < k:
                states["fed_rms"] = [draft.forwards[d + 1].hidden[b]]
            for column, raw in states.items():
                if row[column] is not None and row[column][d] is not None:
                    errors = [abs(row[column][d] / max(float(_rms(x)), 1e-30) - 1) for x in raw]
                    note(column, min(errors, default=float("inf")))
            if draft.logits and row["top1"] is not None:
                logits = draft.logits[0][b * k + d] if kind.block else draft.logits[d][b]
                note("top1", abs(row["top1"][d] - float(logits.softmax(-1).max())))
    return worst


def served_here(config: Any) -> Any:
    """Return a config with the sizes for which vLLM's CPU kernels are compiled."""
    if not isinstance(config, dict):
        return config
    changed = {name: served_here(value) for name, value in config.items()}
    if "linear_key_head_dim" in changed:
        sizes = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
        changed |= {**sizes, "output_gate_type": "silu"}
    if "zero_expert_num" in changed:
        changed |= {"zero_expert_type": "identity"}
    if changed.get("model_type") in ("minicpm", "mimo"):  # their heads are of hidden_size / heads
        changed |= {"num_attention_heads": 2, "num_key_value_heads": 2}
    if "swa_head_dim" in changed:
        changed |= {"sliding_window_size": 128, "n_routed_experts": 1}
    if "mtp_hybrid_override_pattern" in changed:  # no experts, whose activation has no gate
        changed |= {"mtp_hybrid_override_pattern": "*"}
    if "sparse_attention_config" in changed:  # its experts have an activation of their own
        changed |= {"moe_layer_freq": [0, 0, 0]}
    if changed.get("model_type") == "bailing_hybrid":
        changed |= {"short_conv_kernel_size": 4}
    if "kv_lora_rank" in changed:
        changed |= {"kv_lora_rank": 512}
        changed |= {"qk_rope_head_dim": 64} if changed.get("qk_rope_head_dim") else {}
    return changed


def know_config(config: Any) -> None:
    """Register a plain config for a model type that transformers lacks, as a checkpoint's own code
    does."""
    from transformers import AutoConfig, PretrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    text = config.get("text_config")
    for part in (text, config):
        kind = part and part.get("model_type")
        if not kind or kind in CONFIG_MAPPING or kind in _CONFIG_REGISTRY:
            continue

        class Plain(PretrainedConfig):
            model_type = kind

            def __init__(self, text_config: Any = None, **fields: Any) -> None:
                super().__init__(**fields)
                if isinstance(text_config, dict):
                    text_config = AutoConfig.for_model(**text_config)
                if text_config is not None:
                    self.text_config = text_config

        AutoConfig.register(kind, Plain)


DERIVED = (
    "_build_fused_kv_buffers",
    "_build_fused_context_kv_metadata",
    "materialize_inference_buffers",
)


def finish_dummies(loader: Any) -> None:
    """Have vLLM derive from random weights what its classes derive from weights that they load."""
    load_weights = loader.load_weights

    def load(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        load_weights(self, model, *args, **kwargs)
        for module in model.modules():
            for name in DERIVED:
                if hasattr(module, name):
                    weight = next(module.parameters())
                    takes = (weight.device, weight.dtype) if name.startswith("mat") else ()
                    getattr(module, name)(*takes)

    loader.load_weights = load


ON_ANOTHER = (
    "Eagle3DeepseekV2ForCausalLM",
    "EagleMistralLarge3ForCausalLM",
    "EagleDeepSeekMTPModel",
    "BailingMoeV3MTPModel",
    "BailingMoeV25MTPModel",
    "MiniMaxM3MTP",
    "InklingMTPModel",
    "NemotronHMTPModel",
    "LongCatFlashMTPModel",
    "InternS2MobiusMTP",
    "MiMoV2OmniMTPModel",
    "Gemma4DSparkModel",
)
"""Drafters that draft for a plain target: a CPU does not run their own, or gives its cache blocks
of another size than theirs."""
LATENT_TARGET = ALL["DeepSeekMTPModel"].target


NAMED_LIKE_TARGET = ("MiniMaxM3MTP", "Gemma4DSparkModel")
"""Drafters whose layers have the names of a plain target's: theirs is within a model for images."""
IMAGES_TARGET = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "image_token_index": 3,
    "torch_dtype": "float32",
    "vision_config": {"model_type": "clip_vision_model"},
}


def plain_target(name: str) -> dict[str, Any]:
    """Return the config of a plain target with attention like that of a drafter, and with the
    fields that heads read from it."""
    tiny = ALL[name]
    own = tiny.drafter or tiny.target
    fields = own.get("text_config", own)
    plain = LATENT_TARGET if "kv_lora_rank" in fields else TARGET
    if tiny.drafter:
        whole = {**plain, "num_hidden_layers": LAYERS}
    else:
        kind = {key: plain[key] for key in ("architectures", "model_type", "hidden_act")}
        whole = {**plain, **fields, **kind}
    return {**IMAGES_TARGET, "text_config": whole} if name in NAMED_LIKE_TARGET else whole


def _glm_normed() -> None:
    """Repair GLM's head, which vLLM 0.32.0 feeds the state before its final norm."""
    from vllm.model_executor.models import glm4_moe_mtp as glm

    head = glm.Glm4MoeMultiTokenPredictorLayer
    original = head.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.shared_head.norm(original(self, *args, **kwargs))

    head.forward = forward
    glm.SharedHead.forward = lambda _, hidden: hidden


def _qwen_unnormed() -> None:
    """Feed Qwen's head the state before its final norm, and norm it for the output head alone."""
    import torch
    from vllm.model_executor.models import qwen3_next_mtp as qwen

    class Sum(torch.nn.Module):
        def forward(self, x: Any, residual: Any) -> Any:
            return x + residual, residual

    predictor, whole = qwen.Qwen3NextMultiTokenPredictor, qwen.Qwen3NextMTP
    forward, logits = predictor.forward, whole.compute_logits

    def unnormed(self: Any, *args: Any, **kwargs: Any) -> Any:
        norm, self.norm = self.norm, Sum()
        try:
            return forward(self, *args, **kwargs)
        finally:
            self.norm = norm

    predictor.forward = unnormed
    whole.compute_logits = lambda self, x, *a, **kw: logits(self, self.model.norm(x), *a, **kw)


def _pangu_alone() -> None:
    """Give its layer what the forward of DeepSeek's head, its base, reads."""
    from vllm.model_executor.models.openpangu import OpenPanguDecoderLayer

    OpenPanguDecoderLayer.use_sequence_parallel_moe = False


IMAGES = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
"""Modules that vLLM's CPU build does not load, and that targets with images import."""
PLANTS = {"normed": _glm_normed, "unnormed": _qwen_unnormed}
"""Changes of vLLM's own classes in the process that serves."""
REPAIRS = {"OpenPanguMTPModel": _pangu_alone}
"""Repairs of classes that fail in vLLM 0.32.0 on every device."""
PLANTED = ("Glm4MoeMTPModel+normed", "Qwen3NextMTP+unnormed")
GAIN = 3.0
"""Factor of matrices, so that a residual stream is clearly larger than what a norm makes of it."""


def random_weight(parameter: Any, **_: Any) -> None:
    """Fill a parameter so that states neither vanish nor explode: norms near 1, matrices that keep
    their input's size."""
    import torch

    if not torch.is_floating_point(parameter):
        parameter.zero_()
        return
    generator = torch.Generator().manual_seed(sum(parameter.shape))
    values = torch.randn(parameter.shape, generator=generator)
    if parameter.dim() < 2:
        parameter.data.copy_(1 + 0.2 * values)
    else:
        parameter.data.copy_(GAIN * values / parameter.shape[-1] ** 0.5)


def recorded(run: Path) -> dict[str, Any]:
    """Return what a run holds of its drafter."""
    from driftscope.pipeline import Inputs, analyze
    from driftscope.trace.manifest import read_manifest
    from driftscope.trace.reader import read_trace
    from driftscope.trace.status import read_statuses

    trace, manifest = read_trace(run), read_manifest(run)
    rows = trace.draft.to_pylist()
    columns = sorted({c for row in rows for c, v in row.items() if v is not None})
    kept = [c for c in columns if c.endswith(("_rms", "_mass")) or c in ("top1", "entropy")]
    return {
        "chains": len(rows),
        "columns": kept,
        "layers": manifest.drafter_layers,
        "notes": list(manifest.notes),
        "witness": manifest.witness,
        "fed": manifest.fed_state,
        "strategy": manifest.attention_strategy,
        "findings": [f.id for f in analyze(Inputs(sources=[run], labels=["run"])).findings],
        "errors": {k: v for s in read_statuses(run) for k, v in s.errors.items()},
        "first_error": [s.first_error for s in read_statuses(run) if s.first_error],
    }


def one_of_each_class() -> list[str]:
    """Return one registered name of each class of vLLM."""
    classes = drafter_classes(package_folder("vllm") or Path())
    return list({classes[name]: name for name in reversed(ALL) if name in classes}.values())[::-1]


def words_of(found: dict[str, Any]) -> str:
    """Return what of a class is recorded, or found without an engine, and the largest differences
    from the second computation."""
    if "error" in found:
        return str(found["error"])
    kept = ("chains", "columns", "strategy", "fed", "witness", "notes", "worst")
    return "; ".join(f"{name} {found[name]}" for name in kept if found.get(name))


def right(found: dict[str, Any]) -> bool:
    """Return whether a served class gives the tokens that it gives without the probe, and figures
    within rounding of the second computation."""
    known = found.get("worst", {}).items()
    worst = [e for column, e in known if not isinstance(e, str) and column != "attention"]
    return "error" in found or (found["tokens"] == found["off"] and max(worst, default=0.0) < CLOSE)


CLOSE = 1e-4
"""Bound of all differences; the trace itself rounds to half of 1e-5."""


def main() -> int:
    """Print the table; return 1 if a figure or a token is wrong. A folder as argument keeps the
    runs."""
    words = sys.argv[1:]
    names = [w for w in words if w.partition("+")[0] in ALL] or [*one_of_each_class(), *PLANTED]
    runners = [w for w in words if w in RUNNERS] or RUNNERS
    keep = next((w for w in words if w.startswith("/")), None)
    with tempfile.TemporaryDirectory(prefix="driftscope-classes-") as folder:
        engines = [(name, runner) for runner in runners for name in names]
        results = run_engines(engines, Path(keep or folder), TIMEOUT_S)
        unserved = [n for n in names if all("error" in results[n, runner] for runner in runners)]
        alone = run_constructed([name for name in unserved if name in SOURCE], Path(keep or folder))
    for name in names:
        print(name)
        for runner in runners:
            found = results[name, runner]
            mark = "no" if "error" in found else "yes" if right(found) else "WRONG"
            print(f"    {runner} {mark}: {words_of(found)}")
        if name in alone:
            mark = "as" if as_source(name, alone[name]) else "NOT AS"
            print(f"    alone, {mark} vLLM's source says: {words_of(alone[name])}")
    inside = {name for (name, _), found in results.items() if found.get("chains")}
    print(
        f"{len(inside)} of {len(names)} with their inside on one runner or both; {len(alone)} more "
        "looked into without an engine"
    )
    agree = all(as_source(name, found) for name, found in alone.items())
    return int(not (agree and all(map(right, results.values()))))


if __name__ == "__main__":
    sys.exit(main())
