"""The two layouts of EAGLE-3 checkpoints: tensor names (`layers.0.*`, `midlayer.*`) and configs (nested, flat).

Names and config vary independently: vLLM accepts each pairing. Defaults are those of the engine that reads the file:
vLLM 0.32 (transformers_utils/configs/speculators/algos.py, model_executor/models/llama_eagle3.py) on transformers 5.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from draftyard.draft.config_values import read_epsilon, read_int, read_rope_theta, shorten
from draftyard.draft.geometry import DTYPE_NAMES, DraftGeometry, TensorSpec
from draftyard.errors import ArtifactError

Layout = Literal["speculators", "midlayer"]
ConfigKind = Literal["nested", "flat"]
SPECULATORS_PREFIX, MIDLAYER_PREFIX = "layers.0.", "midlayer."
AUX_KEY = "eagle_aux_hidden_state_layer_ids"
MAX_DRAFT_LAYERS = 256
MAX_AUX_LAYERS = 256
KNOWN_FAMILIES = ("llama", "qwen3")
_CLASS_DEFAULTS: dict[str, dict[str, int]] = {  # transformers' config classes; saved configs may leave out what equals them
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
    "qwen3": {
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
    },
}
_MLA_MARKS = ("kv_a_proj_with_mqa", "kv_b_proj", "q_a_proj")


@dataclass(frozen=True, kw_only=True)
class DraftConfig:
    """A draft's config.json, read.

    raw: the file. layer: its decoder-layer part (raw itself when flat). family: model_type, or "mla".
    aux_ids: every place that names aux layer ids -> what it holds. geometry: as the engine would build it.
    """

    source: str
    kind: ConfigKind
    raw: Mapping[str, Any]
    layer: Mapping[str, Any]
    family: str
    aux_ids: Mapping[str, object]
    geometry: DraftGeometry

    @property
    def known_family(self) -> bool:
        """Whether the formula of geometry.expected_tensors speaks about this family."""
        return self.family in KNOWN_FAMILIES

    @property
    def draft_vocab_key(self) -> str:
        """The config key behind Dv."""
        return "draft_vocab_size" if self.raw.get("draft_vocab_size") is not None else "vocab_size"

    @property
    def engine_num_aux(self) -> int:
        """Aux layers for which vLLM 0.32 sizes fc: num_aux_hidden_states, or the ids in eagle_config, or 3 (top-level ids are not counted)."""
        stated = self.layer.get("num_aux_hidden_states")
        if type(stated) is int:
            return stated
        inside = self.aux_ids.get(f"eagle_config.{AUX_KEY}")
        return len(inside) if isinstance(inside, list) and inside else 3


def detect_layout(names: Collection[str]) -> Layout | None:
    """The layout of tensor names; None when neither prefix occurs (or both do: see `check`)."""
    midlayer = any(name.startswith(MIDLAYER_PREFIX) for name in names)
    speculators = any(name.startswith(SPECULATORS_PREFIX) for name in names)
    if midlayer == speculators:
        return None
    return "midlayer" if midlayer else "speculators"


def to_layout(name: str, layout: Layout) -> str:
    """The name of a tensor in `layout`; only the first decoder layer is named differently."""
    if layout == "speculators" and name.startswith(MIDLAYER_PREFIX):
        return SPECULATORS_PREFIX + name.removeprefix(MIDLAYER_PREFIX)
    if layout == "midlayer" and name.startswith(SPECULATORS_PREFIX):
        return MIDLAYER_PREFIX + name.removeprefix(SPECULATORS_PREFIX)
    return name


def read_draft_config(raw: Mapping[str, Any], source: str, tensors: Mapping[str, TensorSpec] | None = None) -> DraftConfig:
    """Read a config.json of either kind; `tensors` (if given) tell the family and the dtype where the config does not.

    Raises ArtifactError naming `source`, the key and the rule when a size is absent without a default or no sensible number.
    """
    nested = raw.get("transformer_layer_config")
    if nested is not None and not isinstance(nested, Mapping):
        raise ArtifactError(f"{source}: transformer_layer_config={shorten(nested)}: must be an object")
    layer: Mapping[str, Any] = nested if nested is not None else raw
    kind: ConfigKind = "nested" if nested is not None else "flat"
    family = _family(raw, layer, tensors or {})
    aux_ids = _aux_id_places(raw, layer)
    return DraftConfig(
        source=source,
        kind=kind,
        raw=raw,
        layer=layer,
        family=family,
        aux_ids=aux_ids,
        geometry=_geometry(raw, layer, kind, family, aux_ids, source, tensors or {}),
    )


def valid_aux_ids(value: object) -> tuple[int, ...] | None:
    """`value` as ids when it is a list of whole numbers of bounded length; else None. Order and range are `check`'s."""
    if isinstance(value, list) and len(value) <= MAX_AUX_LAYERS and all(type(i) is int and abs(i) < 1 << 31 for i in value):
        return tuple(value)
    return None


def _geometry(
    raw: Mapping[str, Any],
    layer: Mapping[str, Any],
    kind: ConfigKind,
    family: str,
    aux_ids: Mapping[str, object],
    source: str,
    tensors: Mapping[str, TensorSpec],
) -> DraftGeometry:
    defaults = _CLASS_DEFAULTS.get(str(layer.get("model_type")), _CLASS_DEFAULTS["llama"])

    def size(key: str, default: int | None = None) -> int:
        return read_int(layer, key, source, default=defaults.get(key, default))

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    num_layers = size("num_hidden_layers")
    if num_layers > MAX_DRAFT_LAYERS:
        raise ArtifactError(f"{source}: num_hidden_layers={num_layers}: a draft has at most {MAX_DRAFT_LAYERS} layers")
    vocab = size("vocab_size")
    eagle = raw.get("eagle_config")
    eagle = eagle if isinstance(eagle, Mapping) else {}
    ids = next((found for found in map(valid_aux_ids, aux_ids.values()) if found), ())
    return DraftGeometry(
        model_type=family,
        hidden_size=hidden,
        target_hidden_size=read_int(raw, "target_hidden_size", source, default=hidden),
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        num_key_value_heads=size("num_key_value_heads", heads),
        head_dim=size("head_dim", max(1, hidden // heads)),
        intermediate_size=size("intermediate_size"),
        vocab_size=vocab,
        draft_vocab_size=read_int(raw, "draft_vocab_size", source, default=vocab),
        aux_layer_ids=ids,
        rope_theta=read_rope_theta(layer, source),
        rms_norm_eps=read_epsilon(layer, source),
        max_position_embeddings=size("max_position_embeddings"),
        norm_before_residual=raw.get("norm_before_residual", kind == "nested") is True,
        norm_before_fc=eagle.get("norm_before_fc", raw.get("norm_before_fc", False)) is True,
        fc_norm=raw.get("fc_norm") is True,
        norm_output=raw.get("norm_output") is True,
        attention_bias=layer.get("attention_bias") is True,
        mlp_bias=layer.get("mlp_bias") is True,
        dtype=_dtype(raw, layer, tensors),
    )


def _dtype(raw: Mapping[str, Any], layer: Mapping[str, Any], tensors: Mapping[str, TensorSpec]) -> str:
    for holder in (raw, layer):
        for key in ("dtype", "torch_dtype"):
            name = holder.get(key)
            if isinstance(name, str) and name.removeprefix("torch.") in DTYPE_NAMES:
                return name.removeprefix("torch.")
    stored = {spec.dtype for spec in tensors.values()}
    return next((name for name, code in DTYPE_NAMES.items() if code in stored), "bfloat16")


def _family(raw: Mapping[str, Any], layer: Mapping[str, Any], tensors: Mapping[str, TensorSpec]) -> str:
    if layer.get("kv_lora_rank") is not None or any(mark in name for name in tensors for mark in _MLA_MARKS):
        return "mla"
    if any(".experts." in name for name in tensors):
        return "mixture of experts"
    kind = raw.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        return f"speculators {shorten(kind, 30)}"
    family = layer.get("model_type", "llama")
    architectures = raw.get("architectures")
    if family not in KNOWN_FAMILIES and isinstance(architectures, list) and "LlamaForCausalLMEagle3" in architectures:
        return "llama"  # the architecture decides which class an engine builds
    return family if isinstance(family, str) and len(family) < 40 else shorten(family, 40)


def _aux_id_places(raw: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, object]:
    """Places that name aux layer ids, in the order in which vLLM looks: top level, then eagle_config."""
    places: dict[str, object] = {}
    if raw.get(AUX_KEY) is not None:
        places[AUX_KEY] = raw[AUX_KEY]
    if layer is not raw and layer.get(AUX_KEY) is not None:
        places[f"transformer_layer_config.{AUX_KEY}"] = layer[AUX_KEY]
    eagle = raw.get("eagle_config")
    if isinstance(eagle, Mapping) and eagle.get(AUX_KEY) is not None:
        places[f"eagle_config.{AUX_KEY}"] = eagle[AUX_KEY]
    return places
