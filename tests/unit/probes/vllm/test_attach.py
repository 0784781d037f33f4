"""Tying a recorder to a drafter that was just loaded, or refusing to without a trace of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from support.tiny_drafter import LAYERS, Batch, attention_of, engine_config, tiny_drafter, watched

from driftscope.errors import DriftscopeError, NotATraceError, ProbeError, TraceError
from driftscope.trace.control import ControlValueError, ProbeChange
from driftscope.trace.manifest import AGREES, AUX_FROM_ENGINE, GREEDY, read_manifest
from driftscope.trace.reader import read_trace
from driftscope.trace.schema import conform
from driftscope.trace.segments import restore
from driftscope.trace.status import read_faults, read_statuses
from driftscope.trace.writer_files import has_begun
from driftscope.vocabulary import DISTANCE_MASS, Strategy
from driftscope_probes.drafter import CapturedLayers
from driftscope_probes.recorder import RANKS_EVERY, SINKS_SOUGHT, Recorder
from driftscope_probes.sink_search import SinkSet
from driftscope_probes.start_guard import install_hooks
from driftscope_probes.step_record import StepTimer
from driftscope_probes.vllm import drafter as vllm_drafter
from driftscope_probes.vllm.attach import (
    RECORDER,
    LoadedModels,
    LoadedProposer,
    attach_recorder,
    begin_recording,
    proposer_of,
    recorder_of,
)
from driftscope_probes.vllm.drafter import VllmAttentionLayer
from driftscope_probes.vllm.plugin import HOOKS

CAPTURED = CapturedLayers(layers=(2, 4, 5), source=AUX_FROM_ENGINE)


class Loaded:
    """A proposer of a vLLM that has loaded its drafter."""

    def __init__(self, instance_id: str = "1", *, parallel: Any = None, **flags: bool) -> None:
        self.model: Any = tiny_drafter(**flags).model
        self.proposer, self.hooked = SimpleNamespace(model=self.model), list[object]()
        self.config = engine_config()
        model_config = self.config.model_config
        model_config.model, model_config.dtype = "tiny", torch.float32
        model_config.hf_config = SimpleNamespace(architectures=["Some"], to_dict=dict)
        speculation = self.config.speculative_config
        speculation.method, speculation.draft_model_config = "eagle3", model_config
        self.config.cache_config = SimpleNamespace(cache_dtype="auto")
        self.config.parallel_config = parallel or SimpleNamespace()
        self.config.compilation_config.static_forward_context = attention_of(self.model)
        self.config.additional_config, self.config.instance_id = {}, instance_id

    def attach(self, **changes: Any) -> Loaded:
        names = frozenset(LAYERS)
        loaded = LoadedProposer(runner="v1", layer_names=names, draft_sampling=GREEDY, **changes)
        self.proposer.vllm_config = self.config
        attach_recorder(self.proposer, lambda _: loaded)
        models = LoadedModels(
            runner="v1",
            config=self.config,
            captured=lambda: CAPTURED,
            timed=False,
            hook=self.hooked.append,
        )
        begin_recording(self.proposer, models)
        return self

    def batches(self, count: int) -> list[Batch]:
        return [Batch(self.proposer) for _ in range(count)]


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the forward that shows where the states are, which needs an engine."""
    monkeypatch.setattr(vllm_drafter, "_watched", watched)


@pytest.fixture
def loaded() -> Iterator[Loaded]:
    made = Loaded()
    yield made
    if recorder := recorder_of(made.proposer):
        recorder.close()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRIFTSCOPE_TRACE", str(tmp_path / "run"))
    return tmp_path / "run"


def _rank(rank: int) -> Loaded:
    return Loaded(parallel=SimpleNamespace(tensor_parallel_size=2, rank=rank)).attach()


def _recorder(loaded: Loaded) -> Recorder:
    recorder = recorder_of(loaded.proposer)
    assert isinstance(recorder, Recorder)
    return recorder


def _steps(loaded: Loaded, *batches: Batch) -> list[torch.Tensor]:
    """Draft these batches, or one, record every step and close; return the drafts."""
    recorder, drafts = _recorder(loaded), list[torch.Tensor]()
    recorder.sampler.set(every=1)
    for batch in batches or loaded.batches(1):
        recorder.step_started()
        drafts.append(recorder.draft(batch.call))
        recorder.step_ended(lambda: 2)
    recorder.close()
    return drafts


def _without_hooks(loaded: Loaded) -> None:
    assert loaded.proposer.model is loaded.model
    assert not any("forward" in vars(layer.impl) for layer in loaded.model.model.attention)
    assert not {"compute_logits", "combine_hidden_states"} & set(vars(loaded.model))


def _left_alone(loaded: Loaded) -> None:
    assert recorder_of(loaded.proposer) is None
    _without_hooks(loaded)


def _refused(loaded: Loaded, error: type[DriftscopeError], words: str, **changes: Any) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(error, match=words) as caught:
        patch.setenv("DRIFTSCOPE_STRICT", "1")
        loaded.attach(**changes)
    assert "\n" not in str(caught.value)
    _left_alone(loaded)


def _one_line(caplog: pytest.LogCaptureFixture) -> str:
    (line,) = [record.getMessage() for record in caplog.records if record.name == "driftscope"]
    assert "\n" not in line
    return line


def _fails(error: Exception) -> Callable[..., Any]:
    """Return a function that raises, whatever it is given."""

    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_off_the_drafter_is_left_alone(
    loaded: Loaded, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRIFTSCOPE_TRACE")
    loaded.attach()
    _left_alone(loaded)
    assert not run.exists()
    assert recorder_of(None) is None
    assert loaded.config.additional_config == {}


@pytest.mark.parametrize("recording", ["eager", "shadow"])
def test_a_recording_that_the_runner_cannot_do_is_refused_at_start_up(
    loaded: Loaded, run: Path, monkeypatch: pytest.MonkeyPatch, recording: str
) -> None:
    monkeypatch.setenv("DRIFTSCOPE_RECORDING", recording)
    words = f"RECORDING={recording} needs .* leave it at in-graph"
    _refused(loaded, ProbeError, words, without_graphs=False)
    assert not run.exists()


def test_a_vllm_of_another_layout_is_refused_if_that_is_asked_for(
    loaded: Loaded, run: Path
) -> None:
    del loaded.config.compilation_config.static_forward_context[LAYERS[0]]
    _refused(loaded, ProbeError, "v1 runner is not laid out as driftscope knows it")
    assert not run.exists()


def test_on_a_run_begins_with_what_the_loaded_engine_says(loaded: Loaded, run: Path) -> None:
    loaded.attach()
    _steps(loaded)
    trace, manifest = read_trace(run), read_manifest(run)
    assert (trace.draft.num_rows, trace.problems) == (2, ())
    assert (manifest.runner, manifest.draft_sampling, manifest.notes) == ("v1", "greedy", ())
    assert (manifest.aux_layers, manifest.aux_layers_source) == ((2, 4, 5), "engine default")
    assert loaded.config.additional_config, "compiled graphs with hooks have a cache of their own"


class _WrongFed(Batch):
    """Feeds a state that is no output of the drafter to the next depth."""

    def draft(self) -> torch.Tensor:
        held = self.holder
        self.holder = _Doubling(held)
        try:
            return super().draft()
        finally:
            self.holder = held


class _Doubling:
    """Stands in for the drafter that `holder` holds at the moment, as a runner sees it."""

    def __init__(self, holder: Any) -> None:
        self._holder, self.model = holder, self

    def __call__(self, **given: Any) -> Any:
        normed, fed = self._holder.model(**given)
        return normed, 2 * fed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._holder.model, name)


def _plant(loaded: Loaded, fault: str) -> None:
    for layer in loaded.model.model.attention:
        if fault == "scale":
            layer.impl.scale = 0.9
        elif fault == "window":
            layer.sliding_window = 3
        elif fault == "sinks":
            layer.impl.sinks = torch.ones(layer.num_heads)


def _spoilt(batch: Batch, fault: str) -> Batch:
    """Give the recorder wrong data of the step, as for a runner with other rows."""
    right = batch.on_device()
    changed: dict[str, Any] = {
        "rows": {"rows": right.rows - 1},
        "positions": {"position": right.position - 1},
        "tables": {"block_tables": dict.fromkeys(LAYERS, batch.block_table.flip(0))},
    }.get(fault, {})
    batch.on_device = lambda: replace(right, **changed)  # type: ignore[method-assign]
    return batch


_DISAGREE = {
    "scale": "gives out something else than its queries, keys and values make",
    "window": "gives out something else",
    "sinks": "gives out something else",
    "rows": "the output head reads another row at depth 1",
    "positions": "gives out something else",
    "tables": "gives out something else",
    "fed": "no output of depth 1 is what depth 2 is fed",
}


@pytest.mark.parametrize("fault", _DISAGREE)
def test_of_a_drafter_that_is_not_understood_only_what_agrees_is_recorded(
    loaded: Loaded, run: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    wanted = Batch(SimpleNamespace(model=loaded.model)).draft()
    _plant(loaded, fault)
    loaded.attach()
    make = _WrongFed if fault == "fed" else Batch
    drafts = _steps(loaded, *[_spoilt(make(loaded.proposer), fault) for _ in range(3)])
    if fault != "fed":
        assert all(torch.equal(drawn, wanted) for drawn in drafts), "what is served is unchanged"
    trace, manifest = read_trace(run), read_manifest(run)
    states = fault not in ("rows", "fed")
    assert (trace.draft.num_rows, trace.step.num_rows) == (2 if states else 0, 3)
    for row in trace.draft.to_pylist():
        assert row["fed_rms"] and row["top1"]
        assert (row["prompt_mass"], row[DISTANCE_MASS]) == (None, None)
    assert _DISAGREE[fault] in (manifest.witness or "")
    assert (manifest.drafter_layers, manifest.attention_strategy) == (0, Strategy.NONE)
    lost = "attention masses are not" if states else "attention, hidden states and confidence are"
    assert _one_line(caplog).startswith(f"driftscope: {lost}")
    assert manifest.witness in _one_line(caplog)
    (status,) = read_statuses(run)
    assert status.errors == {} and manifest.witness in (status.reason or "")
    _without_hooks(loaded)


@pytest.mark.parametrize("fault", ["rows", "tables"])
def test_one_chain_that_disagrees_is_left_out_and_the_next_ones_are_recorded(
    loaded: Loaded, run: Path, fault: str
) -> None:
    loaded.attach()
    first, *later = loaded.batches(3)
    _steps(loaded, _spoilt(first, fault), *later)
    trace = read_trace(run)
    assert (trace.manifest.witness, trace.draft.num_rows, trace.step.num_rows) == (AGREES, 4, 3)
    assert all(row["prompt_mass"] and row["fed_rms"] for row in trace.draft.to_pylist())
    assert trace.manifest.drafter_layers == 2


def test_where_the_second_computation_fails_the_run_says_that_nothing_was_verified(
    loaded: Loaded, run: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setattr(VllmAttentionLayer, "weigh", _fails(error))
    loaded.attach()
    _steps(loaded, *loaded.batches(3))
    trace = read_trace(run)
    assert all(row["prompt_mass"] and row["fed_rms"] for row in trace.draft.to_pylist())
    assert trace.draft.num_rows == 4, "all but the first chain, which was tried again"
    why = "the computation failed (CUDA out of memory)"
    said = f"what is recorded of the drafter's inside is not verified: {why}"
    assert trace.manifest.witness == why and said in trace.manifest.notes
    assert _one_line(caplog) == f"driftscope: {said}"
    assert read_statuses(run)[0].reason is None
    _without_hooks(loaded)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_witness_whose_hooks_raise_leaves_the_drafts_and_no_hook(
    loaded: Loaded, run: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setenv("DRIFTSCOPE_TEST_RAISE", when)
    wanted = Batch(SimpleNamespace(model=loaded.model)).draft()
    loaded.attach()
    drafts = _steps(loaded, *loaded.batches(4))
    assert all(torch.equal(drawn, wanted) for drawn in drafts)
    assert read_trace(run).draft.num_rows == 0
    _without_hooks(loaded)


@pytest.mark.parametrize("norm_output", [False, True])
def test_the_first_chain_is_computed_a_second_time_and_says_what_is_fed(
    run: Path, norm_output: bool
) -> None:
    loaded = Loaded(fc_norm=norm_output, norm_output=norm_output).attach()
    _steps(loaded, *loaded.batches(2))
    manifest = read_manifest(run)
    assert manifest.witness == AGREES
    assert manifest.fed_state == f"{'after' if norm_output else 'before'} the final norm"
    assert read_trace(run).draft.num_rows == 4, "the first chain is recorded, too"
    _without_hooks(loaded)


def test_a_run_says_that_calls_of_an_unknown_parser_are_not_recognised(
    loaded: Loaded, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["vllm", "serve", "M", "--tool-call-parser=mine"])
    loaded.attach()
    _steps(loaded)
    (note,) = read_manifest(run).notes
    assert "the format of tool calls of parser mine is of no known kind: its text counts" in note


def test_ranks_join_one_run_and_the_first_says_what_all_have_alike(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTSCOPE_TOKEN_IDS", "1")
    for loaded in [_rank(rank) for rank in (1, 0)]:
        _steps(loaded)
    trace = read_trace(run)
    assert {s.source.partition("-")[0] for s in trace.statuses} == {"worker0", "worker1"}
    assert (trace.manifest.every, trace.manifest.budget) == (RANKS_EVERY, None)
    (note,) = trace.manifest.notes
    assert f"one draft step in {RANKS_EVERY}" in note
    assert (trace.draft.num_rows, trace.step.num_rows, trace.problems) == (2, 1, ())
    (path,) = run.glob("draft-worker1-*")
    alone = conform(restore(pq.read_table(path)), "draft")
    for name in ("in_rms", "top1", "entropy", "aux_rms", "fc_rms", "token_ids"):
        assert alone.column(name).null_count == 2, name
        assert trace.draft.column(name).null_count == 0, name


def test_ranks_take_no_budget_while_they_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTSCOPE_EVERY", "2")
    recorder = _recorder(_rank(0))
    control: Any = recorder.control
    with pytest.raises(ControlValueError, match="not available with tensor parallelism"):
        control.apply(ProbeChange(budget=0.02))
    control.apply(ProbeChange(every=5))
    assert recorder.sampler.rate == 1 / 5
    recorder.close()
    assert read_trace(run).manifest.notes == ()


def test_the_manifest_says_that_the_sink_set_is_looked_for_and_then_what_it_is(
    loaded: Loaded, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTSCOPE_SINK_TOKENS", "auto")
    loaded.attach()
    search, before = _recorder(loaded).search, read_manifest(run)
    assert search is not None
    assert (before.sink_source, before.sink_slots, before.notes) == ("sought", (), (SINKS_SOUGHT,))
    search.report(SinkSet(slots=(0, 7), note="where it comes from"))
    after = read_manifest(run)
    assert (after.sink_source, after.sink_slots) == ("found", (0, 7))
    assert after.notes == ("where it comes from",)
    assert after.run_id == before.run_id


@pytest.mark.parametrize("name", ["tensor_parallel_size", "data_parallel_size"])
def test_one_sink_set_is_not_looked_for_in_several_workers(
    loaded: Loaded, run: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("DRIFTSCOPE_SINK_TOKENS", "auto")
    monkeypatch.setattr("driftscope_probes.vllm.support.check_speculation", lambda _: None)
    setattr(loaded.config.parallel_config, name, 2)
    _refused(loaded, ProbeError, "SINK_TOKENS=auto searches for one sink set in one worker")
    assert not run.exists()


@pytest.mark.parametrize("where", ["in use", "unwritable"])
def test_a_directory_without_room_for_a_run_leaves_the_engine_without_a_probe(
    loaded: Loaded, run: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, where: str
) -> None:
    if where == "in use":
        _recorder(Loaded("2").attach()).close()
        before = {path.name: path.read_bytes() for path in run.iterdir()}
        _refused(loaded, TraceError, "already holds a run")
        words = f"driftscope: nothing is recorded: {run}: already holds a run"
    else:
        run.touch()
        monkeypatch.setenv("DRIFTSCOPE_TRACE", str(run / "run"))
        words = f"driftscope: nothing is recorded: {run}/run: cannot write a trace there"
    loaded.attach()
    _left_alone(loaded)
    assert _one_line(caplog).startswith(words)
    if where == "in use":
        assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_a_run_that_cannot_begin_is_undone_and_leaves_a_note_until_one_records(
    loaded: Loaded, run: Path, caplog: Any
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        begins = "driftscope_probes.vllm.attach.create_run"
        patch.setattr(begins, _fails(RuntimeError("no luck")))
        _left_alone(Loaded("0").attach())
    assert "nothing is recorded: RuntimeError: no luck" in _one_line(caplog)
    (fault,) = read_faults(run)
    assert (fault.kind, fault.reason) == ("error", "RuntimeError: no luck")
    with pytest.raises(NotATraceError, match="the server recorded nothing: RuntimeError: no luck"):
        read_manifest(run)
    loaded.attach()
    assert read_faults(run) == ()
    assert has_begun(run, read_manifest(run).run_id)


def test_attention_that_is_not_measured_leaves_the_states(loaded: Loaded, run: Path) -> None:
    loaded.model.model.attention[0].impl.alibi_slopes = torch.ones(4)
    loaded.attach()
    _steps(loaded)
    trace = read_trace(run)
    (note,) = trace.manifest.notes
    assert note.startswith("attention masses are not recorded: layer")
    assert "ALiBi slopes" in note
    nulls = [trace.draft.column(name).null_count for name in ("self_mass", "postnorm_rms")]
    assert (trace.draft.num_rows, nulls) == (2, [2, 0])


@pytest.mark.parametrize("what", ["layout", "memory", "hooks"])
def test_a_drafter_that_cannot_be_looked_into_is_timed(
    loaded: Loaded, run: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, what: str
) -> None:
    """Hooks that fail halfway are all removed."""
    if what == "layout":
        del loaded.config.compilation_config.static_forward_context[LAYERS[0]]
    else:
        broken = {"memory": "vllm.attach.assemble_recorder", "hooks": "taps.Taps._stand_in"}[what]
        monkeypatch.setattr(f"driftscope_probes.{broken}", _fails(MemoryError("none left")))
    loaded.attach()
    timer = recorder_of(loaded.proposer)
    assert isinstance(timer, StepTimer)
    _without_hooks(loaded)
    assert loaded.hooked == [loaded.proposer]
    timer.close()
    trace = read_trace(run)
    (note,) = trace.manifest.notes
    assert note.startswith("attention, hidden states and confidence are not recorded: ")
    assert note in _one_line(caplog)
    assert [status.reason for status in trace.statuses] == [note]


def test_a_process_whose_seam_failed_records_nothing_and_leaves_the_reason(
    loaded: Loaded, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTSCOPE_START_FAULT", "engine vLLM has no such method")
    loaded.attach()
    _left_alone(loaded)
    (fault,) = read_faults(run)
    assert (fault.kind, fault.reason) == ("engine", "vLLM has no such method")
    assert not (run / "manifest.json").exists()


class Ending:
    """A recorder, or an observer of an engine core, that notes when it ends."""

    def __init__(self, notes: list[str], *, fails: bool) -> None:
        self._notes, self._fails = notes, fails

    def note(self, word: str) -> None:
        self._notes.append(word)
        if self._fails:
            raise OSError("a full disk")

    def close(self) -> None:
        self.note("closed")

    def end(self) -> None:
        self.note("sealing")

    def workers_closed(self) -> None:
        self.note("exported")


class Worker:
    """vLLM's worker with the methods that are hooked; they note what they do."""

    def __init__(self, runner: Any, notes: list[Any], *, fails: bool = False) -> None:
        self.model_runner, self.notes, self.fails = runner, notes, fails

    def load_model(self) -> None:
        """Nothing is loaded."""

    def compile_or_warm_up_model(self) -> str:
        self.notes.append(recorder_of(proposer_of(self.model_runner)))
        if self.fails:
            raise RuntimeError("out of memory")
        return "warm"

    def shutdown(self) -> str:
        self.notes.append("torn down")
        return "over"


class EngineCore:
    def __init__(self, scheduler: Any, notes: list[Any]) -> None:
        self.scheduler, self.notes = scheduler, notes

    shutdown = Worker.shutdown


def _hooked(kind: type) -> Any:
    """Return a subclass with vLLM's hooks, so that `kind` is left as it is."""
    place = {
        "Worker": ("worker", "v1.worker.gpu_worker"),
        "EngineCore": ("engine", "v1.engine.core"),
    }
    group, module = place[kind.__name__]
    hooked = type(kind.__name__, (kind,), dict(vars(kind)))
    named: Any = SimpleNamespace(__name__=f"vllm.{module}", **{kind.__name__: hooked})
    install_hooks(HOOKS[group], named)
    return hooked


@pytest.mark.parametrize("fails", [False, True])
def test_steps_of_vllms_warm_up_meet_no_recorder(fails: bool) -> None:
    recorder, seen = object(), list[Any]()
    runner = SimpleNamespace(speculator=SimpleNamespace(**{RECORDER: recorder}))
    worker = _hooked(Worker)(runner, seen, fails=fails)
    with pytest.raises(RuntimeError) if fails else contextlib.nullcontext():
        assert worker.compile_or_warm_up_model() == "warm"
    assert seen == [None] and recorder_of(proposer_of(runner)) is recorder


@pytest.mark.parametrize("fails", [False, True])
def test_traces_are_closed_before_vllm_tears_down(fails: bool) -> None:
    """vLLM kills what is not torn down in time."""
    notes: list[str] = []
    ending = Ending(notes, fails=fails)
    runner = SimpleNamespace(drafter=None, **{RECORDER: ending})
    assert _hooked(Worker)(runner, notes).shutdown() == "over" and notes == ["closed", "torn down"]
    notes.clear()
    scheduler = SimpleNamespace(_driftscope_observer=ending)
    assert _hooked(EngineCore)(scheduler, notes).shutdown() == "over"
    assert notes == ["sealing", "torn down", "closed", "exported"]
