"""SGLang's own requests are told from those of users."""

from types import SimpleNamespace
from typing import Any

import pytest

from driftscope_probes.sglang.scheduler import WarmUp, is_own_name


def request(**changed: Any) -> Any:
    sampling = {"top_k": 1, "temperature": 1.0, "max_new_tokens": 8}
    own = {key: changed.pop(key) for key in list(changed) if key in sampling}
    usual = {
        "rid": "a",
        "origin_input_text": "The capital city of France is",
        "origin_input_ids": [5, 6],
        "sampling_params": SimpleNamespace(**{**sampling, **own}),
    }
    return SimpleNamespace(**{**usual, **changed})


def test_the_first_request_with_the_content_of_the_warm_up_is_it() -> None:
    seen = WarmUp()
    seen.look(request(rid="HEALTH_CHECK_1", max_new_tokens=1))
    seen.look(request())
    seen.look(request(rid="b"))
    assert seen.name == "a"


def test_a_server_without_a_tokenizer_warms_up_with_token_ids() -> None:
    seen = WarmUp()
    seen.look(request(origin_input_text=None, origin_input_ids=[10, 11, 12]))
    assert seen.name == "a"


@pytest.mark.parametrize(
    "other",
    [
        {"origin_input_text": "The capital of France is"},
        {"max_new_tokens": 9},
        {"top_k": -1, "temperature": 0.5},
    ],
    ids=str,
)
def test_another_first_request_is_a_users(other: dict[str, Any]) -> None:
    seen = WarmUp()
    seen.look(request(**other))
    seen.look(request(rid="b"))
    assert seen.name == ""


def test_a_health_check_is_known_by_its_id() -> None:
    assert is_own_name("HEALTH_CHECK_17") and not is_own_name("a")
