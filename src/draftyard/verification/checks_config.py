"""Checks on the config: layout, family, heads, norm flags, aux layer ids, and what an engine would ignore."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from draftyard.draft.config_values import shorten
from draftyard.draft.layouts import AUX_KEY, valid_aux_ids
from draftyard.verification.check_report import Check, join
from draftyard.verification.subject import Draft, Verifier

_ADD_IDS = f"write {AUX_KEY} of the capture into the config (0 is the embedding output, i the output of layer i counted from 1)"


def check_layout(draft: Draft) -> Iterator[Check]:
    """The layout of the names and the kind of the config."""
    if draft.layout is not None:
        yield Check("layout", "pass", f"{draft.layout} names, {draft.config.kind} config")
    elif draft.twice and any(" and " in name for name in draft.twice):
        yield Check(
            "layout", "fail", "tensors of both layouts: layers.0.* and midlayer.*", "an engine maps both onto one layer and keeps the last: remove one of them"
        )
    else:
        yield Check(
            "layout",
            "fail",
            f"no tensor is named layers.0.* or midlayer.*; found {join(sorted(draft.checkpoint.tensors)[:4]) or 'no tensor'}",
            "this is no EAGLE-3 draft that vLLM or SpecForge would load: check the path, or rename the tensors of the first decoder layer",
        )


def check_family(draft: Draft) -> Iterator[Check]:
    """Whether the formula knows this kind of decoder layer."""
    if draft.config.known_family:
        yield Check("family", "pass", f"{draft.config.family} decoder layer")
    else:
        yield Check(
            "family",
            "warn",
            f"a draft of family {draft.config.family}: its decoder layer is not known here",
            "everything outside the decoder layer is checked; the shapes inside it are not: see that your engine knows the family",
        )


def check_heads(draft: Draft) -> Iterator[Check]:
    """Relations between the numbers of the config that hold whatever the weights are."""
    g = draft.geometry
    problems = []
    if g.num_attention_heads % g.num_key_value_heads:
        problems.append(f"num_attention_heads={g.num_attention_heads} is not divisible by num_key_value_heads={g.num_key_value_heads}")
    if g.head_dim % 2:
        problems.append(f"head_dim={g.head_dim} is odd, RoPE turns pairs")
    if g.draft_vocab_size > g.vocab_size:
        problems.append(f"draft_vocab_size={g.draft_vocab_size} is larger than vocab_size={g.vocab_size}, of which it is a subset")
    if problems:
        yield Check("config.sizes", "fail", join(problems), "no engine can build this model: mend the key, or take the config of the training")
    else:
        explicit = "explicit" if draft.config.layer.get("head_dim") is not None else "left out: an engine derives hidden_size / num_attention_heads"
        yield Check(
            "config.sizes",
            "pass",
            f"heads {g.num_attention_heads}/{g.num_key_value_heads}, head_dim {g.head_dim} ({explicit}), {g.draft_vocab_size} of {g.vocab_size} tokens",
        )


def check_norm_flags(draft: Draft) -> Iterator[Check]:
    """Norm flags and their tensors come together: vLLM drops an input_norm that no flag asks for."""
    g = draft.geometry
    problems = []
    for flag, wanted, tensor in (("norm_before_fc", g.norm_before_fc, "input_norm.weight"), ("fc_norm", g.fc_norm, "fc_norm.0.weight")):
        if wanted and tensor not in draft.names:
            problems.append(f"{flag} is true, but {tensor} is missing")
        if not wanted and tensor in draft.names:
            problems.append(f"{tensor} is there, but {flag} is not true: the engine ignores the norm the draft was trained with")
    if g.norm_before_fc and g.fc_norm:
        problems.append("norm_before_fc and fc_norm are both true; they exclude each other")
    if problems:
        yield Check(
            "config.norm_flags",
            "fail",
            join(problems),
            "the draft would see differently scaled hidden states and accept next to nothing: make flag and tensor agree",
        )
    else:
        flags = [name for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output") if getattr(g, name)]
        yield Check("config.norm_flags", "pass", f"set: {', '.join(flags) or 'none'}; their tensors agree")


def check_engine(draft: Draft) -> Iterator[Check]:
    """Config keys that engines ignore or read differently, so that training and serving part."""
    layer, raw, g = draft.config.layer, draft.config.raw, draft.geometry
    notes = []
    rope = layer.get("rope_parameters") if layer.get("rope_parameters") is not None else layer.get("rope_scaling")
    if isinstance(rope, Mapping):
        holders = [holder for holder in (rope, *rope.values()) if isinstance(holder, Mapping)]  # flat, or one per layer type
        kinds = {str(kind)[:30] for holder in holders if (kind := holder.get("rope_type", holder.get("type"))) is not None}
        if kinds - {"default"}:
            notes.append(f"rope scaling {', '.join(sorted(kinds))}: some engines drop it for drafts")
    types = layer.get("layer_types")
    window = layer.get("sliding_window")
    if isinstance(types, list) and "sliding_attention" in types:
        notes.append(f"sliding window of {shorten(window, 20)} tokens: the draft does not see what lies further back, acceptance falls with context")
    elif window is not None and layer.get("use_sliding_window") is not False:
        notes.append(f"sliding_window={shorten(window, 20)} without layer_types: vLLM ignores it")
    if draft.config.kind == "nested" and "norm_before_residual" not in raw:
        notes.append("norm_before_residual is left out: vLLM takes true, speculators false")
    if raw.get("logit_scale") not in (None, 1, 1.0) and draft.config.kind == "nested":
        notes.append("logit_scale at the top level is not read")
    eagle = raw.get("eagle_config")
    if isinstance(eagle, Mapping) and eagle.get("use_aux_hidden_state") is False:
        notes.append("eagle_config.use_aux_hidden_state is false: the engine skips fc")
    if raw.get("quantization_config") is not None or layer.get("quantization_config") is not None:
        notes.append("quantization_config: the draft is loaded as quantised")
    if notes:
        yield Check(
            "config.engine",
            "warn",
            join(notes),
            "training and serving must compute the same: measure acceptance at the context length you serve, or remove the key and train again",
        )
    else:
        numbers = f"rope theta {g.rope_theta:g}, norm eps {g.rms_norm_eps:g}, {g.max_position_embeddings} positions"
        yield Check("config.engine", "pass", f"no key that vLLM would ignore; {numbers}{_travel_note(draft)}")


def check_aux_layers(draft: Draft, verifier: Verifier | None) -> Iterator[Check]:
    """Aux layer ids: present, one answer, sorted, in range, and counted from the right origin."""
    places = draft.config.aux_ids
    if not places:
        yield Check(
            "aux_layers",
            "warn",
            "the config names no aux layer ids: the engine takes its default [2, n/2, n-3] of the verifier's n layers",
            f"a draft captured at other layers is served at acceptance 1.0 by a healthy server: {_ADD_IDS}",
        )
        yield Check("aux_layers.convention", "skipped", "no aux layer ids")
        return
    problems = []
    readable = {place: ids for place, value in places.items() if (ids := valid_aux_ids(value)) is not None}
    problems += [f"{place}={shorten(value)} is no list of layer ids" for place, value in places.items() if place not in readable]
    if len(set(readable.values())) > 1:
        problems.append("the config contradicts itself: " + ", ".join(f"{place} {list(ids)}" for place, ids in readable.items()))
    ids = draft.geometry.aux_layer_ids
    if ids and list(ids) != sorted(set(ids)):
        problems.append(f"{list(ids)} is not strictly increasing: vLLM sorts and de-duplicates, the columns of fc stay in the order of the training")
    if ids and min(ids) < 0:
        problems.append(f"{list(ids)} holds a negative id")
    num_layers = verifier.geometry.num_hidden_layers if verifier else None
    if ids and num_layers is not None and max(ids) > num_layers:
        problems.append(f"{list(ids)} reaches beyond the verifier's {num_layers} layers (ids 0..{num_layers})")
    if not ids and not problems:
        problems.append("the list of aux layer ids is empty")
    if problems:
        yield Check(
            "aux_layers", "fail", join(problems), f"the draft would read other hidden states than it was trained on and accept next to nothing: {_ADD_IDS}"
        )
        yield Check("aux_layers.convention", "skipped", "the ids are not usable")
        return
    within = f" of the verifier's {num_layers} layers" if num_layers is not None else ""
    yield Check("aux_layers", "pass", f"{list(ids)}{within}, stated in {', '.join(readable)}")
    shifted = _shifted(ids, num_layers)
    if shifted:
        yield Check(
            "aux_layers.convention",
            "warn",
            f"{list(ids)} looks like the layers [1, n/2-1, n-4] of tools that count layer outputs from 0 (SpecForge, NVIDIA); "
            f"vLLM counts the embedding output as 0 and would write {shifted}",
            "off by one, position 0 falls from 45% to 10% accepted: compare with the capture, and add 1 to each id if it was counted from 0",
        )
    else:
        yield Check("aux_layers.convention", "pass", f"vLLM's: 0 is the embedding output; {AUX_KEY} is read that way")


def _shifted(ids: tuple[int, ...], num_layers: int | None) -> list[int] | None:
    """vLLM's ids if `ids` are EAGLE-3's usual layers counted from another origin, for the verifier's depth or the one implied by the last id."""
    depth = num_layers if num_layers is not None else ids[-1] + 4
    if len(ids) == 3 and depth >= 6 and ids == (1, depth // 2 - 1, depth - 4):
        return [i + 1 for i in ids]
    return None


def _travel_note(draft: Draft) -> str:
    """A remark on what belongs to the machine that trained the draft; it changes nothing in serving."""
    speculators = draft.config.raw.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    notes = ["an auto_map to code"] if draft.config.raw.get("auto_map") is not None else []
    notes += ["the verifier's local path"] if isinstance(name, str) and name.startswith(("/", "~", ".")) else []
    return f"; it carries {' and '.join(notes)}, which draftyard export removes" if notes else ""
