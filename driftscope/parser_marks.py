"""Marks that models put around tool calls and thinking, by the engine's parser that reads them.

One table, `FORMATS`, has all of them. Its marks are those that the parsers of vLLM 0.32
(vllm/tool_parsers, vllm/reasoning, vllm/parser) and SGLang 0.5.23 (sglang/srt/function_call,
sglang/srt/parser/reasoning_parser.py) look for. A parser that is neither here nor in `NOT_COVERED`
is unknown: its calls are prose, and a run says so. To add one, add its name to the row whose marks
it looks for, or a row; tests/unit/test_regions.py walks the engines' lists of parsers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from driftscope.unknown import Unknown
from driftscope.vocabulary import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """A pair of marks and the region between them."""

    region: str
    """JSON for a tool call, THINKING; PROSE for a mark that only frames ordinary text."""
    opening: str
    """Regular expression of the mark without capturing groups. It begins with `(?=` if the call has
    no mark, and is known by how it begins."""
    closing: str = ""
    """Regular expression of the marks that end it. Without one, a call ends with its JSON or Python
    value, if it is one, or else with the answer."""
    parsers: str = ""
    """Names of the engines' parsers that look for it, separated by spaces."""
    named: bool = False
    """Whether it is looked for only if the engine names one of `parsers`: its marks also occur in
    ordinary text."""

    @property
    def has_mark(self) -> bool:
        """Return whether a mark opens it."""
        return not self.opening.startswith("(?=")

    @property
    def begins_line(self) -> bool:
        """Return whether it is looked for at the beginning of a line only: it begins like text."""
        return re.match(r"(?:\(\?:)?<|◁|\\[\[\]]", self.opening) is None


def _tool(opening: str, closing: str, parsers: str, *, named: bool = False) -> Enclosure:
    return Enclosure(
        region=Region.JSON, opening=opening, closing=closing, parsers=parsers, named=named
    )


def _thinking(opening: str, closing: str, parsers: str) -> Enclosure:
    return Enclosure(region=Region.THINKING, opening=opening, closing=closing, parsers=parsers)


def _frame(mark: str, parsers: str) -> Enclosure:
    return Enclosure(region=Region.PROSE, opening=mark, parsers=parsers)


_SUFFIX = r"(?::[^\s<>]+)?"
"""Suffix of Hunyuan's tokens, such as `:opensource`."""
_TURN = r"(?:<\|start\|>\s*assistant)"
_HARMONY_END = r"<\|(?:call|end|return)\|>|(?=<\|start\|>)"
_MUSE_END = r"<\|eo[mt]\|>|(?=<\|start\|>)"
_HEADER = r"[^<\n]{0,200}?"
_MESSAGE = rf"(?:<\|constrain\|>{_HEADER})?<\|message\|>"
_CALL = r"[A-Za-z_][\w.]*\((?:\s*\w+\s*=|\s*\))"
"""Beginning of a call in Python's syntax; tools have keyword arguments only."""

FORMATS: Sequence[Enclosure] = (
    # Tool calls between two marks.
    _tool(
        "<tool_call>",
        "</tool_call>",
        "hermes qwen3_json qwen3_xml qwen3_coder mimo step3p5 nanbeige qwen qwen25 trinity xlam "
        "ernie45 glm glm45 glm47 ling3 spark25 poolside_v1 granite granite4",
    ),
    _tool("<function=", "</function>", "qwen3_xml qwen3_coder mimo step3p5 nanbeige"),
    _tool(r"<function\s*name=", "</function>", "minicpm5"),
    _tool(
        rf"<tool_calls{_SUFFIX}>",
        rf"</tool_calls{_SUFFIX}>",
        "jamba hunyuan hunyuan_a13b hy_v3 hy_v4",
    ),
    _tool("<function_calls>", "</function_calls>", "olmo3"),
    _tool("<seed:tool_call>", "</seed:tool_call>", "seed_oss"),
    _tool("<minimax:tool_call>", "</minimax:tool_call>", "minimax_m2 minimax-m2"),
    _tool(
        r"\]<\]minimax\[>\[<tool_call>",
        r"\]<\]minimax\[>\[</tool_call>",
        "minimax_m3 minimax-m3",
    ),
    _tool("<longcat_tool_call>", "</longcat_tool_call>", "longcat"),
    _tool("<dots_function_call>", "</dots_function_call>", "dots"),
    _tool("<iquest_tool_call>", "</iquest_tool_call>", "iquest_q1"),
    _tool(r"<ifm\|tool_calls>", r"</ifm\|tool_calls>", "k2_horizon"),
    _tool(r"<ifm\|tool_call>", r"</ifm\|tool_call>", "k2_horizon"),
    _tool("<start_function_call>", "<end_function_call>", "functiongemma"),
    _tool(r"<\|tool_call>", r"<tool_call\|>", "gemma4"),
    _tool(r"<\|tool_call_start\|>", r"<\|tool_call_end\|>", "lfm2"),
    _tool(r"<\|tools_prefix\|>", r"<\|tools_suffix\|>", "apertus apertus2509"),
    _tool(r"<\|START_ACTION\|>", r"<\|END_ACTION\|>", "cohere_command3 cohere_command4"),
    _tool(
        r"<\|action_start\|>\s*<\|(?:plugin|interpreter)\|>",
        r"<\|action_end\|>",
        "internlm interns1",
    ),
    _tool(r"<\|tool_calls_section_begin\|>", r"<\|tool_calls_section_end\|>", "kimi_k2"),
    _tool(r"<\|open\|>\s*tools\s*<\|sep\|>", r"<\|close\|>\s*tools\s*<\|sep\|>", "kimi_k3"),
    _tool(
        r"<\|plamo:begin_tool_requests:plamo\|>",
        r"<\|plamo:end_tool_requests:plamo\|>",
        "plamo3",
    ),
    _tool(
        r"<\|content_invoke_tool_json\|>",
        r"<\|end_message\|>|<\|content_model_end_sampling\|>",
        "inkling",
    ),
    _tool(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "deepseek_v3 deepseek_v31 deepseekv3 deepseekv31",
    ),
    _tool(
        "<｜DSML｜(?:function_calls|tool(?:_?calls)?| calls)>",
        "</｜DSML｜(?:function_calls|tool(?:_?calls)?| calls)>",
        "deepseek_v32 deepseek_v4 deepseek_v41 deepseekv32 deepseekv4 deepseekv41",
    ),
    _tool("<｜GCML｜tool_calls>", "</｜GCML｜tool_calls>", "gigachat35"),
    _tool("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "step3"),
    # OpenAI's Harmony: the recipient stands before or after the channel.
    _tool(
        rf"{_TURN}?<\|channel\|>{_HEADER}\bto={_HEADER}{_MESSAGE}", _HARMONY_END, "openai gpt-oss"
    ),
    _tool(
        rf"{_TURN}\s?to=[^\s<]+\s?<\|channel\|>{_HEADER}{_MESSAGE}",
        _HARMONY_END,
        "openai gpt-oss beam",
    ),
    _tool(rf"to=[^\s<]+\s?<\|channel\|>{_HEADER}{_MESSAGE}", _HARMONY_END, "openai gpt-oss beam"),
    # Muse Glimmer: a message's recipient is a tool.
    _tool(
        rf"{_TURN}\s?to=(?!(?:self|user|commentary)<)[\w.-]+<\|message\|>",
        _MUSE_END,
        "muse_glimmer muse",
    ),
    _tool(r"to=(?!(?:self|user|commentary)<)[\w.-]+<\|message\|>", _MUSE_END, "muse_glimmer muse"),
    # Tool calls that end with their value.
    _tool(r"<\|tool_call\|>", "", "granite"),
    _tool("<function_call>", "", "granite-20b-fc"),
    _tool(r"<\|python_tag\|>", "", "llama3_json llama4_json llama3"),
    _tool(r"<\|python_start\|>", r"<\|python_end\|>", "llama4_pythonic"),
    _tool(r"\[TOOL_CALLS\](?=\s*[\w.-]*(?:[\[{]|\Z))", r"(?=\[TOOL_CALLS\])", "mistral xlam"),
    _tool(r"<\|function_call\|>", r"<\|message_sep\|>", "gigachat3"),
    _tool(r"function call<\|role_sep\|>\n", r"<\|message_sep\|>", "gigachat3"),
    _tool(r"functools(?=\[)", "", "phi4_mini_json"),
    _tool(rf"(?=\[\s*{_CALL})", "", "pythonic llama4_pythonic"),
    _tool(r"(?=\{\s*\")", "", "llama3_json llama4_json llama3"),
    _tool(r"(?=\[\s*\{\s*\")", "", "xlam"),
    _tool(rf"(?={_CALL})", r"\n(?!\s*[A-Za-z_][\w.]*\()", "olmo3", named=True),
    # Thinking.
    _thinking(
        rf"<think{_SUFFIX}>",
        rf"</think{_SUFFIX}>",
        "deepseek_r1 deepseek_v3 deepseek_v4 deepseek_v41 deepseek-r1 deepseek-v3 deepseek-v4 "
        "deepseek-v41 holo2 poolside_v1 ernie45 glm45 glm47 ling3 granite_thinking_parser "
        "hunyuan hunyuan_a13b hy_v3 hy_v4 kimi_k2 mimo minicpmv minimax minimax-append-think "
        "minimax_m2 minimax_m2_append_think mistral nemotron_v3 nemotron_3 olmo3 qwen3 "
        "qwen3-thinking nanbeige dots interns1 gigachat35 iquest_q1 step3 step3p5",
    ),
    _thinking(r"\[THINK\]", r"\[/THINK\]", "mistral"),
    _thinking("<seed:think>", "</seed:think>", "seed_oss"),
    _thinking("<mm:think>", "</mm:think>", "minimax_m3 minimax-m3"),
    _thinking(r"<ifm\|think(?:_fast(?:er)?)?>", r"</ifm\|think(?:_fast(?:er)?)?>", "k2_horizon"),
    _thinking("◁think▷", "◁/think▷", "kimi"),
    _thinking(r"<\|channel>(?:thought\b\n?)?", r"<channel\|>", "gemma4"),
    _thinking(r"<\|inner_prefix\|>", r"<\|inner_suffix\|>", "apertus2509"),
    _thinking(r"<\|START_THINKING\|>", r"<\|END_THINKING\|>", "cohere_command3 cohere_command4"),
    _thinking(r"<\|open\|>\s*think\s*<\|sep\|>", r"<\|close\|>\s*think\s*<\|sep\|>", "kimi_k3"),
    _thinking(r"<\|plamo:begin_think:plamo\|>", r"<\|plamo:end_think:plamo\|>", "plamo3"),
    _thinking(r"<\|content_thinking\|>", r"<\|end_message\|>", "inkling"),
    _thinking(
        rf"{_TURN}?<\|channel\|>analysis{_HEADER}<\|message\|>",
        _HARMONY_END,
        "openai_gptoss gpt-oss beam",
    ),
    _thinking(rf"{_TURN}\s?to=self<\|message\|>", _MUSE_END, "muse_glimmer muse"),
    _thinking(r"to=self<\|message\|>", _MUSE_END, "muse_glimmer muse"),
    _thinking(
        r"(?<![\s\S])Here(?:'s| is) my thought process:(?=[\s\S]*?Here(?:'s| is) my response:)",
        r"Here(?:'s| is) my response:",
        "granite",
    ),
    # Marks around ordinary text.
    _frame(rf"{_TURN}?<\|channel\|>{_HEADER}{_MESSAGE}", "openai gpt-oss beam"),
    _frame(rf"{_TURN}\s?(?:to=[\w.-]+)?<\|message\|>", "muse_glimmer muse"),
    _frame(r"to=[\w.-]+<\|message\|>", "muse_glimmer muse"),
    _frame(r"<\|(?:end|return|call|eom|eot)\|>", "openai gpt-oss beam muse_glimmer muse"),
    _frame(r"<\|(?:START|END)_(?:TEXT|RESPONSE)\|>", "cohere_command3 cohere_command4"),
    _frame(r"<\|(?:open|close)\|>\s*(?:response|message)\s*<\|sep\|>", "kimi_k3"),
    _frame(
        r"<\|message_model\|>(?:[^<\n]*(?=<\|content_))?"
        r"|<\|(?:content_(?:text|model_end_sampling)|end_message)\|>",
        "inkling",
    ),
    _frame(r"<\|message_sep\|>", "gigachat3 gigachat35"),
    _frame("</?answer>", "hunyuan_a13b"),
    _frame("</?response>", "ernie45"),
)

NOT_COVERED = {
    "hf": "its marks stand in the checkpoint's response template",
    "response_template": "its marks stand in the checkpoint's response template",
}
"""Parsers of either kind whose marks no row can hold, and why."""


def parsers_of(region: str) -> frozenset[str]:
    """Return the names of the tool parsers (JSON) or reasoning parsers (THINKING) in `FORMATS`."""
    return frozenset(
        name for row in FORMATS if row.region == region for name in row.parsers.split()
    )


def formats_of(tool_parser: str | None, reasoning_parser: str | None) -> tuple[Enclosure, ...]:
    """Return the rows to look for in answers of an engine with these parsers. None: the engine
    names none, and all rows are looked for that need no name. An unknown name has no rows."""
    asked = {Region.JSON: tool_parser, Region.THINKING: reasoning_parser}

    def applies(row: Enclosure) -> bool:
        names = row.parsers.split()
        if row.named:
            return tool_parser in names or reasoning_parser in names
        name = asked.get(row.region)
        return name is None or name in names

    return tuple(filter(applies, FORMATS))


def unknown_parsers(tool_parser: str | None, reasoning_parser: str | None) -> tuple[Unknown, ...]:
    """Return the parsers whose marks are unknown, for the notes of a run."""
    asked = (
        (Region.JSON, "the format of tool calls", tool_parser),
        (Region.THINKING, "the format of thinking", reasoning_parser),
    )
    return tuple(
        Unknown(
            what=f"{what} of parser {name}",
            instead="its text counts as prose",
            not_recognised=(NOT_COVERED.get(name, "its marks"),),
            adding="add the parser to a row of driftscope/parser_marks.py",
        )
        for region, what, name in asked
        if name is not None and name not in parsers_of(region)
    )


def named_parser(arguments: Sequence[str], option: str) -> str | None:
    """Return the value of an option such as "--tool-call-parser" among a server's command-line
    arguments, which may be written with underscores or "="; None if it is not there."""
    for place, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name.replace("_", "-") == option:
            return value or next(iter(arguments[place + 1 : place + 2]), None)
    return None
