"""Report sections of the draft itself: architecture, checks, vocabulary."""

from __future__ import annotations

from typing import Any

from draftyard.reporting import metrics as m
from draftyard.reporting.inputs import BuildRecord
from draftyard.reporting.markup import Child, Markup, definition_list, join, table, tag
from draftyard.reporting.svg import meter
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
    """Parameter counts, head_dim in words, every tensor expected, found and in the reference, every static check."""
    counts = m.parameters(record)
    parts: list[Markup] = [definition_list((f"{name} parameters", plain(counts.get(name))) for name in ("saved", "total", "trainable"))]
    parts.append(_head_dim(record))
    tensors = rows(record.static.get("tensors"))
    if tensors:
        parts.append(_tensors(record, tensors))
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


def _tensors(record: BuildRecord, tensors: list[dict[str, Any]]) -> Markup:
    reference = record.static.get("reference")
    body, wrong, unlike = [], 0, 0
    for row in sorted(tensors, key=lambda row: (row.get("shape") == row.get("expected_shape"), str(row.get("name")))):
        same = row.get("shape") == row.get("expected_shape")
        alike = not reference or row.get("shape") == row.get("reference_shape")
        wrong, unlike = wrong + (not same), unlike + (not alike)
        cells = [tag("code", row.get("name")), shape(row.get("expected_shape")), shape(row.get("shape"))]
        if reference:
            cells.append(shape(row.get("reference_shape")) if alike else tag("span", shape(row.get("reference_shape")), class_="badge warn"))
        body.append([*cells, row.get("dtype") or "–", badge("pass" if same and alike else "warn" if same else "fail")])
    found = f"{wrong} not as computed from the params, first in the table" if wrong else "all as computed from the params"
    beside = f"; reference: {clean(reference)}, {f'{unlike} unlike it' if unlike else 'alike throughout'}" if reference else ""
    headers = ["tensor", "expected", "found", *(["reference"] if reference else []), "dtype", "status"]
    return table(headers, body, class_="stack pairs", caption=f"{len(tensors)} tensors, {found}{beside}.")


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
