"""The conditions under which drafters are measured, and runs of a seed recorded in live vLLM.

python -m driftscope_lab.phenomenon.recording WEIGHTS DRAFTER [PROMPTS]

This is the child process that records one drafter under every condition.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from driftscope.errors import DriftscopeError
from driftscope_lab.demo.engine import Load, Request, serve
from driftscope_lab.demo.launch import engine_environment
from driftscope_lab.trio import encode, load_prompts
from driftscope_lab.trio.prompts import (
    Conversation,
    Length,
    Prompt,
    fitting,
    in_plain_text,
    templated,
    with_other_roles,
)

AS_TRAINED = "as trained"
CONTEXTS = (128, 512, 1024, 1936)
"""Further contexts in the trained form; the prompts are at most so long, in tokens."""
OTHER_SYSTEM = "Reply to every message in the style of a polite librarian from the north."
"""System prompt that no model was trained on."""

FORMS: dict[str, Callable[[Conversation], str]] = {
    AS_TRAINED: templated,
    "other system prompt": lambda one: templated(dataclasses.replace(one, system=OTHER_SYSTEM)),
    "no system prompt": lambda one: templated(dataclasses.replace(one, system=None)),
    "no first token": lambda one: templated(one, first=""),
    "other roles": with_other_roles,
    "plain text": in_plain_text,
    "plain text, no first token": lambda one: in_plain_text(one, first=""),
}
"""Name of each form of the template -> rendering."""
PERTURBED = tuple(form for form in FORMS if form != AS_TRAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One request: a prompt in a condition."""

    condition: str
    prompt: str
    text: str


def context_name(tokens: int) -> str:
    """Return the name of a context's condition."""
    return f"context {tokens}"


def conditions() -> tuple[str, ...]:
    """Return the names of all conditions."""
    return (*FORMS, *map(context_name, CONTEXTS))


def items(prompts: Sequence[Prompt], length: Length) -> Iterator[Item]:
    """Yield every prompt in every condition, prompt by prompt, so that a run that is cut short has
    all conditions of its prompts."""
    for prompt in prompts:
        short = prompt.conversation(prompt.short)
        for form, render in FORMS.items():
            yield Item(condition=form, prompt=prompt.id, text=render(short))
        for tokens in CONTEXTS:
            text = templated(prompt.conversation(fitting(prompt, tokens, length)))
            yield Item(condition=context_name(tokens), prompt=prompt.id, text=text)


DRAFTERS = {"EAGLE-3": "eagle3", "EAGLE-3.1": "eagle31"}
"""Name of each drafter -> its folder under a seed."""
SINK = "0,"
"""The sink set of every run: the first token's slot."""
FINISHED = "finished"
K = 8
LOAD = Load(k=K, max_tokens=96, at_once=8, context=2048)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """One seed's drafters: the folder that has `eagle3` and `eagle31`."""

    name: str
    folder: Path


def seeds_of(weights: Path) -> tuple[Seed, ...]:
    """Return the seeds trained on the target in `weights`: its folders seed-*, or those shipped
    beside the target. Raises DriftscopeError without any."""
    folders = sorted(path for path in weights.glob("seed-*") if _has_drafters(path))
    if _has_drafters(weights):
        folders.insert(0, weights)
    if not folders:
        raise DriftscopeError(f"{weights}: no folder with the drafters eagle3 and eagle31 in it")
    return tuple(
        Seed(name="shipped" if folder == weights else folder.name, folder=folder)
        for folder in folders
    )


def _has_drafters(folder: Path) -> bool:
    return all((folder / name / "config.json").is_file() for name in DRAFTERS.values())


def record(weights: Path, seed: Seed, out: Path, prompts: int | None) -> dict[str, Path]:
    """Record both drafters of a seed on the first `prompts` prompts, or all, in every condition;
    return the run of each. Finished runs in `out` are kept.

    Raises DriftscopeError if an engine fails.
    """
    runs = {name: out / seed.name / folder for name, folder in DRAFTERS.items()}
    started = []
    for core, (name, run) in enumerate(runs.items()):
        if not run.with_suffix(f".{FINISHED}").is_file():
            arguments = [str(weights), str(seed.folder / DRAFTERS[name])]
            arguments += [] if prompts is None else [str(prompts)]
            started.append((run, _start(arguments, run, core)))
    for run, process in started:
        if process.wait():
            raise DriftscopeError(
                f"the engine of {run} ended with code {process.returncode}; its log is "
                f"{run.with_suffix('.log')}"
            )
        run.with_suffix(f".{FINISHED}").touch()
    return runs


def _start(arguments: Sequence[str], run: Path, core: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "driftscope_lab.phenomenon.recording", *arguments]
    run.parent.mkdir(parents=True, exist_ok=True)
    env = engine_environment(run, core, len(DRAFTERS)) | {"DRIFTSCOPE_SINK_TOKENS": SINK}
    with run.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(  # noqa: S603  this Python and a module of ours
            command, env=env, stdout=log, stderr=subprocess.STDOUT
        )


def main() -> None:
    """Serve every prompt in every condition; the plugin records."""
    weights, drafter = Path(sys.argv[1]), Path(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else None
    requests = [
        Request(label=item.condition, session=item.prompt, token_ids=encode(item.text, weights))
        for item in items(load_prompts(weights)[:count], lambda text: len(encode(text, weights)))
    ]
    serve(weights / "target", drafter, requests, LOAD)


if __name__ == "__main__":
    main()
