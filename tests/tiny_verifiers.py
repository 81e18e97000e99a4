"""Tiny real models for tests: random Llamas as Hugging Face directories, as GGUF files, and as wheels with a GGUF file inside."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

TEMPLATE = "{% for message in messages %}<s>{{ message['role'] }}\n{{ message['content'] }}</s>{% endfor %}"
SPECIAL = ("<unk>", "<s>", "</s>")
MERGES = (("a", "b"), ("ab", "c"), ("Ġ", "ab"), ("d", "e"))


def tokens() -> list[str]:
    """Special tokens, the 256 byte symbols in order, the merged tokens."""
    from tokenizers import pre_tokenizers

    return [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]


def save_tokenizer(directory: Path) -> None:
    """A byte-level BPE tokenizer of `tokens()` with a chat template, saved by transformers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens())}, list(MERGES)))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)


def llama(*, tied: bool, layers: int = 2) -> Any:
    """A random float32 LlamaForCausalLM: hidden 32, 4 heads, 2 KV heads, head_dim 8, intermediate 48."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=len(tokens()),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):  # all ones otherwise
                parameter.add_(torch.rand_like(parameter))
    return model


def save_llama(directory: Path, *, tied: bool = True, shard: str = "5GB", layers: int = 2) -> Any:
    """Write such a model with its tokenizer to `directory`; `shard` is transformers' max_shard_size. Returns the model."""
    model = llama(tied=tied, layers=layers)
    model.save_pretrained(directory, max_shard_size=shard)
    save_tokenizer(directory)
    return model


def write_gguf(
    path: Path, model: Any, *, changes: dict[str, Any] | None = None, skip: tuple[str, ...] = (), extra: tuple[str, ...] = (), quantised: bool = False
) -> None:
    """Write `model` with the gguf package's writer, rows of q and k permuted as llama.cpp's convert_hf_to_gguf.py does.

    changes: metadata to override (None leaves a key out). skip, extra: tensors to leave out, or to add. quantised: Q8_0 where the shape allows.
    """
    import gguf
    import numpy as np

    config = model.config
    fields: dict[str, Any] = {
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": config.head_dim,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens(),
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(tokens()) - len(SPECIAL)),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
        **(changes or {}),
    }
    writer = gguf.GGUFWriter(str(path), fields.pop("general.architecture", "llama"))
    for key, value in fields.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name in skip or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        weight = tensor.float().numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads:  # permute() of llama.cpp
            weight = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)
        target = names.get_name(name.removesuffix(".weight")) + ".weight"
        if quantised and weight.ndim == 2 and weight.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(target, gguf.quants.quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, np.ascontiguousarray(weight))
    for name in extra:
        writer.add_tensor(name, np.zeros((4,), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(directory: Path, members: dict[str, bytes], *, package: str = "tiny_model", version: str = "1.0") -> Path:
    """A wheel of `members` (path in the archive -> content) that pip accepts."""
    info = f"{package}-{version}.dist-info"
    path = directory / f"{package}-{version}-py3-none-any.whl"
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path
