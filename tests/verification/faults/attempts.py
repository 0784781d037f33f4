"""Cases beyond damaged runs: models, other tools' files, nulls in lists, removal, hostile peers."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import torch
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
from support.hostile.server import METRICS, OPENAI
from support.odd_runs import ROOT

from driftscope.errors import EXIT_ERROR, EXIT_OK, DriftscopeError
from driftscope.ingest.catalogue import READERS
from driftscope.inspect.config_fields import FIELDS
from driftscope.inspect.trial import target
from driftscope.telemetry import watch as follow
from driftscope.trace.reader import read_trace
from driftscope.workloads.client import replay, server
from driftscope_lab.trio import trio_path
from verification.faults.command import (
    Outcome,
    argument_of,
    check_files,
    damaged,
    outcome_of,
    text_of,
)
from verification.faults.mutations import MUTATIONS, table_of, write_table


def _with_nulls(random: Random, sound: Path, folder: Path) -> Path:
    """Return a copy of a run in which some elements of a list column are null."""
    run = Path(shutil.copytree(sound, folder / "run"))
    path = random.choice(sorted(p for p in run.iterdir() if p.suffix in (".parquet", ".arrows")))
    table = table_of(path)
    lists = [f for f in table.schema if pa.types.is_list(f.type)]
    if lists:
        field, share = random.choice(lists), random.choice((0.05, 0.5, 1.1))
        rows = [
            values and [None if random.random() < share else value for value in values]
            for values in table.column(field.name).to_pylist()
        ]
        at = table.schema.get_field_index(field.name)
        write_table(path, table.set_column(at, field, pa.array(rows, field.type)))
    for status in run.glob("status-*.json"):  # it describes the original file
        status.write_text(json.dumps({**json.loads(status.read_text()), "digests": {}}))
    return run


def read_nulls(random: Random, sound: Path, folder: Path) -> None:
    """Null elements are NaN, or the file is refused."""
    try:
        trace = read_trace(_with_nulls(random, sound, folder))
    except DriftscopeError as error:
        assert "\n" not in str(error)
        return
    for table in (trace.draft, trace.verify, trace.request, trace.client):
        for field in table.schema:
            if pa.types.is_list(field.type):
                flat = table.column(field.name).combine_chunks().flatten()
                assert not flat.null_count, f"{field.name} has nulls"


def analyse_nulls(random: Random, sound: Path, folder: Path) -> None:
    """A run with null elements is analysed, or refused in one line."""
    run = _with_nulls(random, sound, folder)
    done = outcome_of(["analyze", run, "-q", "-o", folder / "r.html", "--json"])
    assert "Warning" not in done.err


def list_runs(random: Random, sound: Path, folder: Path) -> None:
    """`ls` lists every run, whatever is wrong with some of them."""
    runs = folder / "runs"
    for number in range(4):
        run = Path(shutil.copytree(sound, runs / f"{number}" / "run"))
        if number:
            MUTATIONS[random.choice(("bits", "json values", "columns", "files"))](run, random)
    done = outcome_of(["ls", runs, "--json"])
    assert done.code == EXIT_OK and "Warning" not in done.err
    assert any("/0/run" in entry["path"] for entry in json.loads(done.out)["runs"])


OLD_S = 1_700_000_000
_FOREIGN = (
    ("manifest.json", '{"name": "my app", "icons": []}'),
    ("manifest.json", '{"schema_version": "3.0", "modules": []}'),
    ("status-page.json", '{"closed": true}'),
    ("status-worker0-1.json", "[]"),
    ("fault-report.json", '{"my": "data"}'),
    ("request-log-2024.parquet", "PAR1"),
    ("draft-thesis-0001.parquet", "PAR1"),
    ("notes.txt", "precious"),
    (".hidden", "precious"),
)
_COMMANDS = (
    *(("rm", "{each}", "-y"), ("rm", "{each}", "-y", "--unclosed")),
    *(("prune", "{all}", "--older-than", "1s", "--keep", "0", "-y"),),
    *(("prune", "{all}", "--max-total", "1", "--keep", "0", "--dry-run", "--json"),),
)


def remove_runs(random: Random, sound: Path, folder: Path) -> None:
    """`rm` and `prune` leave whatever is not a run, or has a file that no recorder wrote."""
    runs, foreign = folder / "runs", dict[Path, str]()
    for number in range(4):
        place = runs / f"r{number}"
        is_run = random.random() < 0.6
        shutil.copytree(sound, place) if is_run else place.mkdir(parents=True)
        for _ in range(random.choice((0, 1, 2)) if is_run else random.choice((1, 2, 3))):
            name, content = random.choice(_FOREIGN)
            if is_run and name in ("manifest.json", "status-worker0-1.json"):
                continue
            (place / name).write_text(content)
            foreign[place / name] = content
        for path in (*place.iterdir(), place):
            os.utime(path, (OLD_S, OLD_S))
    command = random.choice(_COMMANDS)
    before = sorted(runs.rglob("*"))
    for place in [runs / f"r{n}" for n in range(4)] if "{each}" in command else [runs]:
        words = [word.format(each=place, all=place) for word in command]
        done = outcome_of(words)
        assert done.code in (EXIT_OK, EXIT_ERROR)
        if "--json" in command and done.code == EXIT_OK:
            json.loads(done.out)
    gone = [path for path in foreign if not path.exists()]
    assert not gone, f"{gone[0].name} of somebody else was removed by {command[0]}"
    assert "--dry-run" not in command or sorted(runs.rglob("*")) == before


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


ANSWER_TOKENS = 8
"""Tokens of the target's answers, in place of those of a real ablation."""
SECONDS_OF_A_FILE = 3.0
"""CPU time that a file of less than a megabyte may take."""
SAMPLES = ROOT / "tests/unit/ingest/samples"
_LEAST = ("--prompts", "trio", "--k", "1", "--most-prompts", "5", "--positions", "1")
_INTERVENTIONS = ("--interventions", "hide-sink")


def ingest(random: Random, _: Path, folder: Path) -> None:
    """A damaged file of another tool is refused in one line, or gives figures; a run written from
    one is analysed, checked and compared without an unforeseen error."""
    path = _damaged_sample(random, folder)
    how = random.randrange(4)
    if how == 0:
        outcome_of(["ingest", path, "--json"])
    elif how == 1:
        outcome_of(["ingest", path, "--format", random.choice(sorted(READERS)), "--json"])
    elif how == 2:
        pages = [path, random.choice(sorted(SAMPLES.glob("prometheus-*.txt")))]
        random.shuffle(pages)
        outcome_of(["ingest", "--window", *pages, "--json"])
    else:
        _use(path, folder)


def _damaged_sample(random: Random, folder: Path) -> Path:
    sample = random.choice(sorted(SAMPLES.iterdir()))
    path = folder / sample.name
    path.write_bytes(damaged(sample.read_bytes(), random))
    return path


def _use(path: Path, folder: Path) -> None:
    """Write a run from a file, and give it to the commands that take one."""
    run, out = folder / "ingested", folder / "out"
    out.mkdir()
    if outcome_of(["ingest", path, "-o", run]).code != EXIT_OK:
        assert not run.exists(), "a run that was refused was begun"
        return
    done = outcome_of(["analyze", run, "-q", "-o", out / "r.html", "--json"])
    assert done.code == EXIT_OK, f"an ingested run is not analysed: {done.err[:200]!a}"
    check_files(out)
    outcome_of(["check", run, "--fail-on", "cells[0].mean_length < 2", "--json"])
    outcome_of(["compare", run, run, "--json"])


MARKS = (
    *("SpecDecoding metrics:", "Decode batch", "Finish: obj=", "draft acceptance", "statistics "),
    *("accept len: 1.5", "Accepted: 9 tokens", "Drafted: 18 tokens", "Per-position acceptance "),
    *("rate: 0.9, 0.8", "ean acceptance length: 2.5", "#running-req: 3", "(a pid=1)", "[pod/a]"),
    *(" ", "\x1b[1m", "{", '{"log": "', "9" * 400, ",", "\n"),
)
"""Parts of lines of logs, of which a hostile file has too many."""


def repeat_marks(random: Random, _: Path, folder: Path) -> None:
    """A log of marks in any order, in long lines, is read in linear time."""
    parts = random.sample(MARKS, random.randint(1, 4))
    text = "".join(parts) * (random.choice((1_000, 60_000, 600_000)) // len("".join(parts)))
    path = folder / "server.log"
    path.write_text(text)
    began_s = time.process_time()
    outcome_of(["ingest", path, "--json"])
    assert time.process_time() - began_s < SECONDS_OF_A_FILE, "a log took too long"


_COUNTS = (0, 1, -1, 3, 10**6, 10**9, 2**62, 2**63, 10**400, 1.5, None, True, "7", float("nan"))


def count_rounds(random: Random, _: Path, folder: Path) -> None:
    """A result with numbers of any size takes neither long nor much memory."""
    names = ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens", "num_spec_tokens")
    counts: dict[str, object] = {name: random.choice(_COUNTS) for name in names}
    if random.random() < 0.5:
        rounds = random.choice((10, 10**6, 10**9))
        counts = dict.fromkeys(names, rounds) | {"num_spec_tokens": 3}
        counts["acceptance_histogram"] = [0, rounds]
    else:
        size = random.choice((1, 3, 2000))
        counts["acceptance_histogram"] = [random.choice(_COUNTS) for _ in range(size)]
    row = json.dumps({"id": "a", "metrics": {"speculative_decoding": counts}})
    path = folder / "responses.jsonl"
    path.write_text(f"{row}\n" * random.choice((1, 2, 60)))
    began_s = time.process_time()
    outcome_of(["ingest", path, "-o", folder / "run"])
    assert time.process_time() - began_s < SECONDS_OF_A_FILE, "a result took too long"


def ablate(random: Random, _: Path, folder: Path) -> None:
    """A damaged drafter, target or set of prompts, or a hostile option, is refused in one line; if
    the models can be run all the same, the result is JSON."""
    with _short_answers():
        done = random.choice(_ABLATIONS)(random, folder)
    assert done.code == EXIT_OK or not done.out, "an error and a result"


@contextlib.contextmanager
def _short_answers() -> Iterator[None]:
    """Have the target answer in a few tokens, on one core: the campaign takes the others."""
    before, threads = target.ANSWER_TOKENS, torch.get_num_threads()
    target.ANSWER_TOKENS = ANSWER_TOKENS
    torch.set_num_threads(1)
    try:
        yield
    finally:
        target.ANSWER_TOKENS = before
        torch.set_num_threads(threads)


def _run(drafter: object, target: object, *more: object) -> Outcome:
    return outcome_of(
        ["ablate", drafter, "--target", target, *_LEAST, *_INTERVENTIONS, *more, "--json"]
    )


def _broken_drafter(random: Random, folder: Path) -> Outcome:
    return _run(_copy("eagle3", random, folder), trio_path() / "target")


def _broken_target(random: Random, folder: Path) -> Outcome:
    return _run(trio_path() / "eagle3", _copy("target", random, folder))


def _copy(name: str, random: Random, folder: Path) -> Path:
    """Return a copy of a shipped model in which one file is damaged, cut off or missing."""
    model = Path(shutil.copytree(trio_path() / name, folder / name))
    file = random.choice(sorted(path for path in model.iterdir() if path.is_file()))
    content = file.read_bytes()
    if random.random() < 0.1:
        file.unlink()
    elif file.suffix == ".safetensors":
        head = min(len(content), 4096)
        file.write_bytes(damaged(content[:head], random) + content[head:])
    else:
        file.write_bytes(damaged(content, random))
    return model


def _prompts(random: Random, folder: Path) -> Outcome:
    path = folder / "prompts.jsonl"
    path.write_bytes(damaged(b'{"prompt": "a"}\n{"turns": ["b", "c"]}\n' * 5, random))
    return _run(trio_path() / "eagle3", trio_path() / "target", "--prompts", path)


def _option(random: Random, _: Path) -> Outcome:
    text = argument_of(text_of(random))
    option = random.choice(("--interventions", "--prompts", "--target", "--k", "--positions"))
    return _run(trio_path() / "eagle3", trio_path() / "target", option, text)


_ABLATIONS: tuple[Callable[[Random, Path], Outcome], ...] = (
    _broken_drafter,
    _broken_target,
    _prompts,
    _option,
)


DEADLINE_S = 1.0
"""Time for a whole answer, in seconds, instead of the longer time that a real server gets."""
KEY_VARIABLE, KEY = "FAULTS_API_KEY", "sk-0123456789abcdefghij"
SUITE = "{prompts: chat, baseline: as asked, conditions: {as asked: []}, settings: {max_tokens: 4}}"
SERVERS = {"watch": sorted(METRICS), "replay": sorted(OPENAI)}
"""Behaviours of a server, by the command that contacts it."""
_url = ""


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Run the hostile server in a separate process, for this process and those forked from it."""
    global _url  # forked processes find it there
    with subprocess.Popen(
        [sys.executable, "-m", "support.hostile.server"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        _url = process.stdout.readline().strip()
        try:
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def _short_deadlines() -> Iterator[None]:
    modules: Sequence[Any] = (follow, server, replay)
    before = [module.LIMITS for module in modules]
    for module in modules:
        module.LIMITS = replace(module.LIMITS, seconds=DEADLINE_S)
    try:
        yield
    finally:
        for module, limits in zip(modules, before, strict=True):
            module.LIMITS = limits


def ask_server(command: str, random: Random, _: Path, folder: Path) -> None:
    """Run `command` against one behaviour of a hostile server."""
    behaviour = random.choice(SERVERS[command])
    key = ["--api-key-env", KEY_VARIABLE]
    if command == "watch":
        arguments = ["watch", _url + behaviour, "--once"]
    else:
        (folder / "suite.yaml").write_text(SUITE)
        arguments = ["replay", f"{_url}{behaviour}/v1", "--suite", str(folder / "suite.yaml")]
        arguments += ["-o", str(folder / "run"), "--limit", "2", "--warmup", "0", *key]
        arguments += ["--timeout", f"{DEADLINE_S}", "--retries", "0"]
    with _short_deadlines():
        found = outcome_of(arguments, {KEY_VARIABLE: KEY})
    _check(command, behaviour, found, folder)


def _check(command: str, behaviour: str, found: Outcome, folder: Path) -> None:
    if found.code and command == "watch":  # a single request: a fault is one line
        lines = found.err.splitlines()
        assert len(lines) == 1, f"{behaviour}: {len(lines)} lines: {found.err[:300]!a}"
        assert lines[0].startswith("driftscope: error: "), f"{behaviour}: {lines[0][:200]!a}"
        assert len(lines[0]) < 1000, f"{behaviour}: a line of {len(lines[0])} characters"
    assert found.code == 0 or found.err, f"{behaviour}: nothing was printed"
    secret = KEY[2:-2]
    assert secret not in found.out + found.err, f"{behaviour}: the API key was printed"
    for path in folder.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), f"{behaviour}: the key is in a file"
