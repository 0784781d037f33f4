"""Names of an SGLang request: those that its client gives it, and those of SGLang's own."""

from __future__ import annotations

from typing import Any

from driftscope.boundary.bounds import MAX_LABEL_CHARS

LABEL = "driftscope_label"
"""Key of a request's workload label in SGLang's SamplingParams.custom_params."""
SESSION = "driftscope_session"
"""Key of a request's session, as LABEL."""
PAIR = "driftscope_pair"
"""Key of the question that a replay asks, as LABEL."""


_HEALTH_CHECK = "HEALTH_CHECK"
"""Beginning of the ids of the requests that SGLang's front end sends to see whether it is alive."""


_WARM_UP_TEXT = "The capital city of France is"
_WARM_UP_IDS = (10, 11, 12)
"""Prompt of the warm-up of a server without a tokenizer."""
_WARM_UP_TOKENS = 8
"""Most tokens of the warm-up's answer."""


class WarmUp:
    """Recognises the request that SGLang's server sends to itself before it serves others.

    It carries no mark, so that it is known by its place and content: it is the first one, greedy,
    of eight tokens, with the prompt that sglang.srt.entrypoints.http_server has.
    """

    def __init__(self) -> None:
        self._seen = False
        self.name = ""
        """Id of the warm-up; "" if there was none."""

    def look(self, req: Any) -> None:
        """Look at a request, of which the first one decides."""
        if not self._seen and not is_health_check(req.rid):
            self._seen = True
            if _has_content_of_warm_up(req):
                self.name = str(req.rid)


def _has_content_of_warm_up(req: Any) -> bool:
    sampling = req.sampling_params
    greedy = sampling.top_k == 1 or not sampling.temperature
    text = getattr(req, "origin_input_text", None)
    prompt = text == _WARM_UP_TEXT or tuple(req.origin_input_ids) == _WARM_UP_IDS
    return bool(greedy and sampling.max_new_tokens == _WARM_UP_TOKENS and prompt)


WARM_UP = WarmUp()
"""The warm-up of this process's server, which has one scheduler."""


def is_own(req: Any) -> bool:
    """Return whether a request is SGLang's own, a health check or the warm-up: no row is written of
    it."""
    WARM_UP.look(req)
    return is_own_name(req.rid)


def is_own_name(request: str) -> bool:
    """Return whether the request of this id, which was looked at before, is SGLang's own."""
    return request == WARM_UP.name or is_health_check(request)


def is_health_check(request: str) -> bool:
    """Return whether a request asks whether SGLang is alive."""
    return str(request).startswith(_HEALTH_CHECK)


def label_of(sampling: Any) -> str | None:
    """Return the workload label in a request's SamplingParams, see `name_in`."""
    return name_in(sampling, LABEL)


def name_in(sampling: Any, key: str) -> str | None:
    """Return the first MAX_LABEL_CHARS characters of the name under `key`, if there is one. Any
    client may choose it, and it is stored with every row."""
    own = getattr(sampling, "custom_params", None)
    name = own.get(key) if isinstance(own, dict) else None
    return None if name is None else str(name)[:MAX_LABEL_CHARS]
