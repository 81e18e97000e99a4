"""Geometry of verifier and draft: the numbers that fix every shape, and the shapes that follow from them by formula.

The formula is written here once, from speculators 0.9 (models/eagle3/core.py, model_definitions.py) and vLLM 0.32
(model_executor/models/llama_eagle3.py), and never loads either: a check must not share code with what it checks.
Legend: V verifier vocabulary, Dv draft vocabulary, H draft hidden size, T verifier hidden size, A aux layers,
h heads, kv key-value heads, d head_dim, I intermediate size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftyard.draft.config_values import read_epsilon, read_int, read_rope_theta, read_token_ids, text_config
from draftyard.errors import ArtifactError
from draftyard.params.base import require
from draftyard.params.draft import DraftParams

DTYPE_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""Names in params and configs -> names in safetensors headers."""
DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
}
"""Bytes per element of each dtype of the safetensors format."""
FLOAT_DTYPES = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
ENGINE_AUX_LAYERS = 3
"""Aux layers when a config names none (vLLM, speculators, EAGLE-3 itself)."""


@dataclass(frozen=True, kw_only=True)
class VerifierGeometry:
    """What a draft must know of its verifier's config.json."""

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    """As written; hidden/heads where the config says nothing; the value head (v_head_dim) of an MLA verifier."""
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_config(cls, config: Mapping[str, Any], source: str = "config.json") -> VerifierGeometry:
        """Read a Hugging Face config (a multimodal one by its text_config). Raises ArtifactError naming `source` and the key."""
        text = text_config(config)
        hidden = read_int(text, "hidden_size", source)
        heads = read_int(text, "num_attention_heads", source)
        mla = text.get("kv_lora_rank") is not None
        head_dim_key = "v_head_dim" if mla and text.get("v_head_dim") is not None else "head_dim"
        eos = text.get("eos_token_id", config.get("eos_token_id"))
        tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
        return cls(
            model_type=str(text.get("model_type", config.get("model_type", "unknown"))),
            hidden_size=hidden,
            num_hidden_layers=read_int(text, "num_hidden_layers", source),
            num_attention_heads=heads,
            num_key_value_heads=read_int(text, "num_key_value_heads", source, default=heads),
            head_dim=read_int(text, head_dim_key, source, default=max(1, hidden // heads)),
            intermediate_size=read_int(text, "intermediate_size", source),
            vocab_size=read_int(text, "vocab_size", source),
            max_position_embeddings=read_int(text, "max_position_embeddings", source),
            rms_norm_eps=read_epsilon(text, source),
            rope_theta=read_rope_theta(text, source),
            tie_word_embeddings=tied is True,
            eos_token_ids=read_token_ids(eos, source),
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; `from_json` reads it back."""
        return {**dataclasses.asdict(self), "eos_token_ids": list(self.eos_token_ids)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], source: str = "geometry") -> VerifierGeometry:
        """Read what `to_json` wrote. Raises ArtifactError when a key is missing or unknown."""
        fields = {field.name for field in dataclasses.fields(cls)}
        if set(values) != fields:
            raise ArtifactError(f"{source}: keys {sorted(set(values) ^ fields)} are missing or unknown; rebuild the verifier's card")
        return cls(**{**values, "eos_token_ids": tuple(values["eos_token_ids"])})


@dataclass(frozen=True, kw_only=True)
class DraftGeometry:
    """A draft with every number explicit. vocab_size is the verifier's; aux_layer_ids are in vLLM's convention (0: embedding output)."""

    model_type: str
    """llama, or qwen3 (adds q_norm and k_norm)."""
    hidden_size: int
    target_hidden_size: int
    """Width of the verifier's hidden states."""
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    draft_vocab_size: int
    aux_layer_ids: tuple[int, ...]
    """Empty when a foreign config names none."""
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str
    """bfloat16, float16 or float32."""

    @property
    def num_aux_layers(self) -> int:
        """Aux layers side by side at the input of fc."""
        return len(self.aux_layer_ids) or ENGINE_AUX_LAYERS

    @property
    def full_vocabulary(self) -> bool:
        """Whether the draft proposes every token of the verifier: no d2t, t2d."""
        return self.draft_vocab_size == self.vocab_size

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised per head (Qwen3)."""
        return self.model_type == "qwen3"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {**dataclasses.asdict(self), "aux_layer_ids": list(self.aux_layer_ids)}


@dataclass(frozen=True)
class TensorSpec:
    """dtype by its safetensors name ("BF16"), and the shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor's data."""
        return self.num_elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class ParameterCounts:
    """Weights, without the integer maps d2t and t2d.

    saved: in the checkpoint. total: of the model in training, with the verifier's lm_head rows and final norm.
    trainable: those that the optimizer moves.
    """

    saved: int
    total: int
    trainable: int


def resolve(draft: DraftParams, verifier: VerifierGeometry, aux_layer_ids: Sequence[int]) -> DraftGeometry:
    """The geometry that `draft` asks for beside `verifier`: null inherits. Raises ParamError naming key, value and rule."""

    def inherit(name: str) -> Any:
        value = getattr(draft, name)
        return getattr(verifier, name) if value is None else value

    hidden, heads, kv = inherit("hidden_size"), inherit("num_attention_heads"), inherit("num_key_value_heads")
    require(
        hidden == verifier.hidden_size,
        "draft.hidden_size",
        hidden,
        f"must be the verifier's hidden_size={verifier.hidden_size}: its embeddings, lm_head rows and states are used as they are",
    )
    require(
        heads % kv == 0,
        "draft.num_attention_heads",
        heads,
        f"is not divisible by draft.num_key_value_heads={kv}: every key-value head serves the same number of query heads",
    )
    head_dim = inherit("head_dim")
    require(head_dim % 2 == 0, "draft.head_dim", head_dim, "must be even: RoPE turns pairs")
    vocab = inherit("vocab_size")
    require(
        vocab <= verifier.vocab_size,
        "draft.vocab_size",
        vocab,
        f"is larger than the verifier's vocabulary of {verifier.vocab_size} tokens, of which it is a subset",
    )
    ids = tuple(aux_layer_ids)
    require(len(ids) == ENGINE_AUX_LAYERS, "hidden_states.aux_layer_ids", list(ids), "vLLM's EAGLE-3 takes exactly 3 aux layers: give 3 ids")
    require(list(ids) == sorted(set(ids)), "hidden_states.aux_layer_ids", list(ids), "must be strictly increasing: vLLM sorts and de-duplicates them")
    last = verifier.num_hidden_layers
    require(ids[0] >= 0 and ids[-1] <= last, "hidden_states.aux_layer_ids", list(ids), f"the verifier has {last} layers: ids lie in 0..{last}")
    return DraftGeometry(
        model_type="llama",
        hidden_size=hidden,
        target_hidden_size=verifier.hidden_size,
        num_hidden_layers=draft.num_hidden_layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        head_dim=head_dim,
        intermediate_size=inherit("intermediate_size"),
        vocab_size=verifier.vocab_size,
        draft_vocab_size=vocab,
        aux_layer_ids=ids,
        rope_theta=inherit("rope_theta"),
        rms_norm_eps=inherit("rms_norm_eps"),
        max_position_embeddings=inherit("max_position_embeddings"),
        norm_before_residual=draft.norm_before_residual,
        norm_before_fc=draft.norm_before_fc,
        fc_norm=False,
        norm_output=draft.norm_output,
        attention_bias=False,
        mlp_bias=False,
        dtype=draft.dtype,
    )


def expected_tensors(geometry: DraftGeometry, *, embed_tokens: bool = True) -> dict[str, TensorSpec]:
    """Every tensor of a checkpoint in the speculators layout: name -> dtype and shape.

    `embed_tokens=False`: without the embeddings, which the engine then shares with the verifier.
    """
    g = geometry
    shapes: dict[str, tuple[int, ...]] = {}
    if embed_tokens:
        shapes["embed_tokens.weight"] = (g.vocab_size, g.hidden_size)  # (V, H)
    shapes["fc.weight"] = (g.hidden_size, g.num_aux_layers * g.target_hidden_size)  # (H, A*T)
    if g.norm_before_fc:
        shapes["input_norm.weight"] = (g.num_aux_layers * g.target_hidden_size,)  # (A*T)
    if g.fc_norm:
        for index in range(g.num_aux_layers):
            shapes[f"fc_norm.{index}.weight"] = (g.target_hidden_size,)  # (T)
    for index in range(g.num_hidden_layers):
        shapes.update({f"layers.{index}.{name}": shape for name, shape in _layer_shapes(g, first=index == 0).items()})
    shapes["norm.weight"] = (g.hidden_size,)  # (H)
    shapes["lm_head.weight"] = (g.draft_vocab_size, g.hidden_size)  # (Dv, H)
    tensors = {name: TensorSpec(DTYPE_NAMES[g.dtype], shape) for name, shape in shapes.items()}
    if not g.full_vocabulary:
        tensors["d2t"] = TensorSpec("I64", (g.draft_vocab_size,))
        tensors["t2d"] = TensorSpec("BOOL", (g.vocab_size,))
    return tensors


def _layer_shapes(g: DraftGeometry, *, first: bool) -> dict[str, tuple[int, ...]]:
    """One decoder layer. The first takes embedding and hidden state side by side (2H) and normalises the latter (hidden_norm)."""
    query, key_value = g.num_attention_heads * g.head_dim, g.num_key_value_heads * g.head_dim
    width = 2 * g.hidden_size if first else g.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (query, width),  # (h*d, 2H or H)
        "self_attn.k_proj.weight": (key_value, width),  # (kv*d, 2H or H)
        "self_attn.v_proj.weight": (key_value, width),
        "self_attn.o_proj.weight": (g.hidden_size, query),  # (H, h*d)
        "mlp.gate_proj.weight": (g.intermediate_size, g.hidden_size),  # (I, H)
        "mlp.up_proj.weight": (g.intermediate_size, g.hidden_size),
        "mlp.down_proj.weight": (g.hidden_size, g.intermediate_size),  # (H, I)
        "input_layernorm.weight": (g.hidden_size,),
        "post_attention_layernorm.weight": (g.hidden_size,),
    }
    if first:
        shapes["hidden_norm.weight"] = (g.hidden_size,)
    if g.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (g.head_dim,)
    biased = (["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"] if g.attention_bias else []) + (
        ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"] if g.mlp_bias else []
    )
    for name in biased:
        shapes[f"{name}.bias"] = shapes[f"{name}.weight"][:1]
    return shapes


def count_weights(tensors: Mapping[str, TensorSpec]) -> int:
    """Elements of the floating-point tensors (d2t and t2d are maps, not weights)."""
    return sum(spec.num_elements for spec in tensors.values() if spec.dtype in FLOAT_DTYPES)


def parameter_counts(geometry: DraftGeometry, *, trainable_lm_head: bool) -> ParameterCounts:
    """Weights saved in the speculators layout, held in training, and trained. The embeddings are never trained."""
    tensors = expected_tensors(geometry)
    saved = count_weights(tensors)
    lm_head = tensors["lm_head.weight"].num_elements
    frozen = tensors["embed_tokens.weight"].num_elements + (0 if trainable_lm_head else lm_head)
    # In training the verifier's rows of lm_head (Dv, H) and its final norm (H) make the targets.
    return ParameterCounts(saved=saved, total=saved + lm_head + geometry.hidden_size, trainable=saved - frozen)
