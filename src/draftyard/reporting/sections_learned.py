"""Report sections of the training: its curves, and what was learned from."""

from __future__ import annotations

import re

from draftyard.reporting.inputs import BuildRecord
from draftyard.reporting.markup import Child, Markup, definition_list, join, table, tag
from draftyard.reporting.svg import Series, line_chart
from draftyard.reporting.text import clean, dig, number, plain, rows

TEMPLATE_TOKEN = re.compile(r"(<\|[^|<>\n]{1,40}\|>|</?s>|<[a-z]+_of_[a-z]+>|\[/?INST\])")
"""What chat templates put around turns, in the spellings of the common families."""


def training(record: BuildRecord) -> list[Markup]:
    """Curves over steps and epochs."""
    stage = record.stages.get("train", {})
    epochs = [row for row in rows(stage.get("epochs")) if number(row.get("epoch")) is not None]
    if not epochs and not record.curves:
        return [tag("p", "The train stage left no record.")]
    best = number(stage.get("best_epoch"))
    charts = []
    columns = [(key, style) for key, style in (("loss_0", "s1"), ("loss_1", "s2"), ("loss_2", "s3")) if any(key in row for row in record.curves)] or [
        ("loss", "s1")
    ]
    losses = [
        Series(
            f"TTT step {key[5:]}" if key != "loss" else "loss", style, points=[(row["step"], row[key]) for row in record.curves if "step" in row and key in row]
        )
        for key, style in columns
    ]
    losses = [one for one in losses if one.points]
    if losses:
        alt = "Training loss over steps. " + "; ".join(f"{one.name} from {one.points[0][1]:.2f} to {one.points[-1][1]:.2f}" for one in losses)
        charts.append(line_chart("Loss over optimizer steps", alt, losses, x_label="step"))
    held = [(float(row["epoch"]), value) for row in epochs if (value := number(row.get("holdout_acceptance_length"))) is not None]
    if held:
        alt = "Acceptance length on held-out text after each epoch: " + ", ".join(f"epoch {x:.0f} {y:.2f}" for x, y in held)
        charts.append(
            line_chart(
                "Acceptance length on held-out text",
                alt,
                [Series("simulated", "s3", points=held)],
                x_label="epoch; the dotted line is the one kept",
                y_low=1.0,
                markers=True,
                mark_x=best,
            )
        )
    rate = [(row["step"], row["learning_rate"]) for row in record.curves if "step" in row and "learning_rate" in row]
    if rate:
        top = max(y for _, y in rate)
        scaled = [(x, y / top if top else 0.0) for x, y in rate]
        charts.append(
            line_chart(
                f"Learning rate, of its peak {top:g}",
                f"Learning rate over steps, peak {top:g}",
                [Series("learning rate", "s4", points=scaled)],
                x_label="step",
                y_low=0.0,
            )
        )
    parts: list[Markup] = [tag("div", [tag("div", chart) for chart in charts], class_="figures")]
    facts: list[tuple[Child, Child]] = [
        ("epoch kept", plain(stage.get("best_epoch"))),
        ("tokens per epoch", plain(stage.get("tokens_per_epoch"))),
        ("optimizer steps", plain(len(record.curves))),
    ]
    parts.append(definition_list(facts))
    if epochs:
        body = [
            [
                join(plain(row["epoch"]), " (kept)" if row["epoch"] == stage.get("best_epoch") else None),
                plain(row.get("train_loss"), 3),
                plain(row.get("holdout_acceptance_length"), 3),
            ]
            for row in epochs
        ]
        parts.append(table(["epoch", "training loss", "held-out acceptance length"], body, class_="figures-right"))
    return parts


def loss_mask(record: BuildRecord) -> list[Markup]:
    """One training sample as text: the answer that was learned from, the rest with its weight, the template's own tokens set off."""
    sample = rows(dig(record.stages, "train", "loss_mask_sample"))
    if not sample:
        return [tag("p", "No sample was recorded.")]
    runs: list[tuple[str, str]] = []
    for row in sample:
        kind, text = _kind(row), clean(row.get("text", ""))
        runs[-1:] = [(kind, runs[-1][1] + text)] if runs and runs[-1][0] == kind else [*runs[-1:], (kind, text)]
    kinds = {kind for kind, _ in runs}
    weights = sorted({found for row in sample if not row.get("loss") and (found := number(row.get("weight")))})
    weight = ", ".join(f"{value:g}" for value in weights)
    legend = [tag("span", tag("mark", "answer"), " carries the loss of every step")] if "answer" in kinds else []
    if "prompt" in kinds:
        legend.append(tag("span", tag("span", "prompt", class_="prompt"), f" counts {weight}× at the first step (train.prompt_loss_weight)"))
    if "none" in kinds:
        legend.append(tag("span", tag("span", "text", class_="unlearned"), " carries no loss"))
    legend.append(tag("span", tag("b", "<template>", class_="template"), " is the chat template's"))
    said = f"One training sample, decoded{_counted(sample)}. The answer should be what the verifier wrote, with its end token, and nothing else."
    return [tag("p", said), tag("p", legend, class_="legend"), tag("pre", [_run(kind, text) for kind, text in runs], class_="sample")]


def _kind(row: dict[str, object]) -> str:
    if row.get("loss"):
        return "answer"
    return "prompt" if (number(row.get("weight")) or 0) > 0 else "none"


def _counted(sample: list[dict[str, object]]) -> str:
    counts = [number(row.get("tokens")) for row in sample]
    if any(count is None for count in counts):
        return ""
    total = sum(count for count in counts if count is not None)
    learned = sum(count for count, row in zip(counts, sample, strict=True) if count is not None and row.get("loss"))
    return f": the answer is {learned:.0f} of {total:.0f} tokens"


def _run(kind: str, text: str) -> Markup:
    parts: list[Child] = [tag("b", part, class_="template") if TEMPLATE_TOKEN.fullmatch(part) else part for part in TEMPLATE_TOKEN.split(text) if part]
    return tag("mark", parts) if kind == "answer" else tag("span", parts, class_="prompt" if kind == "prompt" else "unlearned")
