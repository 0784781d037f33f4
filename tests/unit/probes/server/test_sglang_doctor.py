"""`driftscope doctor --engine sglang` names what keeps an SGLang from being recorded."""

import pytest

from driftscope_probes.engine import HookPoint
from driftscope_probes.server.doctor import (
    SGLANG,
    examine,
    hook_checks,
    sglang_version_check,
    verdict,
)
from driftscope_probes.sglang.plugin import TESTED


@pytest.mark.parametrize(("version", "ok"), [(TESTED[0], True), ("0.5.14", False)])
def test_only_tested_versions_are_ready(version: str, ok: bool) -> None:
    check = sglang_version_check(version)
    assert check.ok is ok and version in check.detail
    answer = verdict([check], SGLANG)
    assert answer.ok is ok and answer.detail.startswith("ready" if ok else "not ready")


def test_a_seam_that_moved_is_named() -> None:
    hooks = (
        HookPoint(module="json", name="dumps", purpose="one that is there"),
        HookPoint(module="json", name="JSONEncoder.moved", purpose="one that is not"),
    )
    there, gone = hook_checks("worker", hooks, SGLANG)
    assert there.ok and there.detail == "dumps: works (one that is there)"
    assert gone.ok is False and "JSONEncoder.moved: not found" in gone.detail
    assert SGLANG.name in (gone.hint or "")


def test_without_sglang_it_says_where_to_install_the_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    checks = {check.topic: check for check in examine(SGLANG)}
    assert checks[SGLANG.name].ok is False and "driftscope-probe" in (
        checks[SGLANG.name].hint or ""
    )


def test_a_plugin_that_sglang_leaves_out_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", "another")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ("an entry point",))
    (plugin,) = (check for check in examine(SGLANG) if check.topic == "plugin")
    assert plugin.ok is False and "SGLANG_PLUGINS=another" in plugin.detail
