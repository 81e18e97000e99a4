"""Checks on names, shapes and dtypes: the headers against the formula, and against a reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from draftyard.artifacts.untrusted import printable
from draftyard.draft.geometry import ENGINE_AUX_LAYERS, FLOAT_DTYPES, DraftGeometry, TensorSpec, expected_tensors
from draftyard.draft.layouts import to_layout
from draftyard.verification.check_report import Check, TensorRow, join
from draftyard.verification.subject import Draft

OPTIONAL = ("embed_tokens.weight", "t2d")
"""Tensors that a checkpoint may leave out: the engine shares the verifier's embeddings, and never reads t2d."""
MAPS = ("d2t", "t2d")
_FAMILY_FREE = ("embed_tokens.weight", "fc.weight", "norm.weight", "lm_head.weight", "input_norm.weight", "d2t", "t2d")
"""What every EAGLE-3 draft has, whatever its decoder layer is."""


def expected_of(draft: Draft) -> dict[str, TensorSpec]:
    """The tensors that the formula knows for this draft; for an unknown family only those outside its decoder layer."""
    everything = expected_tensors(draft.geometry)
    if draft.config.known_family:
        return everything
    return {name: spec for name, spec in everything.items() if name in _FAMILY_FREE or name.startswith("fc_norm.")}


def tensor_table(draft: Draft) -> tuple[TensorRow, ...]:
    """Every tensor found or expected, under the names of the file."""
    expected = expected_of(draft)
    rows = []
    for name in sorted(set(draft.names) | set(expected)):
        found, wanted = draft.spec(name), expected.get(name)
        if found is None and name in OPTIONAL:
            continue
        shown = draft.names.get(name) or to_layout(name, draft.layout or "speculators")
        rows.append(
            TensorRow(
                printable(shown),
                found.dtype if found else None,
                found.shape if found else None,
                wanted.dtype if wanted else None,
                wanted.shape if wanted else None,
            )
        )
    return tuple(rows)


def check_names(draft: Draft) -> Iterator[Check]:
    """No missing, unexpected or duplicate tensor; shards and index agree."""
    g, expected = draft.geometry, expected_of(draft)
    optional = (*OPTIONAL, "lm_head.weight") if g.full_vocabulary else OPTIONAL
    missing = [name for name in expected if name not in draft.names and name not in optional and not _is_d2t(name)]
    shown = [to_layout(name, draft.layout or "speculators") for name in missing]
    if missing:
        yield Check("tensors.missing", "fail", f"not in the checkpoint: {join(shown)}", _missing_hint(missing))
    else:
        absent = [name for name in optional if name in expected and name not in draft.names]
        note = f"; without {', '.join(absent)}, which an engine takes from the verifier or does not need" if absent else ""
        yield Check("tensors.missing", "pass", f"all {len(expected) - len(absent)} tensors of the config are there{note}")
    allowed = {*expected, *MAPS}
    unexpected = [printable(draft.names[name]) for name in draft.names if name not in allowed]
    if not draft.config.known_family:
        yield Check("tensors.unexpected", "skipped", f"the formula does not know the decoder layer of a draft of family {draft.config.family}")
    elif unexpected:
        yield Check(
            "tensors.unexpected",
            "fail",
            f"the config asks for no such tensor: {join(unexpected)}",
            "an engine refuses to load them, or drops them silently: the config belongs to another checkpoint, or a key is missing from it "
            "(norm_before_fc, fc_norm, attention_bias, num_hidden_layers)",
        )
    else:
        yield Check("tensors.unexpected", "pass", "no tensor beyond those of the config")
    if draft.twice:
        yield Check(
            "tensors.duplicate",
            "fail",
            f"stored twice: {join([printable(name) for name in draft.twice])}",
            "which of the two an engine loads last is chance: export the checkpoint again from one source",
        )
    else:
        yield Check("tensors.duplicate", "pass", "every tensor is stored once")
    problems = draft.checkpoint.index_problems
    if problems:
        yield Check(
            "index",
            "fail",
            join(list(problems)),
            "engines trust the index and would load other tensors than it promises: write the index again, remove stray files",
        )
    else:
        count = len(draft.checkpoint.files)
        yield Check("index", "pass", "one file" if count == 1 else f"{count} shards, as the index says")


def check_shapes(draft: Draft) -> Iterator[Check]:
    """Every shape, naming the config keys it contradicts."""
    contradictions = []
    for name, wanted in expected_of(draft).items():
        found = draft.spec(name)
        if found is not None and found.shape != wanted.shape and name != "fc.weight":
            contradictions.append(
                f"{printable(draft.names[name])} is {list(found.shape)}, the config asks for {_explain(draft, name, found.shape, wanted.shape)}"
            )
    if contradictions:
        yield Check(
            "shapes",
            "fail",
            join(contradictions),
            "an engine refuses to load it, or loads it wrongly: the config and the weights are of two trainings; mend the named key, or train again with it",
        )
    elif draft.config.known_family:
        g = draft.geometry
        words = f"{g.num_attention_heads} heads x head_dim {g.head_dim}"
        equal = "=" if g.num_attention_heads * g.head_dim == g.hidden_size else "is not"
        yield Check(
            "shapes",
            "pass",
            f"every shape follows from the config ({words} {equal} hidden_size {g.hidden_size}{'' if equal == '=' else ', which is legal when explicit'})",
        )
    else:
        yield Check(
            "shapes",
            "pass",
            f"the shapes outside the decoder layer follow from the config; the layer itself is of family {draft.config.family} and was not checked",
        )


def check_fc(draft: Draft) -> Iterator[Check]:
    """The width of fc against the aux layers of the config and those for which vLLM 0.32 builds it."""
    g, config, found = draft.geometry, draft.config, draft.spec("fc.weight")
    if found is None or len(found.shape) != 2:
        yield Check("fc.width", "skipped", "there is no fc.weight of two dimensions")
        return
    stated = len(g.aux_layer_ids) or ENGINE_AUX_LAYERS
    width, target = found.shape[1], g.target_hidden_size
    if found.shape != (g.hidden_size, stated * target):
        fits = (
            f"{width // target} aux layers"
            if width % target == 0
            else f"a verifier of hidden size {width // stated}"
            if width % stated == 0
            else "no whole number of aux layers"
        )
        yield Check(
            "fc.width",
            "fail",
            f"fc.weight is {list(found.shape)}, the config asks for [{g.hidden_size}, {stated * target}] "
            f"(hidden_size, {stated} aux layers x target_hidden_size {target}); {width} columns fit {fits}",
            "the draft was trained on other hidden states than the config names: write the aux layer ids and target_hidden_size of the training there",
        )
    elif config.engine_num_aux != stated:
        yield Check(
            "fc.width",
            "fail",
            f"{stated} aux layers, but vLLM 0.32 builds fc for {config.engine_num_aux}: "
            "it counts eagle_config's ids or num_aux_hidden_states, never the top-level ids",
            "it will not load: train with exactly 3 aux layers, or export to the midlayer layout, whose eagle_config is counted",
        )
    else:
        yield Check("fc.width", "pass", f"{stated} aux layers x {target} columns, as vLLM builds it")


def check_dtypes(draft: Draft) -> Iterator[Check]:
    """One dtype for the weights; d2t whole numbers, t2d booleans."""
    floats = Counter(spec.dtype for name in draft.names if (spec := draft.spec(name)) and spec.dtype in FLOAT_DTYPES and name not in MAPS)
    wrong: list[str] = []
    odd: list[str] = []
    for name in draft.names:
        spec = draft.spec(name)
        assert spec is not None
        if name == "d2t" and spec.dtype != "I64":
            (odd if spec.dtype in ("I32", "I16") else wrong).append(f"d2t is {spec.dtype}, expected I64")
        elif name == "t2d" and spec.dtype != "BOOL":
            (odd if spec.dtype[0] in "IU" else wrong).append(f"t2d is {spec.dtype}, expected BOOL")
        elif name not in MAPS and spec.dtype not in FLOAT_DTYPES:
            (wrong if draft.config.known_family else odd).append(f"{printable(draft.names[name])} is {spec.dtype}, expected a floating-point dtype")
    if len(floats) > 1:
        odd.append("weights of several dtypes: " + ", ".join(f"{count} x {dtype}" for dtype, count in floats.most_common()))
    elif floats and draft.geometry.dtype and next(iter(floats)) != (stated := _stated_dtype(draft)) and stated:
        odd.append(f"the config says {draft.geometry.dtype}, the weights are {next(iter(floats))}")
    if wrong:
        yield Check("dtypes", "fail", join(wrong + odd), "the values cannot mean what the engine reads: write the tensor again in the expected dtype")
    elif odd:
        yield Check(
            "dtypes",
            "warn",
            join(odd),
            "an engine converts while loading; rounding then differs from the training: save all weights in one dtype and name it in the config",
        )
    else:
        yield Check("dtypes", "pass", f"all weights are {next(iter(floats), 'absent')}")


def check_reference(draft: Draft, reference: Mapping[str, TensorSpec], source: str) -> Iterator[Check]:
    """Side by side with a tensor table, names bridged; every difference is listed."""
    differences, bridged = [], []
    for name in sorted(set(reference) | set(draft.names)):
        found, wanted = draft.spec(name), reference.get(name)
        if found is not None and wanted is not None:
            if found != wanted:
                differences.append(f"{name}: {found.dtype} {list(found.shape)} here, {wanted.dtype} {list(wanted.shape)} there")
        elif name in OPTIONAL:
            bridged.append(f"{name} only {'here' if found else 'there'}")
        else:
            differences.append(f"{printable(name)}: only {'here' if found else 'in the reference'}")
    note = f"; layouts bridged: {', '.join(bridged)}" if bridged else ""
    if differences:
        text = "; ".join(differences)
        yield Check(
            "reference",
            "fail",
            f"{len(differences)} differences from {source}: {text}{note}",
            "the two drafts cannot take each other's place: compare the configs, first head_dim, draft_vocab_size and the norm flags",
        )
    else:
        yield Check("reference", "pass", f"{len(reference)} tensors as in {source}{note}")


def _is_d2t(name: str) -> bool:
    return name == "d2t"  # its absence has a meaning and a check of its own


def _stated_dtype(draft: Draft) -> str | None:
    stated = any(holder.get(key) for holder in (draft.config.raw, draft.config.layer) for key in ("dtype", "torch_dtype"))
    return {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[draft.geometry.dtype] if stated else None


def _missing_hint(missing: list[str]) -> str:
    if "lm_head.weight" in missing:
        return "without lm_head an engine takes the verifier's whole head, whose rows do not fit d2t: save lm_head.weight with the draft vocabulary's rows"
    return (
        "an engine refuses to load it or starts from random weights: the checkpoint was cut short, or the config belongs to another one; save the draft again"
    )


def _explain(draft: Draft, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """The expected shape in words of the config, and what the found one would fit."""
    g = draft.geometry
    words = f"{list(wanted)} = [{', '.join(_dimensions(g, name, draft.config.draft_vocab_key))}]"
    heads = {
        "q_proj.weight": (0, g.num_attention_heads),
        "o_proj.weight": (1, g.num_attention_heads),
        "k_proj.weight": (0, g.num_key_value_heads),
        "v_proj.weight": (0, g.num_key_value_heads),
    }
    for suffix, (axis, count) in heads.items():
        if name.endswith(suffix) and len(found) == 2 and found[axis] != wanted[axis] and found[axis] % count == 0:
            fits = found[axis] // count
            origin = (
                f", which is hidden_size / num_attention_heads ({g.hidden_size} / {g.num_attention_heads}) and not"
                if fits * g.num_attention_heads == g.hidden_size
                else ", not"
            )
            return f"{words}: {found[axis]} over {count} heads fit head_dim {fits}{origin} the config's head_dim {g.head_dim}"
    return words


def _dimensions(g: DraftGeometry, name: str, draft_vocab_key: str) -> list[str]:
    """The config keys behind each axis of a tensor's shape."""
    first = name.startswith("layers.0.")
    query, key_value = "num_attention_heads x head_dim", "num_key_value_heads x head_dim"
    width = "2 x hidden_size" if first else "hidden_size"
    table = {
        "embed_tokens.weight": ["vocab_size", "hidden_size"],
        "lm_head.weight": [draft_vocab_key, "hidden_size"],
        "d2t": [draft_vocab_key],
        "t2d": ["vocab_size"],
        "input_norm.weight": ["aux layers x target_hidden_size"],
        "q_proj.weight": [query, width],
        "k_proj.weight": [key_value, width],
        "v_proj.weight": [key_value, width],
        "o_proj.weight": ["hidden_size", query],
        "q_proj.bias": [query],
        "k_proj.bias": [key_value],
        "v_proj.bias": [key_value],
        "gate_proj.weight": ["intermediate_size", "hidden_size"],
        "up_proj.weight": ["intermediate_size", "hidden_size"],
        "down_proj.weight": ["hidden_size", "intermediate_size"],
        "gate_proj.bias": ["intermediate_size"],
        "up_proj.bias": ["intermediate_size"],
        "q_norm.weight": ["head_dim"],
        "k_norm.weight": ["head_dim"],
    }
    if name.startswith("fc_norm."):
        return ["target_hidden_size"]
    return next((keys for suffix, keys in table.items() if name.endswith(suffix)), ["hidden_size"])
