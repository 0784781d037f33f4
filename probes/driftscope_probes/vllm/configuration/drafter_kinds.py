"""All kinds of drafter that this version supports, and what is recorded of each.

The start-up check, `driftscope doctor` and the table in docs/drafters.md all read this list. A
drafter that is not in it is recorded like one without a model: acceptance and timing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from driftscope.errors import UnknownDrafterError
from driftscope_probes.drafter import Kind

TRUTH = "float64 replay of trained and random weights"
WITNESS = "float64 softmax over raw q, k and raw states, tiny random model"
STATES = "float64 from raw states, tiny random model"
COUNTED = "accepted counts and tokens, tiny model"
NOT_RUN = "not run"
NGRAM_V2 = f"{NOT_RUN}: Triton's interpreter fails on vLLM's kernel"


_NORMED = {"postnorm_rms": 0, "fed_rms": -1}
_RESIDUAL = {"prenorm_rms": 0, "fed_rms": -1}

EAGLE3 = Kind(
    name="EAGLE-3 / 3.1",
    methods=("eagle3",),
    drafters=("Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"),
    outputs=_NORMED,
    norms=("model.norm",),
    v1=TRUTH,
    v2=TRUTH,
    note="also the captured target layers, their norms and the fc output; windows as configured",
)
KINDS = (
    EAGLE3,
    Kind(
        name="EAGLE-3, latent attention",
        methods=("eagle3",),
        drafters=("Eagle3DeepseekV2ForCausalLM",),
        outputs=_NORMED,
        norms=("model.norm",),
        v1=WITNESS,
        v2=WITNESS,
    ),
    Kind(
        name="EAGLE-1",
        methods=("eagle",),
        drafters=("EagleLlamaForCausalLM",),
        outputs=_RESIDUAL,
        v1=TRUTH,
        v2=TRUTH,
        note="no final norm: the residual stream is what is fed",
    ),
    Kind(
        name="P-EAGLE",
        methods=("eagle3",),
        drafters=("Eagle3LlamaForCausalLM",),
        parallel=True,
        outputs={"postnorm_rms": 0},
        norms=("model.norm",),
        block=True,
        v1=WITNESS,
        note="by query index",
    ),
    Kind(
        name="DFlash",
        methods=("dflash",),
        drafters=("DFlashQwen3ForCausalLM",),
        fed=False,
        outputs={"postnorm_rms": 0},
        norms=("model.norm",),
        block=True,
        causal=False,
        lead=1,
        ahead=1,
        v1=WITNESS,
        v2=WITNESS,
        note="by query index; every query of a block sees the whole block",
    ),
    Kind(
        name="MTP, DeepSeek",
        methods=("mtp",),
        drafters=("DeepSeekMTP",),
        outputs={"prenorm_rms": 0, "postnorm_rms": -1, "fed_rms": -1},
        v1=WITNESS,
        v2=WITNESS,
        note="latent attention",
    ),
    Kind(
        name="MTP, MiMo",
        methods=("mtp",),
        drafters=("MiMoMTP",),
        outputs=_NORMED,
        norms=("model.mtp_layers.*.final_layernorm",),
        v1=WITNESS,
        v2=WITNESS,
    ),
    Kind(
        name="MTP, MiMo-V2",
        methods=("mtp",),
        drafters=("MiMoV2MTP",),
        outputs=_NORMED,
        norms=("model.mtp.layers.*.final_layernorm",),
        v1=WITNESS,
        v2=WITNESS,
        note="sliding window and learned sink biases",
    ),
    Kind(
        name="MTP, ERNIE 4.5",
        methods=("mtp",),
        drafters=("ErnieMTP",),
        outputs=_RESIDUAL,
        v1=WITNESS,
        v2=WITNESS,
        note="no final norm",
    ),
    Kind(
        name="MTP, one module per depth",
        methods=("mtp",),
        drafters=("DeepSeekMTP", "MiMoMTP", "MiMoV2MTP", "ErnieMTP"),
        modules=True,
        model=False,
        v1="is served by module 0 at each depth there: as the rows above",
        v2=f"{COUNTED}, of DeepSeek's",
    ),
    Kind(
        name="draft model",
        methods=("draft_model",),
        fed=False,
        outputs={"postnorm_rms": 0},
        norms=("model.norm",),
        lead=1,
        v1=WITNESS,
        v2=WITNESS,
        note="any decoder with vLLM's plain attention layers; also soft caps; checked: Llama, "
        "Gemma 2",
    ),
    Kind(
        name="Medusa",
        methods=("medusa",),
        drafters=("Medusa",),
        attention=False,
        outputs={"prenorm_rms": 0},
        block=True,
        heads=True,
        v1=STATES,
        note="by head; no attention",
    ),
    Kind(
        name="n-gram",
        methods=("ngram",),
        model=False,
        v1=COUNTED,
        v2=NGRAM_V2,
    ),
    Kind(
        name="n-gram on the device",
        methods=("ngram_gpu",),
        model=False,
        v1=f"{NOT_RUN}: wants pinned memory",
        v2=NGRAM_V2,
    ),
    Kind(
        name="suffix",
        methods=("suffix",),
        model=False,
        v1=f"{COUNTED}, with the package arctic-inference 0.3.0",
    ),
)
"""All supported kinds of drafter."""


def kind_for(speculation: Any, drafter: str, *, modules: bool = False) -> Kind:
    """Return the kind of a loaded drafter; raises UnknownDrafterError if it is not in the list.

    `speculation` is vLLM's SpeculativeConfig, `drafter` the class's name.
    """
    method = speculation.method
    parallel = method != "dflash" and bool(getattr(speculation, "parallel_drafting", False))
    same = [kind for kind in KINDS if method in kind.methods and kind.parallel == parallel]
    for kind in same:
        if kind.modules == modules and (not kind.drafters or drafter in kind.drafters):
            return kind
    names = sorted({name for kind in same for name in kind.drafters})
    what = f"{method} with parallel drafting" if parallel else method
    raise UnknownDrafterError(
        f"drafter {drafter} of method {what} is not supported by this driftscope; "
        f"supported: {', '.join(names) or 'none'}"
    )


def methods() -> tuple[str, ...]:
    """Return all methods in the list, each once."""
    return tuple(dict.fromkeys(method for kind in KINDS for method in kind.methods))


def drafters() -> tuple[str, ...]:
    """Return all drafter classes in the list, each once."""
    return tuple(dict.fromkeys(name for kind in KINDS for name in kind.drafters))


def table() -> str:
    """Return the list as a Markdown table."""
    lines = [
        "| drafter | vLLM's classes | recorded | V1 runner | V2 runner |",
        "|---|---|---|---|---|",
    ]
    for kind in KINDS:
        classes = ", ".join(f"`{name}`" for name in kind.drafters)
        note = f"; {kind.note}" if kind.note else ""
        cells = (
            f"{kind.name} (`{'`, `'.join(kind.methods)}`)",
            classes or ("any" if kind.model else "none"),
            ", ".join(kind.recorded) + note,
            kind.v1,
            kind.v2,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


BEGIN, END = "<!-- kinds: `make kinds-table` writes this -->\n", "<!-- /kinds -->\n"
"""Marks around the table in docs/drafters.md."""


def main() -> None:
    """Write the table into the file named on the command line."""
    path = Path(sys.argv[1])
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}{table()}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
