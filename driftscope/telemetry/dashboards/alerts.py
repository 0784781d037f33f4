"""Alerting rules, each with the text of its runbook."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.dashboards import recording as r
from driftscope.telemetry.dashboards.reference import MODEL, growth, length
from driftscope.telemetry.dashboards.rule_options import LEAST_CHAINS, Thresholds, Times
from driftscope.telemetry.export.scrape import label_name
from driftscope.vocabulary import INFO, MEDIUM

DEAD_BELOW = 0.02
"""Marginal acceptance of a depth at which drafting gains nothing: 1 round in 50."""
OUTLIER_BELOW = 0.85
"""Ratio of acceptance length to the fleet's median."""
FLEET_OF = 3
"""Fewest engines for which comparing with the median makes sense."""
BEHIND_S = 300
"""Time without a successful export, in seconds: five default export intervals."""
HARMLESS = ("disk_limit", "shadow_differs")
"""Causes of dropped rows that lose no figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alerting rule."""

    name: str
    expr: str
    severity: str
    """One of `driftscope.vocabulary.SEVERITIES`; medium: look today; info: look when convenient."""
    summary: str
    """One-line summary, a Prometheus template of labels and value."""
    meaning: str
    """Condition that holds when the alert fires."""
    causes: tuple[str, ...]
    steps: tuple[str, ...]
    """Steps to take, in order."""
    hold: bool = True
    """Whether the condition must hold for `Times.hold` before the alert fires."""


def alerts(times: Times, thresholds: Thresholds) -> tuple[Alert, ...]:
    """Return every alert."""
    busy = f"{r.ROUNDS} >= {thresholds.least_rounds:g}"
    dropped, errors = r.name_of(i.DROPPED), r.name_of(i.ERRORS)
    cause, by = label_name(i.CAUSE), ", ".join((*r.ENGINE, label_name(i.SOURCE)))
    lengths, growths, model = length(times, thresholds), growth(times), ", ".join(MODEL)
    fleet = ", ".join(r.ENGINE[2:])
    lost = f'{dropped}{{{cause}!~"{"|".join(HARMLESS)}"}}'
    before = f"[{times.gap}] offset {times.window}"
    chains = f"on ({', '.join(r.ENGINE)}) {r.CHAINS_RECENT} >= {LEAST_CHAINS}"
    return (
        Alert(
            name="DriftscopeAcceptanceFell",
            expr=lengths.fired,
            hold=False,  # the state has it
            severity=MEDIUM,
            summary="Acceptance length of {{ $labels.gen_ai_request_model }} fell to "
            "{{ $value | humanizePercentage }} of its reference",
            meaning="A round yields clearly fewer tokens than in the model's own past, over all "
            "its engines. Users notice slower output; quality is unchanged, because the target "
            f"verifies every token. The alert begins below {thresholds.acceptance:.0%} of the "
            f"reference and lasts until the length is back at {thresholds.acceptance_back:.0%}; "
            "the reference keeps its value meanwhile. Without traffic the state stays as it was.",
            causes=(
                (
                    "Different traffic: a missing or changed chat template, another language, "
                    "longer contexts."
                ),
                (
                    "A different target or drafter: a new fine-tune, quantisation, a wrong drafter "
                    "configuration (norm flags, captured layers)."
                ),
                "A new engine version.",
            ),
            steps=(
                (
                    "Open the dashboard `driftscope / drift by depth`. If depth 1 fell with the "
                    "rest, the drafter no longer fits its input; if only large depths fell, see "
                    "DriftscopeHiddenGrowth."
                ),
                (
                    "Compare the current deployment with the previous one: template, model names, "
                    "versions, flags."
                ),
                "Run `driftscope analyze` on the run directory; split by label if there are any.",
                "Until the cause is found, use a smaller K, which costs less per rejected round.",
                (
                    "If the new length is intended, make it the reference: `driftscope dashboards "
                    "--reference MODEL=LENGTH`, and load the rules again. Without the option the "
                    "alert goes on, because the reference does not follow the fall."
                ),
            ),
        ),
        Alert(
            name="DriftscopeHiddenGrowth",
            expr=growths.fired,
            hold=False,  # the state has it
            severity=MEDIUM,
            summary="The hidden state of {{ $labels.gen_ai_request_model }}'s drafter grows "
            "{{ $value | humanize }} times as much over a chain as its reference",
            meaning="The state that the drafter feeds to its own next depth grows more from depth "
            "1 to K than in the model's own past, as a mean over the chains recorded in "
            f"{times.chain_window}, of which there must be {LEAST_CHAINS}.",
            causes=(
                (
                    "A different drafter, or one whose norm flags were not taken over from its "
                    "configuration."
                ),
                "Inputs unlike those of the drafter's training.",
            ),
            steps=(
                (
                    "`driftscope probe status RUN` and the run's manifest show the norm flags of "
                    "the loaded drafter."
                ),
                (
                    "Look at the captured layers' RMS in `driftscope analyze`: a jump there comes "
                    "from the target, not from the drafter."
                ),
                "Go back to the previous drafter.",
            ),
        ),
        Alert(
            name="DriftscopeDeadDepths",
            expr=f"count by ({', '.join(r.ENGINE)}) ({r.REACHED} < {DEAD_BELOW:g}) > 0 and {busy}",
            severity=INFO,
            summary="{{ $value }} depths of {{ $labels.instance }} are drafted for nothing",
            meaning=f"At these depths fewer than {DEAD_BELOW:.0%} of all rounds are accepted, so "
            "drafting and verifying them costs time and saves none.",
            causes=("K is larger than the depth that this drafter reaches on this traffic.",),
            steps=(
                "`driftscope analyze` estimates the speed for every smaller K.",
                "Set `num_speculative_tokens` to the last depth still accepted, and compare.",
            ),
        ),
        Alert(
            name="DriftscopeSlowerThanNone",
            expr=f"{r.SPEEDUP} < 1 and {busy} and {chains}",
            severity=MEDIUM,
            summary="Speculation on {{ $labels.instance }} is slower than no speculation: {{ "
            "$value | humanize }} of the target's own speed",
            meaning="By the measured times of drafting and verifying and the tokens that a round "
            "yields, the target alone would be faster. This is an estimate: it assumes that "
            "verifying takes as long as a step of the target alone.",
            causes=(
                "Acceptance fell (see DriftscopeAcceptanceFell).",
                "Large batches: verifying K tokens of each request then costs noticeable time.",
            ),
            steps=(
                "Compare the draft and verify times on the overview with those of a quiet hour.",
                (
                    "Lower K, or reduce it with the batch size "
                    "(`num_speculative_tokens_per_batch_size`)."
                ),
                "Serve one replica without speculation, and compare its time per output token.",
            ),
        ),
        Alert(
            name="DriftscopeProbeDropping",
            expr=" or ".join(
                f"sum by ({by}) ({found})"
                for series in (lost, errors)
                for found in (
                    f"increase({series}[{times.window}]) > 0",
                    # A series that begins above 0, of a cause that is not known yet.
                    f"{series} > 0 unless last_over_time({series}{before})",
                )
            ),
            severity=MEDIUM,
            summary="driftscope's probe loses rows in {{ $labels.driftscope_source }} of "
            "{{ $labels.instance }}",
            meaning="The probe could not queue, encode or write what it recorded, or an error was "
            "caught in a hook. Serving is not affected; figures are incomplete.",
            causes=(
                "queue_full, ring_full: more chains than the recording thread can process.",
                "disk_error: the run directory cannot be written.",
                "encode_error: a row that does not fit the trace's schema.",
                "Errors in hooks: this engine version differs from the known ones.",
            ),
            steps=(
                "`driftscope probe status RUN` shows the cause and the first error.",
                "`driftscope probe set RUN --every N` records less.",
                "`driftscope doctor` shows which hooks work on this engine.",
            ),
            hold=False,
        ),
        Alert(
            name="DriftscopeProbeDown",
            expr=f"{r.name_of(i.UP)} == 0",
            severity=MEDIUM,
            summary="{{ $labels.instance }} serves, but its probe records nothing: "
            "{{ $labels.driftscope_reason }}",
            meaning="The engine started without its probe. Serving is not affected; the engine has "
            "no figures of acceptance and drift, and no other alert can fire for it.",
            causes=(
                "setting, directory, package: the environment of this engine.",
                "engine, drafter: a version or a drafter that the probe does not know.",
            ),
            steps=(
                "The engine's log has one line that states the reason.",
                "`driftscope doctor` in the same environment shows it again, and what to do.",
            ),
        ),
        Alert(
            name="DriftscopeTraceFull",
            expr=f'sum by ({by}) ({dropped}{{{cause}="disk_limit"}}) > 0',
            severity=INFO,
            summary="The trace of {{ $labels.instance }} is full; metrics continue",
            meaning="The run directory has reached DRIFTSCOPE_MAX_MB. New rows are not written; "
            "metrics and spans are not affected.",
            causes=("A long run.",),
            steps=(
                "Do nothing if the trace is not needed.",
                (
                    "Otherwise set a larger DRIFTSCOPE_MAX_MB, a lower rate, or a new run "
                    "directory at the next start."
                ),
            ),
            hold=False,
        ),
        Alert(
            name="DriftscopeFleetOutlier",
            expr=f"({r.LENGTH} < on ({fleet}) group_left () {OUTLIER_BELOW:g} * {r.LENGTH_FLEET} "
            f"and on ({fleet}) count by ({fleet}) ({r.LENGTH}) >= {FLEET_OF} "
            f"or {r.LENGTH} < on ({model}) group_left () {thresholds.acceptance:g} * "
            f"{lengths.reference} unless on ({model}) ({lengths.fired})) and {busy}",
            severity=MEDIUM,
            summary="{{ $labels.instance }} accepts less than its fleet: {{ $value | humanize }} "
            "tokens per round",
            meaning="Among engines with the same model and drafter this one's acceptance length is "
            f"below {OUTLIER_BELOW:.0%} of the median; or it is below {thresholds.acceptance:.0%} "
            "of the model's reference while the model as a whole is not.",
            causes=(
                "A different engine version, flag or drafter file on this replica.",
                "A router that sends one kind of traffic to one replica.",
                "A faulty device.",
            ),
            steps=(
                "Compare the replica's manifest (versions, flags, config digests) with another's.",
                "Check whether its traffic differs: context length, labels.",
                (
                    "Take it out of service, replay the same prompts on it and on another replica, "
                    "and compare them with `driftscope analyze A B`."
                ),
            ),
        ),
        Alert(
            name="DriftscopeNoReference",
            expr=f"{lengths.enough} unless on ({model}) {lengths.reference}",
            severity=INFO,
            summary="{{ $labels.gen_ai_request_model }} has no acceptance length to compare with",
            meaning="The model is new: it has no past yet, no other job serves it, and no "
            "reference is configured. A length that is low from the start goes unnoticed, and "
            f"after {times.gap} it becomes the past.",
            causes=("A new model, or a new name of the job or the model.",),
            steps=(
                (
                    "Give a length that you trust, of an earlier run or of `driftscope bench`: "
                    "`driftscope dashboards --reference MODEL=LENGTH`, and load the rules again."
                ),
                "Or compare the first hour with `driftscope analyze RUN --baseline EARLIER`.",
            ),
        ),
        Alert(
            name="DriftscopeExportBehind",
            expr=f"{r.name_of(i.BEHIND)} > {BEHIND_S}",
            severity=INFO,
            summary="No collector has accepted {{ $labels.driftscope_signal }} of {{ "
            "$labels.instance }} for {{ $value | humanizeDuration }}",
            meaning="The engine's OTLP export fails. Serving is not affected; cumulative counts "
            "are sent when a collector answers again, and spans wait in a bounded queue. This "
            "alert is visible only if the engine is also scraped, or once the collector is back.",
            causes=("The collector is down, refuses data, or hangs.",),
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
