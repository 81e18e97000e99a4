"""Reading single tensors of a verifier, and counting all of them, without loading the model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftyard.artifacts.files import read_json
from draftyard.draft.geometry import VerifierGeometry
from draftyard.errors import ArtifactError
from draftyard.verifier_files import CONFIG, MAX_JSON_BYTES, weight_files

if TYPE_CHECKING:
    from torch import Tensor

_EMBED = "embed_tokens.weight"
_LM_HEAD = "lm_head.weight"
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_FLOATS = ("BF16", "F16", "F32", "F64")


def read_headers(directory: Path) -> dict[str, tuple[str, str, tuple[int, ...]]]:
    """Every tensor of the model: name -> (file name, dtype as in the header, shape). Reads headers only.

    Raises ArtifactError for a file that is not safetensors, or a tensor that two files hold.
    """
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, tuple[str, str, tuple[int, ...]]] = {}
    for file in weight_files(directory):
        try:
            with safe_open(directory / file, framework="numpy") as opened:
                for name in opened.keys():  # noqa: SIM118 (not a dict)
                    if name in tensors:
                        raise ArtifactError(f"{directory}: tensor {name!r:.200} is in {tensors[name][0]} and in {file}; remove the files of another model")
                    part = opened.get_slice(name)
                    tensors[name] = (file, part.get_dtype(), tuple(part.get_shape()))
        except (SafetensorError, OSError) as error:
            raise ArtifactError(f"{directory / file}: cannot be read as safetensors ({error}); copy it again") from None
    return tensors


def count_parameters(headers: dict[str, tuple[str, str, tuple[int, ...]]], *, tied: bool) -> int:
    """Elements of all tensors; a stored copy of tied embeddings is not counted twice. Packed quantised tensors count as stored."""
    return sum(math.prod(shape) for name, (_, _, shape) in headers.items() if not (tied and name.endswith(_LM_HEAD)))


def num_parameters(directory: Path) -> int:
    """`count_parameters` of the model in `directory`."""
    return count_parameters(read_headers(directory), tied=_geometry(directory).tie_word_embeddings)


def weights_dtype(config: dict[str, Any], headers: dict[str, tuple[str, str, tuple[int, ...]]]) -> str:
    """Element type of the model: what config.json says, else that of the largest tensor."""
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    for part in (config, text or {}):
        for key in ("dtype", "torch_dtype"):
            if isinstance(part.get(key), str):
                return str(part[key]).removeprefix("torch.")
    _, code, _ = max(headers.values(), key=lambda header: math.prod(header[2]))
    return _DTYPES.get(code, code.lower())


def load_embeddings(directory: Path) -> dict[str, Tensor]:
    """The verifier's three tensors that a draft needs, as float32, reading nothing else.

    embed_tokens: (V, H). lm_head: (V, H); the same tensor as embed_tokens when tied or not stored. norm: (H), the final norm's weight.
    Names may carry a prefix ("language_model.model."). Raises ArtifactError when one is missing, of another shape, or quantised.
    """
    import torch
    from safetensors import safe_open

    geometry, headers = _geometry(directory), read_headers(directory)
    outside = _outside_layers(headers)
    prefix = _decoder_prefix(headers)
    if prefix is None:
        raise ArtifactError(f"{directory}: no tensor named *{_EMBED}; this architecture ({geometry.model_type}) is not supported")
    embed, norm = f"{prefix}{_EMBED}", f"{prefix}norm.weight"
    lm_head = next((name for name in outside if name == _LM_HEAD or name.endswith(f".{_LM_HEAD}")), None)
    if geometry.tie_word_embeddings or lm_head is None:
        lm_head = embed
    vocabulary = (geometry.vocab_size, geometry.hidden_size)  # (V, H)
    loaded: dict[str, Tensor] = {}
    for name, shape in ((embed, vocabulary), (lm_head, vocabulary), (norm, (geometry.hidden_size,))):
        if name not in headers:
            raise ArtifactError(f"{directory}: no tensor {name!r} beside {embed!r}; this architecture ({geometry.model_type}) is not supported")
        file, dtype, found = headers[name]
        if found != shape or dtype not in _FLOATS:
            raise ArtifactError(
                f"{directory / file}: tensor {name!r} is {dtype} {list(found)}, expected one of {', '.join(_FLOATS)} and {list(shape)} from {CONFIG}"
            )
        if name not in loaded:
            with safe_open(directory / file, framework="pt") as opened:
                loaded[name] = opened.get_tensor(name).to(torch.float32)
    return {"embed_tokens": loaded[embed], "lm_head": loaded[lm_head], "norm": loaded[norm]}


def _outside_layers(headers: Iterable[str]) -> list[str]:
    """Names outside the layers, shortest first: not those of multi-token-prediction layers ("model.layers.61.embed_tokens.weight")."""
    return sorted((name for name in headers if ".layers." not in name), key=len)


def _decoder_prefix(headers: Iterable[str]) -> str | None:
    """What precedes the decoder's tensor names ("model.", "language_model.model."), by its embeddings; None without any.

    The encoders of a multimodal model have layers too, under another prefix.
    """
    embed = next((name for name in _outside_layers(headers) if name == _EMBED or name.endswith(f".{_EMBED}")), None)
    return None if embed is None else embed.removesuffix(_EMBED)


def _geometry(directory: Path) -> VerifierGeometry:
    path = directory / CONFIG
    config = read_json(path, max_bytes=MAX_JSON_BYTES)
    if not isinstance(config, dict):
        raise ArtifactError(f"{path}: must hold a mapping")
    return VerifierGeometry.from_config(config, str(path))


def load_layer(directory: Path, layer: int) -> dict[str, Tensor]:
    """Decoder layer `layer` (counted from 0) of a Llama-like verifier as float32, as far as its tensors exist.

    q_proj (h*d, H), k_proj, v_proj (kv*d, H), o_proj (H, h*d), gate_proj, up_proj (I, H), down_proj (H, I), and the norms
    input_layernorm, post_attention_layernorm (H). Latent attention and experts have other names and are absent.
    """
    import torch
    from safetensors import safe_open

    names = {f"self_attn.{part}.weight": part for part in ("q_proj", "k_proj", "v_proj", "o_proj")}
    names |= {f"mlp.{part}.weight": part for part in ("gate_proj", "up_proj", "down_proj")}
    names |= {f"{part}.weight": part for part in ("input_layernorm", "post_attention_layernorm")}
    loaded = {}
    headers = read_headers(directory)
    start = f"{_decoder_prefix(headers)}layers.{layer}."
    for name, (file, dtype, _) in headers.items():
        tail = name.removeprefix(start)
        if name.startswith(start) and tail in names and dtype in _FLOATS:
            with safe_open(directory / file, framework="pt") as opened:
                loaded[names[tail]] = opened.get_tensor(name).to(torch.float32)
    return loaded
