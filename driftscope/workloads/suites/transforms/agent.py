"""An agent's context: tool schemas, calls and tool results."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from driftscope.boundary import strict_json
from driftscope.workloads.suites.filler_text import diff, json_result, shell, stack_trace
from driftscope.workloads.suites.prompt import Message, Prompt
from driftscope.workloads.suites.server_facts import Facts
from driftscope.workloads.suites.tool_schemas import TOOLS
from driftscope.workloads.suites.transforms.base import Transform, need_messages

_RESULTS: dict[str, tuple[str, Callable[[random.Random], str]]] = {
    "diff": ("show_diff", diff),
    "trace": ("run_tests", stack_trace),
    "json": ("query", json_result),
    "shell": ("shell", shell),
}
"""Tool and text generator by kind of result."""
Kind = Literal["diff", "trace", "json", "shell"]


class Tools(Transform):
    """Offer the project's tool schemas.

    `choice`: "none" shows them and asks for an answer in words, which any server can do; "auto" and
    "required" let the model call them, for which vLLM must know its call format
    (--enable-auto-tool-choice --tool-call-parser).
    """

    name: ClassVar[str] = "tools"
    choice: Literal["none", "auto", "required"] = "none"

    def apply(self, prompt: Prompt, source: random.Random, facts: Facts) -> Prompt:
        need_messages(prompt, self.name)
        return replace(prompt, tools=TOOLS).with_options(tool_choice=self.choice)


class AgentLoop(Transform):
    """Add `steps` iterations of an agent's loop after the task, each a call and its result.

    The results cycle through `kinds`: code diffs, stack traces, JSON, shell output. `inline` writes
    them as plain text in turns of assistant and user, for models whose template supports no tools.
    """

    name: ClassVar[str] = "agent_loop"
    steps: int = Field(default=4, gt=0)
    kinds: tuple[Kind, ...] = ("diff", "trace", "json", "shell")
    inline: bool = False

    def apply(self, prompt: Prompt, source: random.Random, facts: Facts) -> Prompt:
        need_messages(prompt, self.name)
        turns: list[Message] = []
        for step in range(self.steps):
            tool, make = _RESULTS[self.kinds[step % len(self.kinds)]]
            turns += (_inline if self.inline else _called)(tool, f"call{step}", make(source))
        return prompt.with_messages([*prompt.messages, *turns])


def _called(tool: str, name: str, result: str) -> list[Message]:
    arguments = strict_json.dumps({"step": name})
    call = {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": name, "content": result},
    ]


def _inline(tool: str, name: str, result: str) -> list[Message]:
    return [
        {"role": "assistant", "content": f"I call {tool} ({name})."},
        {"role": "user", "content": f"Result of {tool} ({name}):\n{result}"},
    ]
