"""An inspection of a drafter checkpoint: everything that one command reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum

import numpy as np

from driftscope.boundary.json_document import INSPECTION, text, written_property
from driftscope.errors import (
    EXIT_GATE_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NO_DATA,
    EXIT_OK,
    EXIT_UNKNOWN,
    Unknown,
)
from driftscope.inspect.checkpoints import (
    Sizes,
    open_drafter,
    open_target,
    sizes_of,
    with_tensors,
)
from driftscope.inspect.checks import config, layer_fields, tensors, vocabulary, weights
from driftscope.inspect.checks.result import UNNAMED, Certainty, CheckLevel, CheckResult, Inspected
from driftscope.inspect.checks.weights import HEAD_IS_TARGETS
from driftscope.inspect.drafter_classes import Coverage, Family
from driftscope.inspect.engine_loading import EngineProcess
from driftscope.inspect.files import CAREFUL, Opening
from driftscope.inspect.trial.result import Trial
from driftscope.inspect.trial.verdict import LESS_THAN_EXPECTED, MORE_WITH_TURNS, reaches

Check = Callable[[Inspected], Iterator[CheckResult]]
OTHER, OTHER_PARALLEL = "another class", "another class, all tokens at once"
"""Classes of no known family that an engine has loaded."""
EAGLE3 = (Family.LLAMA, Family.QWEN3, Family.MLA)
EAGLE = (*EAGLE3, Family.EAGLE1)
CAPTURING = (*EAGLE3, Family.BLOCKS, OTHER_PARALLEL)
LAYERED = (*EAGLE, Family.BLOCKS)
KNOWN = (*LAYERED, Family.MTP, Family.HEADS)
EVERY = (*KNOWN, OTHER, OTHER_PARALLEL)
CHECKS: Mapping[Check, tuple[str, ...]] = {
    tensors.check_shapes: EAGLE,
    tensors.check_fc: (Family.BLOCKS,),
    tensors.check_prefix: LAYERED,
    layer_fields.check_layer_fields: KNOWN,
    layer_fields.check_fields_of_target: LAYERED,
    config.check_engine: (Family.EAGLE1,),
    config.check_bias: (Family.EAGLE1,),
    config.check_norm_flags: EAGLE3,
    config.check_norm_meaning: EAGLE3,
    config.check_captured_layers: CAPTURING,
    config.check_mask_token: CAPTURING,
    config.check_ignored_layers: EAGLE3,
    config.check_medusa_bias: (Family.HEADS,),
    vocabulary.check_vocabulary_size: (*CAPTURING, Family.HEADS),
    vocabulary.check_table: CAPTURING,
    vocabulary.check_special_tokens: CAPTURING,
    config.check_rope: (*LAYERED, OTHER, OTHER_PARALLEL),
    config.check_context: (*LAYERED, OTHER, OTHER_PARALLEL),
    weights.check_width: (*LAYERED, Family.HEADS),
    weights.check_embedding: LAYERED,
    weights.check_head: EAGLE3,
    weights.check_repeated: EAGLE,
    tensors.check_heads: (Family.MTP,),
    weights.check_values: EVERY,
    weights.check_types: EVERY,
    weights.check_norms: EVERY,
    vocabulary.check_tokenizer: EVERY,
    vocabulary.check_template: EVERY,
    tensors.check_quantization: EVERY,
}
"""Each check, in the order of the results, and the families whose drafters it is made of."""


def errors_first(results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """Return results by their level, those of one level in the order that they have."""
    return tuple(sorted(results, key=lambda result: list(CheckLevel).index(result.level)))


def run_checks(inspected: Inspected) -> list[CheckResult]:
    """Return what all checks found.

    Raises CheckpointError for a file that cannot be read.
    """
    with np.errstate(all="ignore"):  # of weights that are not finite, which is a result
        return [result for check in checks_of(inspected) for result in check(inspected)]


def checks_of(inspected: Inspected) -> tuple[Check, ...]:
    """Return the checks that are made of a drafter."""
    found = inspected.drafter.format
    if found.family is None and not inspected.drafter.tensors:
        return ()
    kind = found.family or (OTHER_PARALLEL if found.parallel else OTHER)
    return tuple(check for check, kinds in CHECKS.items() if kind in kinds)


class Soundness(StrEnum):
    """Whether a drafter is sound."""

    SOUND = "sound"
    """No mistake was found, and as much is accepted as was expected."""
    NOT_COMPARED = "nothing wrong found, not compared with an expected length"
    """Every field is understood, every number finite, depth 1 is clearly alive, and no repair
    helps. Whether the drafter could accept more cannot be told from one trial: a tensor of another
    checkpoint makes it like a weaker drafter."""
    WRONG = "wrong"
    """A cause was found."""
    UNEXPLAINED = "accepts little, cause not found"
    """Little is accepted at depth 1, or less than was expected."""
    CANNOT_TELL = "cannot tell"
    """The models were not run, or on too few prompts."""


NOT_RUN, UNEXPLAINED = "not_run", "accepts_little"
WITHOUT_A_CAUSE = frozenset(
    (NOT_RUN, UNEXPLAINED, LESS_THAN_EXPECTED, HEAD_IS_TARGETS, "too_few_prompts", "fields_not_run")
)
"""Results that name no cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Results of the checks of a drafter's files."""

    drafter: str
    target: str | None
    format: str
    unchecked: str
    """Parts that are not compared; "" if all are, or none."""
    unknown: Unknown | None
    """The parts of a checkpoint of an unknown class that are known; null if the class is known."""
    checks: int
    """Number of checks that were made."""
    loaded_by: str
    """Engine that built the class and was given the tensors; "" if none was asked, or if it could
    not tell."""
    results: Sequence[CheckResult]
    """Results of the checks, errors first."""
    sizes: Sizes
    trial: Trial | None = None
    """Results of running the drafter; None if it was not run."""
    stopped: bool = False
    """Whether Ctrl-C ended the run of the drafter."""

    @property
    def known(self) -> bool:
        """Whether the class is known, so that anything is judged."""
        return self.unknown is None

    @written_property
    def coverage(self) -> Coverage:
        """How much of config and weights is compared; of an unknown class nothing is judged."""
        if not self.known:
            return Coverage.UNKNOWN
        return Coverage.PARTLY if self.unchecked else Coverage.CHECKED

    def count(self, level: CheckLevel) -> int:
        """Return the number of results of a level."""
        return sum(result.level is level for result in self.results)

    @written_property
    def answer(self) -> Soundness:
        """Whether the drafter is sound."""
        found = {result.id for result in self.results if result.level is not CheckLevel.NOTE}
        if not self.known:
            return Soundness.CANNOT_TELL
        if found - WITHOUT_A_CAUSE:
            return Soundness.WRONG
        if found & {UNEXPLAINED, LESS_THAN_EXPECTED}:
            return Soundness.UNEXPLAINED
        not_run = self.trial is None or self.trial.stopped or bool(self.trial.not_promised)
        if found or not_run or self.trial is None or self._other_turns:
            return Soundness.CANNOT_TELL
        return Soundness.SOUND if reaches(self.trial) else Soundness.NOT_COMPARED

    @property
    def _other_turns(self) -> CheckResult | None:
        """The result that more is accepted with the tokens for turns of the target's tokenizer."""
        return next((result for result in self.results if result.id == MORE_WITH_TURNS), None)

    @property
    def conclusion(self) -> str:
        """The answer in one sentence; "" if the class is not known."""
        if not self.known:
            return ""
        first = next(
            (result for result in self.results if result.level is not CheckLevel.NOTE), None
        )
        first = first or self._other_turns
        if self.answer is Soundness.WRONG and first is not None:
            sure = first.certainty is not Certainty.POSSIBLE
            return f"{'Wrong' if sure else 'Perhaps wrong'}: {first.title}."
        if self.answer is Soundness.UNEXPLAINED and first is not None:
            return f"{first.title[0].upper()}{first.title[1:]}."
        if first is not None:
            return f"It cannot be told whether this drafter is sound: {first.title}."
        if self.trial is None:
            if self.unchecked:
                return "No mistake in what is compared."
            more = "" if self.target else " Give --target TARGET to run the drafter, too."
            if any(result.id == UNNAMED for result in self.results):
                what = (
                    "No mistake in what the files name; they leave open which layers are captured"
                )
                return f"{what}.{more}"
            return f"No mistake in the files.{more}"
        if self.trial.stopped:
            return f"No mistake found so far, with {len(self.trial.tried)} repairs tried."
        accepts = self.trial.acceptance
        length = f"{accepts.mean_length:.2f} tokens a round"
        words = f"no check failed, and none of {len(self.trial.tried)} repairs surely accepts more"
        if self.answer is Soundness.SOUND:
            return f"Sound: it accepts the expected length ({length}), {words}."
        return (
            f"It accepts {length}: {words}. Whether it should accept more cannot be told from one "
            "trial; --expected-length compares with what its author published."
        )

    def code(self, *, strict: bool) -> int:
        """Return 130 after Ctrl-C, 3 with an error, or with a warning if `strict`, 4 if the models
        were to be run and were not, and 5 if the class is not known; otherwise 0."""
        if self.stopped:
            return EXIT_INTERRUPTED
        if not self.known:
            return EXIT_UNKNOWN
        bad = self.count(CheckLevel.ERROR) + (self.count(CheckLevel.WARNING) if strict else 0)
        if bad:
            return EXIT_GATE_FAILED
        return EXIT_NO_DATA if any(result.id == NOT_RUN for result in self.results) else EXIT_OK

    def with_results(
        self, results: Sequence[CheckResult], trial: Trial | None = None, *, stopped: bool = False
    ) -> Inspection:
        """Return the inspection with further results, errors first, and the trial they are of."""
        both = errors_first([*results, *self.results])
        return replace(self, results=both, trial=trial, stopped=stopped)


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionDocument(Inspection):
    """An inspection, and the exit code of the command that made it."""

    exit_code: int


def to_json(inspection: Inspection, exit_code: int) -> str:
    """Return the inspection as a JSON document, newline at the end."""
    content = {field.name: getattr(inspection, field.name) for field in fields(inspection)}
    return text(INSPECTION, InspectionDocument(**content, exit_code=exit_code))


_TENSORS = "names and shapes of its tensors"


def inspect_files(
    drafter: str,
    target: str | None = None,
    opening: Opening = CAREFUL,
    engine: EngineProcess | None = None,
) -> Inspection:
    """Check the files of a drafter, and those of its target that concern it; a class that is not
    checked here is given to `engine`.

    Raises CheckpointError for a checkpoint that is damaged or of no known kind.
    """
    opened = Inspected(
        drafter=open_drafter(drafter, opening),
        target=open_target(target, opening) if target else None,
    )
    found = opened.drafter.format
    unchecked = found.row.unchecked if found.row else ""
    unknown, results = found.unknown, list[CheckResult]()
    answer = engine.ask(opened, opening) if engine and (unknown or unchecked) else None
    judged = answer is not None and not answer.unknown
    if answer is not None and judged:
        results += answer.results
        unchecked, unknown = "", None
        if found.family is None:
            opened = replace(opened, drafter=with_tensors(opened.drafter, opening))
    elif answer is not None and unknown is not None:
        both = (*unknown.not_recognised, answer.unknown)
        unknown = replace(unknown, not_recognised=both)
    elif answer is not None:
        unchecked = f"{_TENSORS}: {answer.unknown}"
    results += run_checks(opened)
    return Inspection(
        drafter=drafter,
        target=target,
        format=found.name,
        unchecked=unchecked,
        unknown=unknown,
        checks=len(checks_of(opened)) + judged,
        loaded_by=answer.engine if answer is not None and judged else "",
        results=errors_first(results),
        sizes=sizes_of(opened.drafter, opened.target),
    )
