"""The model card, the decoded loss mask, and where training runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from draftyard.artifacts.card import VerifierCard
from draftyard.draft.geometry import VerifierGeometry
from draftyard.errors import DraftyardError
from draftyard.runtime import load_runtime
from draftyard.training import device
from draftyard.training.card import write_model_card
from draftyard.training.describe import MAX_TOKENS, loss_mask_sample
from tests.training.small import named_samples, small_geometry, train_params, write_data

ROOT = Path(__file__).parents[2]
VERIFIER = VerifierGeometry(
    model_type="llama", hidden_size=32, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=64, vocab_size=96,
    max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, eos_token_ids=(2,),
)  # fmt: skip
CARD = VerifierCard(
    source="hf", name="org/verifier", revision="a" * 40, gguf=None, trust_remote_code=False, engine_args={}, files={}, geometry=VERIFIER, tokenizer_digest="b" * 64,
    chat_template_digest=None, num_parameters=123456, dtype="bfloat16",
)  # fmt: skip
METRICS: dict[str, Any] = {
    "parameters": {"saved": 2_000_000, "trainable": 1_500_000},
    "samples": 360,
    "tokens_per_epoch": 50_000,
    "best_epoch": 3,
    "holdout_acceptance_length": 1.80244,
}


def card_text(path: Path, card: VerifierCard) -> str:
    write_model_card(path, card, small_geometry(), train_params(), METRICS)
    return path.read_text(encoding="utf-8")


def test_the_card_says_what_the_draft_is(tmp_path: Path) -> None:
    text = card_text(tmp_path / "README.md", CARD)
    for part in (
        "# EAGLE-3 draft for org/verifier",
        f"org/verifier at {'a' * 40} (hf), 123,456 parameters, card digest `{CARD.digest}`",
        "| parameters | 2,000,000 saved, 1,500,000 trained |",
        "| heads x head_dim | 4 x 16 = 64 (hidden_size 32) |",
        "| aux layers | [1, 2, 3] (vLLM's convention",
        "| draft vocabulary | 40 of 96 tokens |",
        "| held-out acceptance length | 1.802 (simulated, 3 draft tokens) |",
        """--speculative-config '{"model": "models/draft", "method": "eagle3", "num_speculative_tokens": 3}'""",
    ):
        assert part in text
    assert text == card_text(tmp_path / "again.md", CARD)


def test_a_local_verifier_is_named_without_its_directory(tmp_path: Path) -> None:
    text = card_text(tmp_path / "README.md", dataclasses.replace(CARD, source="path", name="/home/somebody/models/verifier", revision=None))
    assert "/home" not in text
    assert "# EAGLE-3 draft for verifier\n" in text


class Words:
    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return " ".join(map(str, ids))


def test_the_loss_mask_is_shown_as_runs_of_text(tmp_path: Path) -> None:
    samples = named_samples("t", [30, 9, 9])
    samples[1].loss_mask[:] = torch.tensor([0, 0, 0, 1, 1, 0, 1, 1, 1])
    data = write_data(tmp_path, samples, samples[:1])
    runs = loss_mask_sample(data, Words(), 0.25)
    ids = samples[1].token_ids.tolist()
    assert [(run["loss"], run["weight"]) for run in runs] == [(False, 0.25), (True, 1.0), (False, 0.25), (True, 1.0)]
    assert [run["tokens"] for run in runs] == [3, 2, 1, 3]
    assert " ".join(run["text"] for run in runs).split() == [str(i) for i in ids]


def test_a_long_sample_is_shown_in_part(tmp_path: Path) -> None:
    data = write_data(tmp_path, named_samples("t", [MAX_TOKENS + 50]), named_samples("h", [5]))
    assert sum(len(run["text"].split()) for run in loss_mask_sample(data, Words(), 0.0)) == MAX_TOKENS


def runtime(kind: str) -> Any:
    loaded = load_runtime(ROOT)
    return dataclasses.replace(loaded, threads=1, train=dataclasses.replace(loaded.train, device=kind))


def test_the_cpu_computes_in_what_its_units_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype, autocast in (("float32", None), ("bfloat16", torch.bfloat16)):
        monkeypatch.setattr(device, "choose_compute_dtype", lambda kind, dtype=dtype: (dtype, f"because {kind}"))
        compute = device.prepare(runtime("cpu"))
        assert (compute.autocast, compute.dtype_name, compute.reason) == (autocast, dtype, "because cpu")
        assert compute.accelerator.device.type == "cpu"
        assert compute.accelerator.num_processes == 1
    assert torch.get_num_threads() == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_gpu_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DraftyardError, match="train.device=cuda, but torch sees no GPU"):
        device.prepare(runtime("cuda"))
    assert device.prepare(runtime("auto")).accelerator.device.type == "cpu"
