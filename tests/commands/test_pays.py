"""`driftscope pays` starts servers, asks them, stops them and compares; here with a stand-in for
vLLM that listens on a real socket. Real ones: test_examples."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from psutil import pid_exists
from support.command import Driftscope
from support.standin_engine import write_engine
from support.stub_server import stub_server
from support.waiting import until

from driftscope.cli.options import numbers
from driftscope.cli.pays import _again, contenders_of, key_variable, speculations_in
from driftscope.errors import UsageError
from driftscope_lab.trio import trio_path

pytestmark = pytest.mark.process

SERVER = """
import json, os, signal, sys
from support.stub_server import stub_server
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open(os.path.join(os.environ["STUB_LOG"], given["--port"]), "w") as log:
    json.dump({"argv": sys.argv[1:], "pid": os.getpid()}, log)
if given["--model"] == "broken":
    raise ValueError("no such model")
if given["--model"] == "slow":
    signal.pause()
with stub_server(port=int(given["--port"])):
    try:
        signal.pause()
    except KeyboardInterrupt:
        pass
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """In which vLLM is the stand-in."""
    packages = write_engine(tmp_path / "packages", "vllm.entrypoints.openai.api_server", SERVER)
    (tmp_path / "log").mkdir()
    path = os.pathsep.join([str(packages), *sys.path])
    return {"PYTHONPATH": path, "STUB_LOG": str(tmp_path / "log")}


@pytest.fixture
def pays(driftscope: Driftscope, environ: dict[str, str]) -> Driftscope:
    return lambda *arguments: driftscope("pays", *arguments, **environ)


def test_every_contender_is_served_asked_and_stopped(pays: Driftscope, tmp_path: Path) -> None:
    options = "--drafter old=a/drafter --drafter a/b -k 3 --limit 6 --concurrency 2 --rounds 2"
    done = pays("model", *options.split(), *["--dtype", "float32", "-o", "out"])
    # These servers are as fast as each other, and answer so soon that a busy machine decides.
    assert done.returncode in (0, 3, 4), done.stderr
    started = [json.loads(path.read_text()) for path in (tmp_path / "log").iterdir()]
    assert len(started) == 6 and not any(pid_exists(server["pid"]) for server in started)
    given = [dict(pairwise(server["argv"])) for server in started]
    assert {options["--dtype"] for options in given} == {"float32"}
    configs = [json.loads(options.get("--speculative-config", "{}")) for options in given]
    drafters = Counter(config.get("model") for config in configs)
    assert drafters == {None: 2, "a/drafter": 2, "a/b": 2}
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    names = ["no speculation (client)", "old (client)", "b (client)"]
    assert [replay["label"] for replay in report["replays"]] == names
    assert [replay["ended"] for replay in report["replays"]] == [{"answered": 20}] * 3
    pairs = {(pair["first"], pair["other"]) for pair in report["replays_compared"]}
    assert pairs == {(names[0], name) for name in names[1:]}
    told = [*report["answers"], *report["findings"]]
    answers = [answer for answer in told if answer["topic"] == "pays"]
    assert sorted(answer["runs"][0] for answer in answers) == ["b (client)", "old (client)"]
    again = (
        "driftscope pays model --drafter old=a/drafter --drafter a/b -k 3 --concurrency 2 --limit 6"
    )
    for answer in answers:
        assert done.stdout.count(f"pays: {answer['answer']}. {answer['runs'][0]}: ") == 1
        if answer["answer"] == "cannot tell":
            advice = f"To know more surely, run `{again} --dtype float32 --rounds 4`."
            assert answer["advice"] == advice
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


def test_a_server_that_does_not_come_up(pays: Driftscope) -> None:
    done = pays("broken", "--drafter", "a/d", "-o", "out")
    assert done.returncode == 1
    words = "error: the server with no speculation ended with code 1.*ValueError: no such model"
    assert re.search(f"{words}.*its log is out/no", done.stderr)


def test_no_server_is_left_when_the_benchmark_is_told_to_end(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """Here before it answers; while it is asked, a replay stops as by Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-m", "driftscope", "pays", "slow", "--drafter", "a/d", "-o", "out"],
        cwd=tmp_path,
        env={**os.environ, **environ},
        stderr=subprocess.DEVNULL,
    )
    log = tmp_path / "log"
    until(lambda: any(path.stat().st_size for path in log.iterdir()), 60)
    (started,) = log.iterdir()
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert not pid_exists(json.loads(started.read_text())["pid"])


def test_nothing_to_serve(pays: Driftscope) -> None:
    done = pays("model")
    assert done.returncode == 2 and "give --drafter, or --speculative-config" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("model --drafter nope", "nope: no drafter is there; give a folder, or OWNER/NAME"),
        ("model --without :1", "--without :1: give the URL of a server in place of model, too"),
        ("http://h:1 -k 2 --limt 3", "h:1 runs already, so it takes no --drafter, -k or option"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_a_server_starts(
    pays: Driftscope, arguments: str, words: str
) -> None:
    done = pays(*arguments.split())
    assert done.returncode == 2 and words in done.stderr


def test_contenders() -> None:
    found = contenders_of("m", ["a/b"], [2, 8], ["--x", "1"])
    assert [run.label for run in found] == ["no speculation", "b, K = 2", "b, K = 8"]
    assert found[2].speculation == {"method": "eagle3", "model": "a/b", "num_speculative_tokens": 8}
    assert found[0].speculation is None and list(found[0].options) == ["--x", "1"]


def test_a_drafter_as_vllm_names_it() -> None:
    config = {"method": "mtp", "num_speculative_tokens": 2}
    (_, found) = contenders_of(
        "m", [], [], ["--x", "1", "--speculative-config", json.dumps(config)]
    )
    assert found.speculation == config and list(found.options) == ["--x", "1"]
    by_path = contenders_of(str(trio_path() / "target"), [], [], ["-sc", json.dumps(config)])
    assert "float32" in by_path[0].options, "as a run's own target is named"
    (_, found) = contenders_of("trio", [], [], [])
    assert (found.speculation or {})["model"] == str(trio_path() / "eagle31")


def test_the_shipped_trio_by_name() -> None:
    (_, found) = contenders_of("trio", ["eagle31"], [4], ["--max-model-len", "512"])
    assert found.model == str(trio_path() / "target")
    assert (found.speculation or {})["model"] == str(trio_path() / "eagle31")
    options = list(found.options)
    assert options.count("--max-model-len") == 1 and "512" in options and "float32" in options


@pytest.mark.parametrize(
    "option", ["--hf-token=x", "--hf_token", '{"auth": {"Password": "x"}}', "--my-api-key"]
)
def test_arguments_with_a_secret_are_not_written_down(option: str) -> None:
    context: Any = SimpleNamespace(args=["--dtype", "float32", option, "x"])
    assert _again(context) == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('{"num_speculative_tokens": "x"}', "num_speculative_tokens is 'x', not a number"),
        ('{"num_speculative_tokens": 1e400}', "num_speculative_tokens is inf, not a number"),
        ('{"num_speculative_tokens": 0}', "num_speculative_tokens is 0, not a number"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_speculation_that_is_none(value: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"^--speculative-config: {words}"):
        speculations_in(["--speculative-config", value])


@pytest.mark.parametrize("text", ["0", "x", "2.5", "-1", "inf", "nan"])
def test_draft_tokens_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="whole numbers"):
        numbers(text, "-k", whole=True)


def test_a_server_gets_its_key_and_the_cache_but_no_setting_of_a_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("MINE", "sk-0123456789"), ("DRIFTSCOPE_TRACE", "run")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DRIFTSCOPE_CACHE", "kept")
    (plain, drafting) = contenders_of("target", ["a/b"], [4], [], api_key_env="MINE")
    for contender in (drafting, plain):
        assert contender.environment()["VLLM_API_KEY"] == "sk-0123456789"
        assert contender.environment()["DRIFTSCOPE_CACHE"] == "kept"
        assert "DRIFTSCOPE_TRACE" not in contender.environment()
        assert "sk-0123456789" not in " ".join(contender.command(8000, Path("trace")))
        assert "sk-0123456789" not in repr(contender)


def test_which_variable_has_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert key_variable(None, ["--port", "1"]) is None
    monkeypatch.setenv("VLLM_API_KEY", "sk-0123456789")
    assert key_variable(None, []) == "VLLM_API_KEY"
    with pytest.raises(UsageError, match="ABSENT: --api-key-env"):
        key_variable("ABSENT", [])
    for option in (["--api-key", "sk-x"], ["--api-key=sk-x"]):
        with pytest.raises(UsageError, match="give --api-key-env NAME") as caught:
            key_variable(None, option)
        assert "sk-x" not in str(caught.value)


RUNNING = "vllm:num_requests_running 0\nprocess_start_time_seconds 1.79e+09\n"
DRAFTS = f"{RUNNING}vllm:spec_decode_num_drafts_total 0\n"
FEW = ("--limit", "6", "--concurrency", "2", "--warmup", "1", "--prompts", "chat")


def test_two_running_servers_are_asked_in_turn(driftscope: Driftscope, tmp_path: Path) -> None:
    with stub_server(metrics=DRAFTS) as drafting, stub_server(metrics=RUNNING) as plain:
        done = driftscope("pays", drafting.url, "--without", plain.url, *FEW, "-o", "out")
        turned = driftscope("pays", plain.url, "--without", drafting.url, *FEW, "-o", "other")
    assert done.returncode in {0, 3, 4}, done.stderr
    assert done.stdout.startswith("pays: ")
    assert len(drafting.seen) == len(plain.seen) == 2 * 7
    assert turned.returncode == 2 and "it was started with a drafter" in turned.stderr


@pytest.mark.parametrize(
    ("kind", "drafting", "plain"),
    [
        ("metrics", DRAFTS, RUNNING),
        ("launched", {"speculative_algorithm": "EAGLE3"}, {"speculative_algorithm": None}),
    ],
    ids=["vllm", "sglang"],
)
def test_one_server_is_compared_once_it_was_asked_both_ways(
    driftscope: Driftscope, tmp_path: Path, kind: str, drafting: object, plain: object
) -> None:
    with stub_server(piece_s=0.002, **{kind: drafting}) as server:
        first = driftscope("pays", server.url.removeprefix("http://"), *FEW, "-o", "o u t")
        setattr(server, kind, plain)
        _, command = first.stdout.split("run the same command again: driftscope ")
        second = driftscope(*shlex.split(command))
    assert first.returncode == 4, first.stderr
    assert "restart it without its drafter" in first.stdout
    assert second.returncode in {0, 3, 4} and "× as fast as without" in second.stdout
    asked = {path.name for path in (tmp_path / "o u t").iterdir() if path.is_dir()}
    assert asked == {"with-speculation", "no-speculation"}


def test_a_server_that_does_not_say_whether_it_drafts(driftscope: Driftscope) -> None:
    with stub_server() as server:
        done = driftscope("pays", server.url, *FEW)
    assert done.returncode == 2 and "give --without URL" in done.stderr
