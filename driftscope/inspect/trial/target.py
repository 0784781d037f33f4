"""A target that runs through transformers: prompts with its greedy answers and its states."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from driftscope.boundary.files import first_line
from driftscope.errors import CheckpointError
from driftscope.inspect.reference.config import FINAL_STATE
from driftscope.inspect.reference.layers import at_least_float32

CPU, GPU = "cpu", "cuda"
_MIMO = "MiMoForCausalLM"
_OWN_CODE = "trust_remote_code"
"""Option that transformers names if a checkpoint asks for modules of its own."""


def load_model(
    folder: Path, device: str, *, pickled: bool = False, device_map: Any | None = None
) -> Any:
    """Return the model in the type in which a GPU serves it, or in float32 on a CPU.

    Raises whatever transformers raises. `device_map` replaces the place that follows from `device`.
    """
    placed = {"device_map": device_map} if device_map else placement(device)
    model: Any = _class_of(folder).from_pretrained(
        folder,
        dtype=torch.bfloat16 if device == GPU else torch.float32,
        local_files_only=True,
        use_safetensors=not pickled,
        weights_only=True,
        trust_remote_code=False,
        **placed,
    )
    return model if placed else model.to(device)


def _class_of(folder: Path) -> Any:
    """Return the class of transformers that loads a target. MiMo's layers are those of Qwen2, whose
    class leaves its heads for multi-token prediction out."""
    import transformers

    fields = transformers.PretrainedConfig.get_config_dict(folder, local_files_only=True)[0]
    named = fields.get("architectures") or ()
    return transformers.Qwen2ForCausalLM if _MIMO in named else transformers.AutoModelForCausalLM


def placement(device: str, *, accelerate: bool | None = None) -> Mapping[str, Any]:
    """Return the arguments that place a model: with a GPU and accelerate, layers that do not fit
    into its memory stay in that of the host."""
    if accelerate is None:
        accelerate = importlib.util.find_spec("accelerate") is not None
    return {"device_map": "auto"} if device == GPU and accelerate else {}


def weight_of(module: nn.Module) -> Tensor:
    """Return the weight of a module, also where accelerate keeps it elsewhere until it is used."""
    weight: Any = module.weight
    if not weight.is_meta:
        held: Tensor = weight.detach()
        return held
    from accelerate.utils import align_module_device

    with align_module_device(module, torch.device(CPU)):
        fetched: Tensor = module.weight.detach().clone()  # type: ignore[operator]
        return fetched


ANSWER_TOKENS = 64
"""Tokens of an answer: enough for a dozen rounds of each prompt."""
LONGEST_PROMPT = 1024
"""Tokens of a prompt that are used, counted from its end backwards."""
BATCH = 16
"""Number of prompts that the target answers at once."""
Prompts = Sequence[tuple[str, list[int]]]
"""Keys of prompts, with their token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One prompt with its answer. `states` holds the output [1, S - 1, H] of each layer that is
    needed, counted from 1 (0 is the embedding), at all tokens but the last."""

    key: str
    ids: Tensor
    """Token ids [S]: the prompt, then the answer."""
    prompt_tokens: int
    states: Mapping[int, Tensor]
    log_probability: float = math.nan
    """Mean that the target gives to the tokens of its answer."""
    runner_up: Tensor | None = None
    """The target's second choice at each token of the answer, [answer]."""
    closeness: Tensor | None = None
    """Probability of the second choice as a share of the first's, [answer]."""

    def anchors(self, k: int) -> Tensor:
        """Return all positions of the answer from which K tokens can be drafted and compared: the
        last token of the prompt and those after it, [A]; none if the answer is too short."""
        first = self.prompt_tokens - 1
        after = max(first, len(self.ids) - 1 - k)
        return torch.arange(first, after, device=self.ids.device)


class Teacher:
    """A target that runs through transformers."""

    def __init__(
        self,
        folder: Path,
        device: str | None = None,
        *,
        pickled: bool = False,
        device_map: Mapping[str, str] | None = None,
    ) -> None:
        """Load model and tokenizer from a folder; its pickles only if `pickled`. Raises
        CheckpointError if transformers cannot. `device_map` names the place of each part; without
        one, a GPU is filled first."""
        import transformers

        self.folder = folder
        self.device = device or (GPU if torch.cuda.is_available() else CPU)
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        try:
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            self.model: Any = load_model(
                folder, self.device, pickled=pickled, device_map=device_map
            )
        except Exception as error:  # a damaged checkpoint makes transformers raise anything
            reason = first_line(error)
            if _OWN_CODE in str(error):  # its advice would run the code
                reason = "it needs Python code of its own, which driftscope never runs"
            raise CheckpointError(
                f"{folder}: transformers cannot load this target ({reason})"
            ) from error
        self.model.eval().requires_grad_(requires_grad=False)

    def embed(self, ids: Tensor) -> Tensor:
        """Embed token ids [...] to [..., H]."""
        embedded: Tensor = self.model.get_input_embeddings()(ids)
        return embedded.to(self.device, at_least_float32(embedded.dtype))

    @property
    def embedding(self) -> Tensor:
        """The token embedding [vocabulary, H]."""
        return weight_of(self.model.get_input_embeddings())

    @property
    def head(self) -> Tensor:
        """The output head [vocabulary, H]."""
        return weight_of(self.model.get_output_embeddings())

    def encode(self, messages: Sequence[Mapping[str, Any]], text: str | None = None) -> list[int]:
        """Return the token ids of a conversation in the target's chat template, or of a text.

        Raises CheckpointError for a template or tokenizer that fails.
        """
        try:
            ids = self._encoded(messages, text)
        except Exception as error:  # a template is a program of the checkpoint's author
            raise CheckpointError(
                f"{self.folder}: its tokenizer cannot encode a prompt ({first_line(error)})"
            ) from error
        if not ids:  # transformers makes an empty tokenizer where its files are absent
            raise CheckpointError(f"{self.folder}: its tokenizer makes no token of a prompt")
        return ids

    def _encoded(self, messages: Sequence[Mapping[str, Any]], text: str | None) -> list[int]:
        if text is not None or not getattr(self.tokenizer, "chat_template", None):
            plain = text if text is not None else "\n\n".join(str(m["content"]) for m in messages)
            ids: list[int] = self.tokenizer(plain)["input_ids"]
        else:
            rendered = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
            ids = self.tokenizer(rendered, add_special_tokens=False)["input_ids"]
        return ids[-LONGEST_PROMPT:]

    @torch.inference_mode()
    def passages(
        self, prompts: Mapping[str, list[int]], layers: Collection[int]
    ) -> Iterator[Passage]:
        """Answer each prompt greedily, and yield it with the states of `layers`."""
        items = sorted(prompts.items())
        for start in range(0, len(items), BATCH):
            batch = items[start : start + BATCH]
            with self._running():
                answers = self._answers(batch)
            for (key, prompt), answer in zip(batch, answers, strict=True):
                ids = torch.tensor([*prompt, *answer], device=self.device)
                yield self.passage(key, ids, len(prompt), layers)

    @torch.inference_mode()
    def passage(
        self, key: str, ids: Tensor, prompt_tokens: int, layers: Collection[int]
    ) -> Passage:
        """Return a prompt and its answer, token ids [S], with the states of `layers`."""
        with self._running():
            states, logits = self._states(ids, layers)
        answer = logits[prompt_tokens - 1 :].float().log_softmax(-1)
        best = answer.topk(2, -1)
        second = (best.indices[:, 0] == ids[prompt_tokens:]).long()[:, None]
        return Passage(
            key=key,
            ids=ids,
            prompt_tokens=prompt_tokens,
            states=states,
            log_probability=float(answer.gather(-1, ids[prompt_tokens:, None]).mean()),
            runner_up=best.indices.gather(-1, second)[:, 0],
            closeness=(best.values[:, 1] - best.values[:, 0]).exp(),
        )

    @contextmanager
    def _running(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # sizes and settings of a checkpoint that loads may not fit
            raise CheckpointError(
                f"{self.folder}: transformers cannot run this target ({first_line(error)})"
            ) from error

    def _answers(self, batch: Prompts) -> list[list[int]]:
        """Return the greedy answers to a batch."""
        longest = max(len(prompt) for _, prompt in batch)
        pad = self.tokenizer.pad_token_id or 0
        rows = [[pad] * (longest - len(prompt)) + prompt for _, prompt in batch]
        masks = [[0] * (longest - len(prompt)) + [1] * len(prompt) for _, prompt in batch]
        generated: Tensor = self.model.generate(
            input_ids=torch.tensor(rows, device=self.device),
            attention_mask=torch.tensor(masks, device=self.device),
            do_sample=False,
            pad_token_id=pad,
            max_new_tokens=ANSWER_TOKENS,
        )
        return [self._until_end(answer) for answer in generated[:, longest:].tolist()]

    def _until_end(self, answer: list[int]) -> list[int]:
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        stops = [at for at, token in enumerate(answer) if token in ends]
        return answer[: stops[0] + 1] if stops else answer

    def _states(self, ids: Tensor, layers: Collection[int]) -> tuple[dict[int, Tensor], Tensor]:
        found: dict[int, Tensor] = {}
        with _captured(self.model, layers, found):
            logits: Tensor = self.model(input_ids=ids[None, :-1], use_cache=False).logits[0]
        # Layers may be on other devices.
        return {layer: state.to(self.device) for layer, state in found.items()}, logits


@contextmanager
def _captured(model: Any, layers: Collection[int], found: dict[int, Tensor]) -> Iterator[None]:
    """Keep the outputs of the decoder's layers. transformers' own `hidden_states` would give the
    last layer's after the final norm."""

    def keep(layer: int, _module: Any, _inputs: Any, output: Any) -> None:
        state = output[0] if isinstance(output, tuple) else output
        found[layer] = state.to(at_least_float32(state.dtype))

    body = model.get_decoder()
    hooks = [
        body.layers[layer - 1].register_forward_hook(partial(keep, layer))
        for layer in layers
        if 0 < layer <= len(body.layers)
    ]
    if FINAL_STATE in layers:
        hooks.append(body.norm.register_forward_hook(partial(keep, FINAL_STATE)))
    if 0 in layers:
        hooks.append(model.get_input_embeddings().register_forward_hook(partial(keep, 0)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
