"""Give `inspect` models with one hostile value, header, shape or module."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from random import Random

from support.checkpoints import Config, as_speculators, changed, speculators_names
from support.hostile.models import (
    VALUES,
    header_of,
    linked,
    places,
    reshaped,
    with_value,
    write_header,
)
from support.hostile.models import rewrite as rewritten

from driftscope.errors import EXIT_OK
from driftscope.inspect.config_fields import FIELDS
from driftscope_lab.trio import trio_path
from verification.faults.command import Outcome, damaged, outcome_of

TARGET = trio_path() / "target"
_KINDS: Mapping[str, Config] = {
    "eagle3": {},
    "eagle1": {"architectures": ["EagleLlamaForCausalLM"]},
    "dflash": {"architectures": ["DFlashDraftModel"], "target_layer_ids": [0, 1, 2]},
    "medusa": {"architectures": ["MedusaModel"], "medusa_num_heads": 2},
    "mimo": {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1},
    "latent": {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "kv_lora_rank": 8},
    "quantised": {"quantization_config": {"quant_method": "fp8", "ignore": ["re:.*a"]}},
}
_RUN_SHARE = 0.01
"""Share of the models that are also run, which takes seconds."""


def _drafter(random: Random, folder: Path) -> Path:
    """Return a drafter of some kind, whose weights are those of the shipped one."""
    name = random.choice((*_KINDS, "speculators"))
    if name == "speculators":
        made = changed(folder / "made", config=as_speculators, weights=speculators_names)
        return linked(made, folder / "drafter")
    drafter = linked(trio_path() / random.choice(("eagle3", "eagle31")), folder / "drafter")
    content = json.loads((drafter / "config.json").read_text())
    rewritten(drafter / "config.json", json.dumps({**content, **_KINDS[name]}))
    return drafter


def _inspect(random: Random, drafter: Path, target: Path = TARGET) -> Outcome:
    """Inspect a model; what is printed has no warning of a library."""
    run = random.random() < _RUN_SHARE
    how = ("--prompts", "trio", "--limit", "5", "--k", "1") if run else ("--files-only",)
    done = outcome_of(["inspect", drafter, "--target", target, *how, "--json"])
    assert not re.search(r"Warning|trust_remote_code|\[y/N\]", done.out + done.err), done.err[-300:]
    return done


def edit_config(random: Random, _: Path, folder: Path) -> None:
    """One value of a JSON file of a drafter or a target is another one."""
    drafter, target = _drafter(random, folder), TARGET
    model = drafter
    if random.random() < 0.4:
        model = target = linked(TARGET, folder / "target")
    names = sorted(path.name for path in model.glob("*.json"))
    path = model / random.choice(("config.json", *names))
    content = json.loads(path.read_text())
    fields = [*places(content), *((name,) for name in FIELDS)]
    rewritten(path, with_value(content, random.choice(fields), random.choice([*VALUES.values()])))
    _inspect(random, drafter, target)


def damage_file(random: Random, _: Path, folder: Path) -> None:
    """Bytes of any file of a drafter or a target are others, or missing."""
    drafter, target = _drafter(random, folder), TARGET
    model = drafter
    if random.random() < 0.4:
        model = target = linked(TARGET, folder / "target")
    path = random.choice(sorted(model.iterdir()))
    content = path.read_bytes()
    head = len(content) if path.suffix == ".json" else min(len(content), 8192)
    path.unlink()
    if random.random() < 0.95:
        path.write_bytes(damaged(content[:head], random) + content[head:])
    _inspect(random, drafter, target)


def edit_header(random: Random, _: Path, folder: Path) -> None:
    """One value of a safetensors header is another one, or a tensor has another shape."""
    model = Path(shutil.copytree(trio_path() / "eagle3", folder / "drafter"))
    header, body = header_of(model)
    if random.random() < 0.4:
        shape = [
            random.choice((0, 1, 2, 3, 256, 768)) for _ in range(random.choice((0, 1, 2, 3, 9)))
        ]
        if math.prod(shape) < 1 << 22:
            reshaped(model, random.choice([n for n in header if n != "__metadata__"]), shape)
    else:
        path = random.choice([*places(header)])
        write_header(model, with_value(header, path, random.choice([*VALUES.values()])), body)
    done = _inspect(random, model)
    if done.code == EXIT_OK:
        assert _opens(model), "safetensors refuses a file in which inspect found no mistake"


def _opens(model: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(model / "model.safetensors", framework="numpy"):
            return True
    except SafetensorError:
        return False


_MODULE = """open({ran!r}, "w")
from transformers import LlamaConfig as Own, LlamaForCausalLM, LlamaTokenizerFast
"""


def bring_code(random: Random, _: Path, folder: Path) -> None:
    """A model brings Python modules; none of them runs."""
    target, ran = linked(TARGET, folder / "target"), folder / "ran"
    classes = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.LlamaForCausalLM"}
    tokenizer = {"AutoTokenizer": ["own.LlamaTokenizerFast", "own.LlamaTokenizerFast"]}
    name, auto_map = random.choice((("config.json", classes), ("tokenizer_config.json", tokenizer)))
    content = json.loads((target / name).read_text())
    own = {"auto_map": auto_map, random.choice(("model_type", "tokenizer_class")): "Own"}
    rewritten(target / name, json.dumps({**content, **own}))
    for module in ("own.py", "custom_generate/generate.py", "modeling_own.py"):
        (target / module).parent.mkdir(exist_ok=True)
        (target / module).write_text(_MODULE.format(ran=str(ran)))
    how = ("--prompts", "trio", "--limit", "5", "--k", "1", "--json")
    done = outcome_of(["inspect", trio_path() / "eagle3", "--target", target, *how])
    assert not ran.exists(), "a module of the checkpoint ran"
    assert "[y/N]" not in done.out and "trust_remote_code" not in done.out + done.err
