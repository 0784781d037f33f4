"""Alerting rules, each with the text of its runbook."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.dashboards import recording as r
from driftscope.telemetry.export.scrape import label_name

ACCEPTANCE_FELL_BELOW = 0.8
"""Ratio of acceptance length to the engine's own past. Across workloads one drafter's length
differs by about a tenth; a wrong chat template cost the paper's pre-norm drafter 38 % (arXiv
2605.09992)."""
EXCESS_ROSE_BY = 0.05
"""Rise of the attention on the chain beyond no drift: half of the report's finding threshold."""
GROWTH_ROSE_TO = 1.25
"""Ratio of growth to the engine's own past. A drafter's growth depends on its weights: it changes
when they do, or when inputs are far from the training data."""
DEAD_BELOW = 0.02
"""Marginal acceptance of a depth at which drafting gains nothing: 1 round in 50."""
OUTLIER_BELOW = 0.85
"""Ratio of acceptance length to the fleet's median."""
FLEET_OF = 3
"""Fewest engines for which comparing with the median makes sense."""
BEHIND_S = 300
"""Time without a successful export, in seconds: five default export intervals."""
LEAST_ROUNDS = 1
"""Rounds per second below which a mean is unreliable; `Thresholds` overrides it."""
HARMLESS = ("disk_limit", "shadow_differs")
"""Causes of dropped rows that lose no figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Thresholds that depend on a fleet's traffic."""

    least_rounds: float = LEAST_ROUNDS
    acceptance: float = ACCEPTANCE_FELL_BELOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alerting rule."""

    name: str
    expr: str
    severity: str
    """Severity, "warning": look today; "info": look when convenient."""
    summary: str
    """One-line summary, a Prometheus template of labels and value."""
    meaning: str
    """Condition that holds when the alert fires."""
    causes: tuple[str, ...]
    steps: tuple[str, ...]
    """Steps to take, in order."""
    hold: bool = True
    """Whether the condition must hold for `Times.hold` before the alert fires."""


def alerts(times: r.Times, thresholds: Thresholds) -> tuple[Alert, ...]:
    """Return every alert."""
    busy = f"{r.ROUNDS} >= {thresholds.least_rounds:g}"
    dropped, errors = r.name_of(i.DROPPED), r.name_of(i.ERRORS)
    cause, by = label_name(i.CAUSE), ", ".join((*r.ENGINE, label_name(i.SOURCE)))
    return (
        Alert(
            name="DriftscopeAcceptanceFell",
            expr=f"{r.LENGTH} < {thresholds.acceptance:g} * {r.LENGTH_PAST} and {busy}",
            severity="warning",
            summary="Acceptance length of {{ $labels.instance }} fell to {{ $value | humanize }}",
            meaning="A round yields clearly fewer tokens than it did in the engine's own past, "
            "while the engine is busy. Users see it as slower output; quality is unchanged, since "
            "the target verifies every token.",
            causes=(
                (
                    "Other traffic: a chat template that was lost or changed, another language, "
                    "longer contexts."
                ),
                (
                    "Another target or drafter: a new fine-tune, a quantisation, a wrong drafter "
                    "configuration (norm flags, captured layers)."
                ),
                "A new engine version.",
            ),
            steps=(
                (
                    "Open the dashboard `driftscope / drift by depth`. If depth 1 fell with the "
                    "rest, the drafter no longer fits its input; if only large depths fell, see "
                    "DriftscopeDriftRose."
                ),
                "Compare what is served with what was: template, model names, versions, flags.",
                "`driftscope analyze` on the run directory; split by label if requests carry one.",
                "Until it is found, a smaller K costs less per rejected round.",
            ),
        ),
        Alert(
            name="DriftscopeDriftRose",
            expr=f"{r.EXCESS} > {r.EXCESS_PAST} + {EXCESS_ROSE_BY:g} and {busy}",
            severity="warning",
            summary="The drafter of {{ $labels.instance }} attends to its own guesses more: "
            "{{ $value | humanizePercentage }} beyond no drift",
            meaning="The chain's own tokens get more attention than before, "
            "beyond what the slots that they add account for. It is a change over depth that "
            "changed over time.",
            causes=(
                (
                    "Prompts far from the drafter's training: roles written as plain text, no "
                    "system turn, no begin-of-sequence token."
                ),
                (
                    "A drafter whose residual stream is not normalised between depths (EAGLE-3), "
                    "on inputs that let it run away."
                ),
            ),
            steps=(
                (
                    "Look at the hidden RMS by depth beside it: growth names the cause, attention "
                    "shows the effect."
                ),
                (
                    "Look whether acceptance at large depths fell with it; if not, this is to be "
                    "watched, not fixed."
                ),
                "Check the chat template that requests arrive with.",
                "In the long run: a drafter with `fc_norm` and `norm_output` (EAGLE-3.1).",
            ),
        ),
        Alert(
            name="DriftscopeHiddenGrowth",
            expr=f"{r.GROWTH} > {GROWTH_ROSE_TO:g} * {r.GROWTH_PAST} and {busy}",
            severity="warning",
            summary="The hidden state of {{ $labels.instance }}'s drafter grows "
            "{{ $value | humanize }}-fold over a chain",
            meaning="The state that the drafter feeds to its own next depth grows more from depth "
            "1 to K than it did in the engine's own past.",
            causes=(
                (
                    "Another drafter, or one whose norm flags were not carried over from its "
                    "configuration."
                ),
                "Inputs unlike those that it was trained on.",
            ),
            steps=(
                (
                    "`driftscope probe status RUN` and the run's manifest say which norm flags the "
                    "loaded drafter has."
                ),
                (
                    "Look at the captured layers' RMS in `driftscope analyze`: a jump there comes "
                    "from the target, not from the drafter."
                ),
                "Go back to the drafter that was served before.",
            ),
        ),
        Alert(
            name="DriftscopeDeadDepths",
            expr=f"count by ({', '.join(r.ENGINE)}) ({r.REACHED} < {DEAD_BELOW:g}) > 0 and {busy}",
            severity="info",
            summary="{{ $value }} depths of {{ $labels.instance }} are drafted for nothing",
            meaning=f"At these depths fewer than {DEAD_BELOW:.0%} of all rounds are accepted, so "
            "drafting and verifying them costs time and gives nothing.",
            causes=("K is larger than this drafter's reach on this traffic.",),
            steps=(
                "`driftscope analyze` estimates the speed for every smaller K.",
                "Set `num_speculative_tokens` to the last depth that is alive, and compare.",
            ),
        ),
        Alert(
            name="DriftscopeSlowerThanNone",
            expr=f"{r.SPEEDUP} < 1 and {busy}",
            severity="warning",
            summary="Speculation on {{ $labels.instance }} is slower than none: "
            "{{ $value | humanize }} of the target's own speed",
            meaning="By the measured times of drafting and verifying and the tokens that a round "
            "yields, the target alone would be faster. An estimate, which takes verifying to last "
            "as long as a step of the target alone.",
            causes=(
                "Acceptance fell (see DriftscopeAcceptanceFell).",
                "Batches are large: verifying K tokens of each request is then no longer free.",
            ),
            steps=(
                "Compare the draft and verify times on the overview with those of a quiet hour.",
                (
                    "Lower K, or let it fall with the batch size "
                    "(`num_speculative_tokens_per_batch_size`)."
                ),
                "Serve one replica without speculation, and compare its time per output token.",
            ),
        ),
        Alert(
            name="DriftscopeProbeDropping",
            expr=f'sum by ({by}) (increase({dropped}{{{cause}!~"{"|".join(HARMLESS)}"}}'
            f"[{times.window}])) > 0 or sum by ({by}) (increase({errors}[{times.window}])) > 0",
            severity="warning",
            summary="driftscope's probe loses rows in {{ $labels.driftscope_source }} of "
            "{{ $labels.instance }}",
            meaning="The probe could not hand over, encode or write what it recorded, or an error "
            "was caught in a hook. Serving is not affected; figures are incomplete.",
            causes=(
                "queue_full, ring_full: more chains than the recording thread keeps up with.",
                "disk_error: the run directory cannot be written.",
                "Errors in hooks: this engine version differs from those that are known.",
            ),
            steps=(
                "`driftscope probe status RUN` names the cause and the first error.",
                "`driftscope probe set RUN --every N` records less.",
                "`driftscope doctor` says which hooks hold on this engine.",
            ),
            hold=False,
        ),
        Alert(
            name="DriftscopeTraceFull",
            expr=f'sum by ({by}) (increase({dropped}{{{cause}="disk_limit"}}[{times.window}])) > 0',
            severity="info",
            summary="The trace of {{ $labels.instance }} is full; metrics go on",
            meaning="The run directory has reached DRIFTSCOPE_MAX_MB. New rows are not written; "
            "metrics and spans are not affected.",
            causes=("A long run.",),
            steps=(
                "Nothing, if the trace is not needed.",
                (
                    "A larger DRIFTSCOPE_MAX_MB, a lower rate, or a new run directory at the next "
                    "start."
                ),
            ),
            hold=False,
        ),
        Alert(
            name="DriftscopeFleetOutlier",
            expr=f"{r.LENGTH} < on ({', '.join(r.ENGINE[2:])}) group_left () "
            f"{OUTLIER_BELOW:g} * {r.LENGTH_FLEET} and on ({', '.join(r.ENGINE[2:])}) "
            f"count by ({', '.join(r.ENGINE[2:])}) ({r.LENGTH}) >= {FLEET_OF} and {busy}",
            severity="warning",
            summary="{{ $labels.instance }} accepts less than its fleet: {{ $value | humanize }} "
            "tokens per round",
            meaning="Among engines with the same model and drafter this one's acceptance length is "
            f"below {OUTLIER_BELOW:.0%} of the median.",
            causes=(
                "Another engine version, flag or drafter file on this replica.",
                "A router that sends one kind of traffic to one replica.",
                "A faulty device.",
            ),
            steps=(
                "Compare the replica's manifest (versions, flags, config digests) with another's.",
                "Look whether its traffic differs: context length, labels.",
                (
                    "Take it out, replay the same prompts on it and on another, and compare with "
                    "`driftscope analyze A B`."
                ),
            ),
        ),
        Alert(
            name="DriftscopeExportBehind",
            expr=f"{r.name_of(i.BEHIND)} > {BEHIND_S}",
            severity="info",
            summary="No collector has taken {{ $labels.driftscope_signal }} of "
            "{{ $labels.instance }} for {{ $value | humanizeDuration }}",
            meaning="The engine's OTLP export fails. Serving is not affected; cumulative counts "
            "are sent when a collector answers, spans wait in a bounded queue. This alert can only "
            "be seen where the engine is also scraped, or once the collector is back.",
            causes=("The collector is down, refuses, or hangs.",),
            steps=(
                "Look at the collector's own log and limits.",
                "Check the endpoint, headers and protocol (OTEL_EXPORTER_OTLP_*).",
            ),
        ),
    )


def runbook(alert: Alert) -> str:
    """Return the alert's runbook page as Markdown."""
    causes = "\n".join(f"- {cause}" for cause in alert.causes)
    steps = "\n".join(f"{n}. {step}" for n, step in enumerate(alert.steps, 1))
    return (
        f"# {alert.name}\n\nSeverity: {alert.severity}\n\n{alert.meaning}\n\n"
        f"## What it may come from\n\n{causes}\n\n## What to do\n\n{steps}\n\n"
        f"## The rule\n\n```\n{alert.expr}\n```\n"
    )
