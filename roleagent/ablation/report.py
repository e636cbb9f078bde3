"""The Markdown report of an ablation, and the folder that it lies in with table, figure and numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roleagent.ablation.measures import measure_lines, measures_csv, noise_lines
from roleagent.ablation.plan import Plan
from roleagent.ablation.results import Comparison, Line, Outcome, Results, table_csv
from roleagent.ablation.statistics import Estimate
from roleagent.tracking.history import MEASURES
from roleagent.tracking.report import escape

FIGURE = "figures/curves.png"
MEASURES_FIGURE = "figures/measures.png"
_TITLES = {"episodes": "At equal episodes", "seconds": "At equal time"}
_METHOD = (
    "Means are over n seeds, with 95 % t intervals. A difference is taken seed by seed: both runs of a pair began with "
    "the same policy and were evaluated on the same held-out tasks. p is that of the two-sided paired t-test, then "
    "corrected after Holm for the number of variants in the table. Intervals cover the spread over seeds, not the "
    "choice of the held-out tasks, which is the same for all."
)


def write_report(plan: Plan, results: Results, sittings: Sequence[Mapping[str, Any]]) -> Path:
    """Write `report.md`, `results.json`, tables and figures into the ablation's folder; return that folder."""
    from roleagent.ablation.figure import draw_ablation
    from roleagent.ablation.measures import draw_measures

    folder = plan.folder / "report"
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    figure = draw_ablation(results)
    if figure is not None:
        figure.savefig(folder / FIGURE)
    measured = draw_measures(results)
    if measured is not None:
        measured.savefig(folder / MEASURES_FIGURE)
    (folder / "measures.csv").write_text(measures_csv(results), encoding="utf-8")
    (folder / "results.json").write_text(json.dumps(results.as_dict(), indent=1), encoding="utf-8")
    (folder / "table.csv").write_text(table_csv(results), encoding="utf-8")
    text = render_report(plan, results, sittings, figure=FIGURE if figure is not None else "")
    (folder / "report.md").write_text(text, encoding="utf-8")
    return folder


def render_report(plan: Plan, results: Results, sittings: Sequence[Mapping[str, Any]], figure: str = FIGURE) -> str:
    """Return the report's text; `figure` is the picture's address, empty for none."""
    parts = [f"# Ablation {escape(results.ablation_id)}", headline(results)]
    if figure:
        parts.append(f"![Held-out success by variant]({figure})")
    for comparison in results.comparisons:
        parts += [f"## {_TITLES[comparison.axis]}", budget_text(comparison), comparison_table(results, comparison)]
    parts.append(_METHOD)
    parts += _measures(results) + _noise(results)
    if len(sittings) and any(sitting["parallel"] > 1 for sitting in sittings):
        parts.append(
            "Runs shared the machine while they trained. Their times are comparable with each other, not with those of "
            "a run that has the machine to itself."
        )
    parts += ["## Runs", _runs_table(results.outcomes)]
    if results.failed:
        told = "\n".join(
            f"- {escape(item.run_id)}: {escape(item.status)}" + (f": {escape(item.reason)}" if item.reason else "")
            for item in results.failed
        )
        parts += ["### Not counted", told]
    parts += ["## Variants", _variants_table(plan), "## How to repeat it", _repeat(plan, sittings)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _measures(results: Results) -> list[str]:
    lines = measure_lines(results)
    if not lines:
        return []
    against = escape(results.labels[results.reference])
    head = ("measure", "variant", "n", "first quarter", "last quarter", "change", "95 % interval")
    rows = [
        (
            escape(MEASURES[line.measure]),
            escape(results.labels[line.variant]),
            str(line.after.n),
            number(line.before.mean),
            number(line.after.mean),
            number(line.change.mean),
            interval(line.change, number),
            number(line.difference.mean),
            interval(line.difference, number),
        )
        for line in lines
    ]
    return [
        "## Beside success",
        "Means over the first and the last quarter of the iterations, and their change, with 95 % t intervals over "
        "seeds; the difference is that of the last quarter, paired by seed. Not corrected for their number.",
        f"![Measures over the iterations]({MEASURES_FIGURE})",
        _table((*head, f"against {against}", "95 % interval"), rows),
    ]


def _noise(results: Results) -> list[str]:
    lines = noise_lines(results)
    if not lines:
        return []
    rows = [
        (
            escape(results.labels[line.variant]),
            str(line.iterations),
            number(line.scale) or "no signal found",
            f"{line.low:.3g}" if math.isfinite(line.low) else "unbounded",
            f"{line.high:.3g}" if math.isfinite(line.high) else "unbounded",
        )
        for line in lines
    ]
    return [
        "## Gradient noise",
        "The simple noise scale in tasks (with several minibatches a pass: in the parts of tasks that one holds), over "
        "all iterations of all seeds, with its 95 % bootstrap interval. "
        "Without a signal the mean gradient could not be told from the noise, and the lower end alone says something.",
        _table(("variant", "iterations", "noise scale", "from", "to"), rows),
    ]


def headline(results: Results) -> str:
    """Return in a sentence how many runs count and which variants differ."""
    finished = sum(outcome.finished for outcome in results.outcomes)
    reference = escape(results.labels[results.reference])
    text = f"{finished} of {len(results.outcomes)} runs finished. "
    tested = [line for line in results.comparisons[0].lines if line.p_holm is not None]
    if not tested:
        return text + f"Nothing can be compared with {reference} yet: that takes two seeds which both finished."
    found = [line for line in tested if line.p_holm is not None and line.p_holm <= 0.05]
    if not found:
        return text + f"At equal episodes no variant differs significantly from {reference} (5 % level, after Holm)."
    told = ", ".join(f"{escape(line.label)} ({points(line.difference.mean)} points)" for line in found)
    return text + f"At equal episodes these differ significantly from {reference} (5 % level, after Holm): {told}."


def comparison_table(results: Results, comparison: Comparison) -> str:
    """Return one budget's comparison as a Markdown table."""
    against = escape(results.labels[results.reference])
    head = ("variant", "n", "held-out success", "95 % interval", f"against {against}", "95 % interval", "p", "p (Holm)")
    rows = [
        (
            f"**{escape(line.label)}**" if line.variant == results.reference else escape(line.label),
            str(line.success.n),
            rate(line.success.mean),
            interval(line.success),
            points(line.difference.mean),
            interval(line.difference, points),
            p_text(line.p),
            p_text(line.p_holm),
        )
        for line in comparison.lines
    ]
    return _table(head, rows)


def budget_text(comparison: Comparison) -> str:
    """Say where the curves are read off."""
    if comparison.budget <= 0:
        return "No finished run, or none that trained."
    if comparison.axis == "episodes":
        return f"Read off after {comparison.budget:,.0f} training episodes, which every finished run has played."
    return (
        f"Read off after {duration(comparison.budget)} of training, the time of the run that was done first; "
        "evaluations are not in it."
    )


def rate(value: float | None) -> str:
    """Write a rate as "52.1 %"; "" where it is unknown."""
    return "" if value is None else f"{value:.1%}"


def number(value: float | None) -> str:
    """Write a number in four digits; "" where it is unknown."""
    return "" if value is None else f"{value:.4g}"


def points(value: float | None) -> str:
    """Write a difference of rates as "+3.1" percentage points; "" where it is unknown."""
    return "" if value is None else f"{100 * value:+.1f}".replace("-0.0", "+0.0")


def interval(estimate: Estimate, form: Any = rate) -> str:
    """Write an interval as "46.0% to 58.1%"; "" where there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{form(estimate.low)} to {form(estimate.high)}"


def p_text(p: float | None) -> str:
    """Write a p-value; "" where there is none."""
    if p is None:
        return ""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def duration(seconds: float) -> str:
    """Write seconds as "48 s" or "12.5 min"."""
    return f"{seconds:.0f} s" if seconds < 300 else f"{seconds / 60:.1f} min"


def line_of(comparison: Comparison, variant: str) -> Line:
    """Return the line of a variant."""
    return next(line for line in comparison.lines if line.variant == variant)


def _runs_table(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for outcome in outcomes:
        first, last = (outcome.curve[0], outcome.curve[-1]) if outcome.curve else (None, None)
        rows.append(
            (
                f"`{outcome.run_id}`",
                str(outcome.seed),
                outcome.status,
                rate(first.success) if first else "",
                rate(last.success) if last else "",
                f"{last.episodes:,.0f}" if last else "",
                duration(last.seconds) if last else "",
                f"`{outcome.mlflow_run}`" if outcome.mlflow_run else "",
            )
        )
    return _table(("run", "seed", "status", "before", "after", "episodes", "training time", "MLflow run"), rows)


def _variants_table(plan: Plan) -> str:
    rows = [
        (escape(variant.label), f"`{variant.name}`", "<br>".join(f"`{_code(text)}`" for text in variant.overrides))
        for variant in plan.variants
    ]
    return _table(("variant", "name", "overrides"), rows, numbers=False)


def _repeat(plan: Plan, sittings: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        f"    {plan.request.command()}",
        f"In the ablation's own folder, with the preset as it was: `{_code(plan.request.command('preset.yaml'))}`",
        f"Seeds: {', '.join(map(str, plan.seeds))}. Every run's whole configuration is in `plan.json`.",
    ]
    if sittings:
        rows = []
        for sitting in sittings:
            machine = sitting["machine"]
            rows.append(
                (
                    escape(str(sitting["at"])),
                    f"{sitting['parallel']} x {sitting['threads']}",
                    escape(str(machine["processor"])),
                    str(machine["cores"]),
                    f"{machine['memory_gb']:g}",
                    escape(", ".join(machine["gpus"])),
                    escape(f"{machine['packages']['torch']}, Python {machine['python']}"),
                    f"`{str(machine['commit'])[:12]}`" if machine["commit"] else "",
                )
            )
        head = ("started", "runs x threads", "processor", "cores", "GB", "GPUs", "torch", "sources")
        lines.append(_table(head, rows, numbers=False))
    return "\n\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True) -> str:
    marks = [":--", *(["--:"] if numbers else [":--"]) * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, marks, *rows))


def _code(text: str) -> str:
    return "".join(c for c in text if c.isprintable() and c not in "`|")
