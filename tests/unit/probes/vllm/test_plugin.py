"""vLLM calls `register` in every process: it must cost nothing where the probe is off."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.command import run_python
from support.standin_engine import write_engine
from support.waiting import free_port

from driftscope.trace.status import StartFault, leave_fault
from driftscope_probes.vllm.plugin import HOOKS, register

pytestmark = pytest.mark.process

REGISTER = "import os, sys; from driftscope_probes.vllm.plugin import register; register(); "


def _python(
    code: str, path: Sequence[Path] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    return run_python("-W", "error", "-c", REGISTER + code, path=path, **environ)


BAD = {"DRIFTSCOPE_TRACE": "/runs/a", "DRIFTSCOPE_EVERY": "often"}
STRICT = {"DRIFTSCOPE_EVRY": "4", "DRIFTSCOPE_STRICT": "1"}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"DRIFTSCOPE_TRACE": "/runs/a", "DRIFTSCOPE_DISABLE": "1"},
        {**BAD, **STRICT, "DRIFTSCOPE_DISABLE": "banana"},
    ],
)
def test_off_it_imports_nothing_hooks_nothing_and_reads_no_other_setting(
    environ: dict[str, str],
) -> None:
    code = (
        "heavy = {'torch', 'vllm', 'wrapt', 'numpy', 'pyarrow', 'pandas'} & set(sys.modules); "
        "print(sorted(heavy), os.environ.get('DRIFTSCOPE_TRACE'))"
    )
    done = _python(code, **environ)
    assert (done.stdout, done.stderr) == (f"[] {environ.get('DRIFTSCOPE_TRACE')}\n", "")


def test_on_it_waits_for_vllms_modules_and_fixes_the_directory() -> None:
    code = (
        "print(sorted({'torch', 'vllm', 'pyarrow'} & set(sys.modules)), 'wrapt' in sys.modules, "
        "os.environ['DRIFTSCOPE_TRACE'])"
    )
    done = _python(code, DRIFTSCOPE_TRACE="/runs/{time}")
    assert done.stderr == ""
    assert re.fullmatch(r"\[\] True /runs/\d{8}-\d{6}\n", done.stdout)


SPAWN = "import subprocess; subprocess.run([sys.executable, '-c', CHILD], check=True); "
CHILD = f"CHILD = {REGISTER!r} + 'print(1)'; "


def test_a_bad_setting_is_logged_once_by_all_processes_and_nothing_is_hooked() -> None:
    done = _python(CHILD + SPAWN + "print('wrapt' in sys.modules)", **BAD)
    assert done.stdout == "1\nFalse\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("driftscope: nothing is recorded: DRIFTSCOPE_EVERY='often': give a ")
    assert "`driftscope doctor` shows the cause" in line


def test_settings_that_are_corrected_in_the_same_process_are_not_ignored_in_silence() -> None:
    fixed = "os.environ['DRIFTSCOPE_EVERY'] = '4'; "
    done = _python(CHILD + fixed + SPAWN, **BAD)
    first, second = done.stderr.splitlines()
    assert "nothing is recorded: DRIFTSCOPE_EVERY='often'" in first
    assert "an earlier start of this process failed" in second
    assert "start vLLM from a new process" in second


def test_a_bad_setting_stops_the_start_if_that_is_asked_for() -> None:
    done = _python("print('started')", **BAD, DRIFTSCOPE_STRICT="1")
    assert done.returncode != 0
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("driftscope.errors.SettingError: DRIFTSCOPE_EVERY='often': give")


def test_unknown_names_are_warned_about_once_with_the_near_ones() -> None:
    """Not those that Kubernetes sets for a service of that name."""
    near = {"EVRY": "EVERY", "TRAEC": "TRACE", "XYZ": None}
    service = ("SERVICE_HOST", "PORT_9464_TCP", "METRICS_PORT")
    names = {f"DRIFTSCOPE_{name}": "tcp://10.0.0.1:9464" for name in (*near, *service)}
    done = _python(CHILD + SPAWN + "print('started')", **names)
    assert done.stdout == "1\nstarted\n"
    assert sorted(done.stderr.splitlines()) == [
        f"driftscope: DRIFTSCOPE_{name} is no setting and has no effect"
        + (f"; did you mean DRIFTSCOPE_{other}?" if other else "")
        for name, other in near.items()
    ]


SCHEDULER = "vllm.v1.core.sched.scheduler"
"""Module in which a stand-in for vLLM has its scheduler."""
ONE_SCHEDULER = """
from types import SimpleNamespace as N
class Scheduler:
    def __init__(self):
        self.vllm_config = N(
            model_config=N(served_model_name="tiny", model="tiny"),
            speculative_config=N(method="eagle3", model="drafter"),
            parallel_config=N(data_parallel_index=0),
        )
    def update_from_output(self): ...
    def _free_request(self): ...
"""
SCRAPE = f"""
import urllib.request, os
from {SCHEDULER} import Scheduler
Scheduler()
port = os.environ["DRIFTSCOPE_PROMETHEUS"]
print(urllib.request.urlopen(f"http://127.0.0.1:{{port}}/metrics").read().decode())
"""


def _stand_in(root: Path) -> Path:
    write_engine(root, SCHEDULER, ONE_SCHEDULER)
    (root / "vllm" / "__init__.py").write_text("__version__ = '99.0'")
    return root


def _down(done: subprocess.CompletedProcess[str], kind: str) -> None:
    """The page of metrics says that the probe is down for that reason."""
    (up,) = [line for line in done.stdout.splitlines() if line.startswith("driftscope_probe_up{")]
    assert up.endswith(" 0.0")
    assert f'driftscope_reason="{kind}"' in up
    assert 'gen_ai_request_model="tiny"' in up


@pytest.mark.parametrize(
    ("broken", "environ", "kind"),
    [
        ("", {"DRIFTSCOPE_EVERY": "often"}, "setting"),
        ("pyarrow", {}, "package"),
    ],
)
def test_a_scrape_shows_that_the_probe_is_down_and_why(
    tmp_path: Path, broken: str, environ: dict[str, str], kind: str
) -> None:
    path = _stand_in(tmp_path)
    if broken:
        write_engine(path, broken, "raise ImportError('undefined symbol')")
    settings = {"TRACE": "/runs/a", "PROMETHEUS": str(free_port())}
    settings = {f"DRIFTSCOPE_{name}": value for name, value in settings.items()}
    done = _python(SCRAPE, [path], **settings, **environ)
    _down(done, kind)
    (line,) = done.stderr.splitlines()
    assert line.startswith("driftscope: nothing is recorded: ")


@pytest.mark.parametrize("where", ["unwritable", "in use", "a worker's note"])
def test_a_scrape_shows_why_the_workers_record_nothing(tmp_path: Path, where: str) -> None:
    """The workers have logged it, so the engine core does not."""
    run, kind = tmp_path / "run", "directory"
    if where == "unwritable":
        (tmp_path / "file").touch()
        run = tmp_path / "file" / "run"
    elif where == "in use":
        run.mkdir()
        (run / "manifest.json").write_text("{}")
    else:
        kind = "error"
        leave_fault(run, StartFault(kind=kind, reason="?", source="worker0-1", start="abc"))
    done = _python(
        SCRAPE,
        [_stand_in(tmp_path)],
        DRIFTSCOPE_TRACE=str(run),
        DRIFTSCOPE_RUN_ID="abc",
        DRIFTSCOPE_PROMETHEUS=str(free_port()),
    )
    _down(done, kind)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("broken", "error"), [("wrapt", "RuntimeError"), ("pyarrow", "ImportError")]
)
def test_a_broken_package_never_stops_the_start(tmp_path: Path, broken: str, error: str) -> None:
    path = write_engine(_stand_in(tmp_path), broken, f"raise {error}('broken')")
    done = _python(f"import {SCHEDULER}; print('started')", [path], DRIFTSCOPE_TRACE="/runs/a")
    assert done.stdout == "started\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("driftscope: nothing is recorded: ")
    assert "broken" in line


def test_a_vllm_that_is_laid_out_differently(tmp_path: Path) -> None:
    module = HOOKS["engine"][-1].module
    path = write_engine(tmp_path, module, "class Scheduler: pass\n")
    code = f"import {module}; print('started')"
    done = _python(code, [path], DRIFTSCOPE_TRACE="/a")
    assert done.stdout == "started\n"
    (line,) = done.stderr.splitlines()
    assert f"nothing is recorded: {module} of this vLLM is organised differently" in line
    done = _python(code, [path], DRIFTSCOPE_TRACE="/a", DRIFTSCOPE_STRICT="1")
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert f"ProbeError: {module} of this vLLM is organised differently" in last
    assert "DRIFTSCOPE_DISABLE=1" in last


def test_vllm_finds_it_by_its_entry_point() -> None:
    (found,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="driftscope")
    assert found.load() is register
