from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from driftscope.inspect.reference.config import DecoderConfig, DrafterConfig
from driftscope.inspect.reference.drafter import Drafter, Target

SIZES = DecoderConfig(
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
)
LAYER = replace(SIZES, num_hidden_layers=1)
FLAGS = {"eagle3": False, "eagle31": True}

Pair = tuple[Target, Drafter]


def random_weights(module: torch.nn.Module, seed: int) -> None:
    """Matrices wide enough that softmaxes are peaked, norm weights away from 1."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(values * 0.4 if parameter.dim() == 2 else 1 + 0.2 * values)


@pytest.fixture(params=sorted(FLAGS))
def make_pair(request: pytest.FixtureRequest) -> Callable[[torch.dtype], Pair]:
    """A random target and drafter, the same for every dtype."""

    def make(dtype: torch.dtype) -> Pair:
        flag = FLAGS[request.param]
        config = DrafterConfig(layer=LAYER, aux_layers=(1, 2), fc_norm=flag, norm_output=flag)
        target, drafter = Target(SIZES), Drafter(config)
        random_weights(target, seed=1)
        random_weights(drafter, seed=2)
        return target.to(dtype).eval(), drafter.to(dtype).eval()

    return make


@pytest.fixture
def pair(make_pair: Callable[[torch.dtype], Pair]) -> Pair:
    return make_pair(torch.float64)


@pytest.fixture
def tokens() -> list[int]:
    generator = torch.Generator().manual_seed(3)
    ids: list[int] = torch.randint(0, SIZES.vocab_size, (30,), generator=generator).tolist()
    return ids
