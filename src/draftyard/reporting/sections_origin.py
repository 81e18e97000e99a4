"""Report sections of where a draft comes from: the stages' own figures, the lineage chain, the environment."""

from __future__ import annotations

from typing import Any

from draftyard.reporting.inputs import ARTIFACTS, STAGES, BuildRecord
from draftyard.reporting.markup import Child, Markup, definition_list, table, tag
from draftyard.reporting.text import clean, mapping, number, percent, plain, short_digest

SHOWN_ELSEWHERE = {"uncovered", "loss_mask_sample", "epochs", "parameters", "categories", "forced_tokens"}
COLUMN_ORDER = ("read", "rejected", "duplicates", "near_duplicates", "cut", "train", "holdout", "answers", "output_tokens", "skipped", "looping")
MAX_LIST = 12


def data(record: BuildRecord) -> list[Markup]:
    """The prompts and answers by category, and every figure that a stage recorded."""
    parts = [
        table_
        for stage, words in (("prompts", "Prompts by category"), ("generate", "Answers by category"))
        if (table_ := _by_category(record.stages.get(stage, {}), words))
    ]
    looping = number(record.stages.get("generate", {}).get("looping_fraction"))
    if looping is not None:
        parts.append(tag("p", f"{percent(looping)} of the answers end in a repetition loop. Loops inflate acceptance: a two-token loop is easy to draft."))
    for name in STAGES:
        facts = list(flatten(record.stages.get(name, {})))
        if facts:
            parts.append(tag("details", tag("summary", f"Stage {name}: everything recorded"), definition_list(facts), class_="bulk"))
    return parts or [tag("p", "No stage left a record.")]


def lineage(record: BuildRecord) -> list[Markup]:
    """Each artifact with its digest and those of its inputs; a link that does not hold is said."""
    digests, broken = record.digests(), record.broken_links()
    items = []
    if record.card:
        said = f"{record.card.get('source')}: {record.card.get('name')}, revision {record.card.get('revision') or 'none'}"
        items.append(tag("li", tag("strong", "verifier"), " ", tag("code", short_digest(digests["verifier"])), tag("br"), said))
    for kind, found in record.lineages.items():
        wrong = [line for line in broken if line.startswith(f"{kind} was")]
        made = ", ".join(f"{name} {short_digest(digest)}" for name, digest in sorted(found.inputs.items())) or "no other artifact"
        facts = "; ".join(f"{key} {_value(value)}" for key, value in sorted(found.facts.items()))
        items.append(
            tag(
                "li",
                tag("strong", kind),
                " ",
                tag("code", short_digest(found.digest)),
                tag("br"),
                f"made from {made}",
                tag("div", facts, class_="soft") if facts else None,
                [tag("div", line, class_="badge fail") for line in wrong],
                class_="fail" if wrong else None,
            )
        )
    absent = [kind for kind in ARTIFACTS if kind not in record.lineages]
    said = (
        f"{len(broken)} links do not hold: parts of different builds are mixed."
        if broken
        else "Every artifact was made from exactly the inputs shown above it."
    )
    parts = [tag("p", said if record.lineages else "No lineage is on this machine."), tag("ol", items, class_="chain")]
    if absent and record.lineages:
        parts.append(tag("p", f"Without a lineage here: {', '.join(absent)}.", class_="soft"))
    for kind, found in record.lineages.items():
        params = list(flatten(found.params))
        if params:
            parts.append(tag("details", tag("summary", f"Params of {kind}"), definition_list(params), class_="bulk"))
    return parts


def environment(record: BuildRecord) -> list[Markup]:
    """Versions of the packages that can change a result, and the verifier as it is served."""
    versions: dict[str, dict[str, list[str]]] = {}
    for kind, found in record.lineages.items():
        for package, version in found.packages.items():
            versions.setdefault(package, {}).setdefault(version, []).append(kind)
    body = [[package, version, ", ".join(kinds)] for package in sorted(versions) for version, kinds in sorted(versions[package].items())]
    parts: list[Markup] = [table(["package", "version", "used for"], body)] if body else [tag("p", "No package version was recorded.")]
    card = record.card
    served = record.serving.get("machine")
    if isinstance(served, dict):
        gpus = [clean(gpu) for gpu in served.get("gpus") or [] if isinstance(gpu, str)] if isinstance(served.get("gpus"), list) else []
        where = f"{clean(served.get('cpu'))}, {plain(served.get('cores'))} cores{', ' + ', '.join(gpus) if gpus else ''}"
        parts.append(definition_list([("served and timed on", where), ("served in", clean(record.serving.get("dtype")))]))
    if card:
        engine = ", ".join(f"{key}={value}" for key, value in sorted((card.get("engine_args") or {}).items())) or "defaults"
        facts: list[tuple[Child, Child]] = [
            ("verifier dtype", str(card.get("dtype"))),
            ("verifier parameters", plain(card.get("num_parameters"))),
            ("engine options that change results", engine),
        ]
        facts += [(f"{key} digest", short_digest(card[f"{key}_digest"])) for key in ("tokenizer", "chat_template") if card.get(f"{key}_digest")]
        parts.append(definition_list(facts))
    return parts


def flatten(values: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested figures as ("a.b", value) lines, without what the report shows in a section of its own."""
    lines: list[tuple[str, str]] = []
    for key in sorted(values, key=str):
        if key in SHOWN_ELSEWHERE and (not prefix or key == "categories"):
            continue
        value = values[key]
        lines += flatten(value, f"{prefix}{key}.") if isinstance(value, dict) and value else [(f"{prefix}{key}", _value(value))]
    return lines


def _by_category(stage: dict[str, Any], words: str) -> Markup | None:
    found = dict(sorted(mapping(stage.get("categories")).items()))
    keys = {key for row in found.values() if isinstance(row, dict) for key in row}
    columns = [*(key for key in COLUMN_ORDER if key in keys), *sorted(keys - set(COLUMN_ORDER))]
    if not found:
        return None
    if not columns:
        return table(["category", "count"], [[name, _value(row)] for name, row in found.items()], class_="figures-right", caption=words)
    body = [[name, *(_value(row.get(key)) if isinstance(row, dict) else "–" for key in columns)] for name, row in found.items()]
    return table(["category", *(key.replace("_", " ") for key in columns)], body, class_="figures-right" if len(columns) <= 4 else "stack pairs", caption=words)


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if number(value) is not None:
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    if isinstance(value, list):
        shown = ", ".join(_value(item) for item in value[:MAX_LIST])
        return f"[{shown}{f', … {len(value)} in all' if len(value) > MAX_LIST else ''}]"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_value(item)}" for key, item in sorted(value.items())) or "none"
    return str(value)
