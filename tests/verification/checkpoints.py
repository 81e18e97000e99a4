"""Small real checkpoints: a Llama verifier by transformers, drafts by speculators, and variants with one thing changed.

Geometry: hidden 32, 8 layers, 96 tokens, draft vocabulary 48 (the even tokens and 1), head_dim 12 with 4 heads (48 != 32, on purpose).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

HIDDEN, VOCAB, DRAFT_VOCAB, LAYERS, EOS = 32, 96, 48, 8, 2
TOKENS = np.array([0, 1, *range(2, 94, 2)], dtype=np.int64)
IDS = [2, 4, 5]
DATA = Path(__file__).parents[1] / "data"
REFERENCE = Path(__file__).parents[2] / "data/references/kimi-k2-eagle3.tensors.json"
Tensors = dict[str, np.ndarray[Any, Any]]
Config = dict[str, Any]


def build_verifier(directory: Path) -> Path:
    """A random Llama with tokenizer files, as save_pretrained leaves it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=64,
        vocab_size=VOCAB,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        eos_token_id=EOS,
        bos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    added = [
        {"id": 1, "content": "<s>", "special": True},
        {"id": EOS, "content": "</s>", "special": True},
        {"id": 95, "content": "<|im_end|>", "special": True},
    ]
    (directory / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "chat_template": "{{ messages }}</s>"}))
    return directory


def build_draft(directory: Path, verifier: Path, *, qwen3: bool = False, layers: int = 1, dtype: str = "float32", full: bool = False, **flags: Any) -> Path:
    """A draft by speculators with the verifier's embeddings and lm_head rows, and norm weights that have moved."""
    import torch
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig, Qwen3Config

    torch.manual_seed(1)
    bias = flags.pop("attention_bias", False)
    target = flags.pop("hidden_size", HIDDEN)
    layer = (Qwen3Config if qwen3 else LlamaConfig)(
        hidden_size=target,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        intermediate_size=80,
        vocab_size=VOCAB,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        attention_bias=bias,
    )
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=VOCAB if full else DRAFT_VOCAB,
        eagle_aux_hidden_state_layer_ids=flags.pop("ids", IDS),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path="org/verifier", architectures=["LlamaForCausalLM"]),
        ),
        **flags,
    )
    model: Any = Eagle3DraftModel(config)
    theirs = load_file(verifier / "model.safetensors")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
            elif name.endswith(".bias"):
                parameter.copy_(0.1 * torch.randn_like(parameter))
        if not full:
            mask = np.isin(np.arange(VOCAB), TOKENS)
            model.load_vocab_mappings(torch.from_numpy(mask), torch.from_numpy(TOKENS - np.arange(DRAFT_VOCAB)))
        embed, head = torch.from_numpy(theirs["model.embed_tokens.weight"]), torch.from_numpy(theirs["lm_head.weight"])
        model.embed_tokens.weight.copy_(embed if target == HIDDEN else torch.randn(VOCAB, target))
        model.lm_head.weight.copy_((head if full else head[TOKENS]) if target == HIDDEN else torch.randn(DRAFT_VOCAB, target))
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    return directory


def build_midlayer(directory: Path, source: Path) -> Path:
    """The same draft as SpecForge and AQ-MedAI publish it: midlayer.*, no embeddings, a flat config. Written by hand, not by our export."""
    tensors = {
        name.replace("layers.0.", "midlayer."): tensor for name, tensor in load_file(source / "model.safetensors").items() if name != "embed_tokens.weight"
    }
    config: Config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_size": HIDDEN,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "intermediate_size": 80,
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": IDS, "use_aux_hidden_state": True},
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
    return write(directory, tensors, config)


def write(directory: Path, tensors: Tensors, config: Config) -> Path:
    """Write a one-file checkpoint."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@cache
def read(directory: Path) -> tuple[Tensors, str]:
    """Tensors and config text of a one-file checkpoint in float32."""
    return load_file(directory / "model.safetensors"), (directory / "config.json").read_text()


def variant(directory: Path, base: Path, change: Callable[[Tensors, Config], None]) -> Path:
    """A copy of `base` after `change(tensors, config)`, which edits both in place."""
    tensors, text = read(base)
    copied, config = {name: tensor.copy() for name, tensor in tensors.items()}, json.loads(text)
    change(copied, config)
    return write(directory, copied, config)


def write_kimi_headers(directory: Path) -> None:
    """The public Kimi-K2 draft's config and tensor table (tests/data), with 2.4 GB of data left as a hole in a sparse file."""
    offset, header = 0, {}
    for name, (dtype, shape) in json.loads(REFERENCE.read_text()).items():
        size = int(np.prod(shape)) * {"BF16": 2, "I64": 8, "BOOL": 1}[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    (directory / "config.json").write_text((DATA / "kimi-k2-eagle3.config.json").read_text())
