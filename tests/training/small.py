"""Small real drafts and samples: vocabulary 96 of which the draft has 40, hidden 32, 4 heads x 16 (64 != 32), 3 aux layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draftyard.artifacts.hidden_states import HiddenStates, Sample, write_index, write_shard
from draftyard.draft.geometry import DraftGeometry
from draftyard.draft.model import build_config, build_model
from draftyard.params.train import TrainParams
from draftyard.training.loop import Trainer
from draftyard.training.loss import TttBatch

VOCAB, HIDDEN, DRAFT_VOCAB = 96, 32, 40
torch.set_num_threads(1)  # for tensors this small a second thread costs more than it gives, above all on a busy machine


def small_geometry(**changes: Any) -> DraftGeometry:
    """The geometry, with `changes`."""
    values: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "target_hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 48,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "aux_layer_ids": (1, 2, 3),
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "float32",
    }
    return DraftGeometry(**{**values, **changes})


def small_maps(seed: int = 3, size: int = DRAFT_VOCAB) -> tuple[Tensor, Tensor]:
    """d2t, t2d of a random draft vocabulary."""
    chosen = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))[:size].sort().values
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[chosen] = True
    return chosen - torch.arange(size), t2d


def verifier_parts(seed: int = 3) -> dict[str, Tensor]:
    """embed_tokens, lm_head, norm of a verifier."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed_tokens": torch.randn(VOCAB, HIDDEN, generator=generator),
        "lm_head": torch.randn(VOCAB, HIDDEN, generator=generator) * 0.3,
        "norm": torch.rand(HIDDEN, generator=generator) + 0.5,
    }


def small_model(*, layers: int = 1, seed: int = 3, trainable_lm_head: bool = True, large: bool = True, **flags: Any) -> Any:
    """A draft. large: weights so large that attention is far from uniform and every step matters."""
    geometry = small_geometry(num_hidden_layers=layers, **flags)
    d2t, t2d = small_maps(seed, geometry.draft_vocab_size)
    config = build_config(geometry, "verifier", "LlamaForCausalLM", 3)
    model = build_model(config, d2t=d2t, t2d=t2d, **verifier_parts(seed), trainable_lm_head=trainable_lm_head, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if large and parameter.ndim == 2 and name.startswith(("layers", "fc")):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.25)
    return model


SampleTensors = tuple[Tensor, Tensor, Tensor, Tensor]


def sample_tensors(lengths: list[int], seed: int = 5) -> list[SampleTensors]:
    """(aux, last, token_ids, mask) of random samples."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for length in lengths:
        aux = torch.randn(length, 3 * HIDDEN, generator=generator)
        last = torch.randn(length, HIDDEN, generator=generator)
        tokens = torch.randint(0, VOCAB, (length,), generator=generator)
        mask = torch.rand(length, generator=generator) < 0.7
        samples.append((aux, last, tokens, mask))
    return samples


def our_batch(samples: list[SampleTensors]) -> TttBatch:
    """The samples padded by hand, with the alignment shift."""
    rows = max(len(s[2]) for s in samples) - 1
    aux, last = torch.zeros(len(samples), rows, 3 * HIDDEN), torch.zeros(len(samples), rows, HIDDEN)
    tokens, weights = torch.zeros(len(samples), rows, dtype=torch.int64), torch.zeros(len(samples), rows)
    for i, (a, h, t, m) in enumerate(samples):
        n = len(t) - 1
        aux[i, :n], last[i, :n], tokens[i, :n], weights[i, :n] = a[:-1], h[1:], t[1:], m[1:].float()
    return TttBatch(aux, last, tokens, weights)


def named_samples(prefix: str, lengths: list[int], seed: int = 5) -> list[Sample]:
    """The same as Samples: two categories; the first third of each is the prompt."""
    samples = []
    for number, (aux, last, tokens, _) in enumerate(sample_tensors(lengths, seed)):
        mask = torch.arange(len(tokens)) >= max(1, len(tokens) // 3)
        samples.append(Sample(id=f"{prefix}{number}", category=f"c{number % 2}", sample=0, aux=aux, last=last, token_ids=tokens, loss_mask=mask))
    return samples


def write_data(directory: Path, train: list[Sample], holdout: list[Sample], per_shard: int = 3) -> HiddenStates:
    """A hidden-states artifact of the samples in float32."""
    splits = {}
    for split, samples in (("train", train), ("holdout", holdout)):
        parts = [samples[start : start + per_shard] for start in range(0, len(samples), per_shard)]
        splits[split] = [write_shard(directory / f"{split}-{number:05d}.safetensors", part, "float32") for number, part in enumerate(parts)]
    write_index(directory, aux_layer_ids=(1, 2, 3), hidden_size=HIDDEN, dtype="float32", splits=splits)
    return HiddenStates(directory)


def train_params(**changes: Any) -> TrainParams:
    """Parameters of a short training."""
    values: dict[str, Any] = {
        "epochs": 2,
        "batch_tokens": 30,
        "max_sample_tokens": 64,
        "optimizer": "adamw",
        "learning_rate": 0.003,
        "min_learning_rate_ratio": 0.1,
        "warmup_steps": 2,
        "weight_decay": 0.01,
        "initial_weight_decay": 0.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "ttt_steps": 3,
        "ttt_decay": 0.8,
        "ttt_rows": "all",
        "trainable_lm_head": True,
        "init_from_verifier_layer": None,
        "prompt_loss_weight": 0.5,
        "seed": 0,
        "max_skipped_fraction": 0.0,
    }
    return TrainParams(**{**values, **changes})


class Killed(BaseException):
    """What ends a training that is killed: nothing catches it on the way."""


def run_killed(made: Trainer, kill_in_step: int) -> None:
    """Train until optimizer step number `kill_in_step` (from 1) has moved the weights, then die without a word."""
    inner = made._step

    def step(rows: Any, number: int, total: int, epoch: int) -> dict[str, float]:
        row = inner(rows, number, total, epoch)
        if number + 1 == kill_in_step:
            raise Killed
        return row

    made._step = step  # type: ignore[method-assign]
    with pytest.raises(Killed):
        made.run()


class FakeAccelerator:
    """One process on the CPU, as accelerate describes it."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.num_processes, self.process_index, self.is_main_process = 1, 0, True
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        """Keep what a tracker would get."""
        self.logged.append((step, values))
