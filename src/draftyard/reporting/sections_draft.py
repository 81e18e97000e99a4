"""Report sections of the draft itself: architecture, checks, vocabulary, training."""

from __future__ import annotations

from typing import Any

from draftyard.reporting import metrics as m
from draftyard.reporting.inputs import BuildRecord
from draftyard.reporting.markup import Child, Markup, definition_list, join, table, tag
from draftyard.reporting.svg import Series, line_chart, meter
from draftyard.reporting.text import clean, dig, mapping, number, percent, plain, rows, shape, visible

BADGES = {"pass": "✓", "fail": "✕", "warn": "!", "skipped": "–", "info": "·", "red": "✕", "green": "✓"}
CHECK_ORDER = {"fail": 0, "warn": 1, "pass": 2, "skipped": 3}


def badge(status: str, with_word: bool = True) -> Markup:
    """A status as a sign and a word (the word hidden from the eye only where the sign stands in a list)."""
    sign = tag("span", BADGES.get(status, "?"), aria_hidden="true")
    return tag(
        "span",
        sign,
        f" {status}" if with_word else None,
        class_=f"badge {status if status in BADGES else 'info'}",
        aria_label=None if with_word else status,
        role=None if with_word else "img",
    )


def architecture(record: BuildRecord) -> list[Markup]:
    """Parameter counts, head_dim in words, every tensor expected and found, every static check."""
    counts = m.parameters(record)
    parts: list[Markup] = [definition_list((f"{name} parameters", plain(counts.get(name))) for name in ("saved", "total", "trainable"))]
    parts.append(_head_dim(record))
    tensors = rows(record.static.get("tensors"))
    if tensors:
        body, wrong = [], 0
        for row in sorted(tensors, key=lambda row: (row.get("shape") == row.get("expected_shape"), str(row.get("name")))):
            same = row.get("shape") == row.get("expected_shape")
            wrong += not same
            body.append(
                [tag("code", row.get("name")), shape(row.get("expected_shape")), shape(row.get("shape")), row.get("dtype"), badge("pass" if same else "fail")]
            )
        found = f"{wrong} not as computed from the params, first in the table" if wrong else "all as computed from the params"
        caption = f"{len(tensors)} tensors, {found}."
        parts.append(table(["tensor", "expected", "found", "dtype", "status"], body, class_="stack pairs", caption=caption))
    else:
        parts.append(tag("p", "The checkpoint's tensors were not listed."))
    checks = sorted(rows(record.static.get("checks")), key=lambda check: (CHECK_ORDER.get(str(check.get("status")), 0), str(check.get("id"))))
    if checks:
        body = [[tag("code", check.get("id")), badge(str(check.get("status"))), join(check.get("detail"), _hint(check))] for check in checks]
        failed = sum(check.get("status") == "fail" for check in checks)
        listed = table(["check", "status", "found"], body, class_="stack texts")
        parts.append(tag("details", tag("summary", f"Static checks: {len(checks)}, {failed} failed"), listed, open="" if failed else None))
    return parts


def vocabulary(record: BuildRecord, limit: int) -> list[Markup]:
    """Size, coverage, the `limit` most frequent tokens that the draft cannot propose."""
    stage = record.stages.get("vocab", {})
    if not stage:
        return [tag("p", "The vocab stage left no record.")]
    parts = [
        definition_list(
            [
                ("draft vocabulary, tokens", plain(stage.get("size"))),
                ("of the verifier's", plain(dig(record.card, "geometry", "vocab_size"))),
                ("always included", _forced(stage.get("forced_tokens"))),
            ]
        )
    ]
    for where, words in (("train", "answer tokens of the training set"), ("holdout", "answer tokens held out")):
        value = number(stage.get(f"coverage_{where}"))
        if value is not None:
            parts.append(
                tag(
                    "figure",
                    tag("figcaption", f"{percent(value, 2)} ", tag("small", f"of the {words} can be proposed")),
                    meter(f"{percent(value, 2)} of the {words}", value, "s1" if where == "holdout" else "s3"),
                )
            )
    uncovered = rows(stage.get("uncovered"))[:limit]
    if uncovered:
        parts.append(tag("h3", "The most frequent tokens outside the draft vocabulary"))
        parts.append(
            tag(
                "ul",
                [
                    tag("li", tag("span", visible(row.get("text")), class_="token"), f" {plain(row.get('count'))}×", title=f"token {row.get('token_id')}")
                    for row in uncovered
                ],
                class_="tokens",
            )
        )
    return parts


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
                f"Learning rate, relative to its peak of {top:g}",
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
    """One training sample as text, with what carried loss marked."""
    sample = rows(dig(record.stages, "train", "loss_mask_sample"))
    if not sample:
        return [tag("p", "No sample was recorded.")]
    learned = sum(bool(row.get("loss")) for row in sample)
    runs: list[tuple[bool, str]] = []
    for row in sample:
        flag, text = bool(row.get("loss")), clean(row.get("text", ""))
        runs[-1:] = [(flag, runs[-1][1] + text)] if runs and runs[-1][0] == flag else [*runs[-1:], (flag, text)]
    said = (
        f"One training sample, decoded. The underlined {learned} of {len(sample)} tokens carry the answer's loss: this should be what the verifier "
        "wrote, with its end token, and nothing else. The rest counts with train.prompt_loss_weight, which may be 0."
    )
    return [tag("p", said), tag("pre", [tag("mark", text) if flag else text for flag, text in runs], class_="sample")]


def _head_dim(record: BuildRecord) -> Markup:
    head_dim, per_head = number(record.static.get("head_dim")), record.static.get("hidden_per_head")
    geometry = mapping(dig(record.stages, "train", "geometry"))
    heads, kv, hidden = (number(geometry.get(key)) for key in ("num_attention_heads", "num_key_value_heads", "hidden_size"))
    if head_dim is None:
        return tag("p", "head_dim: not recorded.", class_="callout")
    said: list[Child] = [
        tag("strong", f"head_dim = {head_dim:.0f}"),
        f"; hidden / heads = {plain(per_head, 1) if number(per_head) is not None else per_head}. ",
    ]
    if number(per_head) is not None and head_dim != number(per_head):
        said.append("They differ on purpose: head_dim is set, never derived. A loader that derives it expects other shapes. ")
    if heads and kv and hidden:
        said.append(f"q_proj has {heads:.0f} × {head_dim:.0f} = {heads * head_dim:,.0f} rows, ")
        said.append(f"k_proj and v_proj {kv:.0f} × {head_dim:.0f} = {kv * head_dim:,.0f}, and o_proj leads back to {hidden:,.0f}.")
    return tag("p", said, class_="callout")


def _hint(check: dict[str, Any]) -> Markup | None:
    return tag("div", str(check["hint"]), class_="soft") if check.get("hint") and check.get("status") != "pass" else None


def _forced(tokens: Any) -> str:
    if isinstance(tokens, list):
        return f"{len(tokens)} special tokens"
    return f"{plain(tokens)} special tokens" if number(tokens) is not None else plain(None)
