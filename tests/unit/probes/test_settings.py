"""Where the probe's settings come from, and what is said about one that cannot be used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from driftscope.errors import ProbeError
from driftscope.trace.control import MAX_LABEL_CHARS
from driftscope.trace.schema import Pseudonyms
from driftscope_probes.settings import (
    NAMES,
    REQUEST_KEY,
    Settings,
    fix_run_directory,
    prompt_key,
    request_key,
    settings_from,
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "driftscope.toml"
    path.write_text('trace = "/runs/file"\nevery = 16\nsink_tokens = 2\ntoken_ids = true\n')
    return path


def _trace(trace: str, **settings: str) -> Settings:
    given = {"TRACE": trace, **settings}
    found = settings_from({f"DRIFTSCOPE_{name}": value for name, value in given.items()})
    assert found is not None
    return found


def test_off_unless_something_asks_for_a_trace() -> None:
    assert settings_from({}) is None
    assert settings_from({"DRIFTSCOPE_TRACE": "", "DRIFTSCOPE_EVERY": "never"}) is None


def test_the_defaults() -> None:
    assert settings_from({"DRIFTSCOPE_TRACE": "/runs/a"}) == Settings(
        trace=Path("/runs/a"),
        every=None,
        budget=0.01,
        labels=(),
        sink_tokens=4,
        sink_source="default",
        per_head=False,
        distance_every=16,
        recording="in-graph",
        strategy="auto",
        token_ids=False,
        identifiers=True,
        max_mb=2048,
        test_raise="",
    )


def test_every_setting_can_be_given() -> None:
    """By a variable and in the file; the sink's source follows from whether it was, and four
    names together say where figures go."""
    telemetry = {"otlp", "prometheus", "metric_labels", "metric_regions"}
    attributes = {field.name for field in fields(Settings)} - {"sink_source", "telemetry"}
    assert set(NAMES) == attributes | telemetry


def test_a_config_file_has_lists_and_says_where_figures_go(tmp_path: Path) -> None:
    file = tmp_path / "driftscope.toml"
    file.write_text(
        'trace = "/runs/a"\notlp = "http://collector:4318"\nprometheus = 9464\n'
        'labels = ["a", "b c"]\nbudget = 0.5\nper_head = true\n'
    )
    found = settings_from({"DRIFTSCOPE_CONFIG": str(file)})
    assert found is not None and found.telemetry is not None
    assert (found.labels, found.budget, found.per_head) == (("a", "b c"), 0.5, True)
    assert found.telemetry.prometheus == ("127.0.0.1", 9464)
    assert found.telemetry.metrics is not None
    assert found.telemetry.metrics.endpoint == "http://collector:4318/v1/metrics"


def test_every_setting_has_a_variable() -> None:
    environ = {
        "TRACE": "/runs/a",
        "EVERY": "3",
        "BUDGET": "2%",
        "PER_HEAD": "1",
        "DISTANCE_EVERY": "0",
        "LABELS": "a, b,,a",
        "SINK_TOKENS": "1",
        "TOKEN_IDS": "yes",
        "IDENTIFIERS": "off",
        "RECORDING": "shadow",
        "STRATEGY": "keys",
        "MAX_MB": "7",
        "TEST_RAISE": "after",
    }
    assert settings_from({f"DRIFTSCOPE_{k}": v for k, v in environ.items()}) == Settings(
        trace=Path("/runs/a"),
        every=3,
        budget=0.02,
        per_head=True,
        distance_every=0,
        labels=("a", "b"),
        sink_tokens=1,
        sink_source="given",
        token_ids=True,
        identifiers=False,
        max_mb=7,
        test_raise="after",
        recording="shadow",
        strategy="keys",
    )


def test_the_environment_beats_the_file(config: Path) -> None:
    found = settings_from(
        {
            "DRIFTSCOPE_CONFIG": str(config),
            "DRIFTSCOPE_TRACE": "/runs/environment",
            "DRIFTSCOPE_TOKEN_IDS": "0",
            "DRIFTSCOPE_SINK_TOKENS": "",
        }
    )
    assert found == Settings(
        trace=Path("/runs/environment"),
        every=16,
        sink_tokens=2,
        sink_source="given",
        token_ids=False,
    )


@pytest.mark.parametrize("value", ["1", "true", "YES", " on ", "perhaps", "2"])
def test_disable_wins_over_everything(config: Path, value: str) -> None:
    environ = {
        "DRIFTSCOPE_DISABLE": value,
        "DRIFTSCOPE_TRACE": "/runs/a",
        "DRIFTSCOPE_CONFIG": str(config),
        "DRIFTSCOPE_EVERY": "not a number",
    }
    assert settings_from(environ) is None


UNFIT: dict[str, tuple[str, ...]] = {
    "EVERY": ("often", "0", "-1", "1.5", "1000001"),
    "SINK_TOKENS": ("0", "4097", "four", "1,x", "0,4096", ",", "-1,2"),
    "TOKEN_IDS": ("maybe",),
    "IDENTIFIERS": ("hashed",),
    "MAX_MB": ("0", "2GB"),
    "BUDGET": ("0", "1.5", "1%%", "nan", "a little"),
    "PER_HEAD": ("all",),
    "DISTANCE_EVERY": ("-1", "all"),
    "TEST_RAISE": ("during",),
    "LABELS": ("x" * (MAX_LABEL_CHARS + 1),),
    "RECORDING": ("live",),
    "STRATEGY": ("fast",),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in UNFIT.items() for value in values]
)
def test_a_value_that_cannot_be_used_is_named(name: str, value: str) -> None:
    with pytest.raises(ProbeError) as caught:
        settings_from({"DRIFTSCOPE_TRACE": "/a", f"DRIFTSCOPE_{name}": value})
    assert re.fullmatch(rf"DRIFTSCOPE_{name}={value!r}: give [^\n]+", str(caught.value))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('trace = "/a"\nevery = "often"', "DRIFTSCOPE_EVERY='often': give a whole number"),
        ('trace = "/a"\nevery = [1]', "DRIFTSCOPE_EVERY='[1]': give a whole number"),
        (
            'trace = "/a"\nevry = 2\nfoo = 1',
            "settings evry, foo; did you mean every?; known are",
        ),
        ("trace = /a", "cannot be read as TOML"),
        (None, "cannot be read as TOML"),
    ],
)
def test_a_config_file_that_cannot_be_used_is_named(
    tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "driftscope.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ProbeError) as caught:
        settings_from({"DRIFTSCOPE_CONFIG": str(path)})
    assert words in str(caught.value)
    assert str(caught.value).startswith("DRIFTSCOPE_")
    assert "\n" not in str(caught.value)


def test_a_relative_run_directory_is_fixed_to_where_the_engine_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _trace("runs/a").trace == tmp_path / "runs" / "a"


def test_placeholders_are_replaced_once_for_all_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRIFTSCOPE_TRACE", "/runs/{time}-{pid}")
    fix_run_directory(_trace("/runs/{time}-{pid}"))
    fixed = os.environ["DRIFTSCOPE_TRACE"]
    assert re.fullmatch(rf"/runs/\d{{8}}-\d{{6}}-{os.getpid()}", fixed)
    fix_run_directory(_trace(fixed))
    assert os.environ["DRIFTSCOPE_TRACE"] == fixed


@pytest.mark.parametrize(
    ("value", "tokens", "slots", "source"),
    [
        ("3", 3, (0, 1, 2), "given"),
        ("17, 0,1,0", (0, 1, 17), (0, 1, 17), "given"),
        ("7,", (7,), (7,), "given"),
        ("auto", None, (), "sought"),
        (" Auto ", None, (), "sought"),
    ],
)
def test_a_sink_set_by_number_by_slot_or_looked_for(
    value: str, tokens: object, slots: tuple[int, ...], source: str
) -> None:
    found = _trace("/a", SINK_TOKENS=value)
    assert (found.sink_tokens, found.sink_slots, found.sink_source) == (tokens, slots, source)


_CHILD = """
from driftscope.trace.schema import Pseudonyms
from driftscope_probes.settings import request_key
print(Pseudonyms(request_key()).name("cmpl-7"))
"""


def _name_in_a_child() -> str:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.stdout.strip()


@pytest.mark.process
def test_processes_of_one_start_hash_alike_and_another_start_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = []
    for _ in range(2):
        monkeypatch.setenv("DRIFTSCOPE_TRACE", "/runs/a")
        monkeypatch.setenv(REQUEST_KEY, "")  # monkeypatch then takes back what is set below
        monkeypatch.delenv(REQUEST_KEY)
        fix_run_directory(Settings(trace=Path("/runs/a"), identifiers=False))
        names.append(Pseudonyms(request_key()).name("cmpl-7"))
        assert _name_in_a_child() == names[-1]
    assert names[0] != names[1]


@pytest.mark.parametrize("kept", [{"prompt_digests": False}, {"prompt_salt": "of all runs"}])
def test_no_key_is_made_where_nothing_is_hashed_with_it(
    monkeypatch: pytest.MonkeyPatch, kept: dict[str, Any]
) -> None:
    monkeypatch.setenv("DRIFTSCOPE_TRACE", "/runs/a")
    monkeypatch.delenv(REQUEST_KEY, raising=False)
    fix_run_directory(Settings(trace=Path("/runs/a"), **kept))
    assert REQUEST_KEY not in os.environ


def test_prompts_are_hashed_with_a_key_of_the_salt_or_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = []
    for start in ("0a" * 16, "0b" * 16):
        monkeypatch.setenv(REQUEST_KEY, start)
        of_start = [Settings(trace=Path("/runs/a"), prompt_salt=s) for s in ("", "of all", "other")]
        keys += [prompt_key(each) for each in of_start]
    assert keys[1] == keys[4]
    assert keys[2] == keys[5]
    assert len(set(keys)) == 4


@pytest.mark.parametrize("key", ["", "secret", "ab", "zz" * 16, "ab" * 64])
def test_a_key_that_is_no_key_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv(REQUEST_KEY, key)
    with pytest.raises(ProbeError) as caught:
        request_key()
    assert re.fullmatch(rf"{REQUEST_KEY}: give 32 random hex digits, or [^\n]+", str(caught.value))
