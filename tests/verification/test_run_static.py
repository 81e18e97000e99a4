"""The static part of `verify` on a small build: it passes, and every way to break the draft is a red line, never a traceback."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftyard.artifacts.card import VerifierCard
from draftyard.artifacts.files import canonical_json
from draftyard.artifacts.hidden_states import DTYPES
from draftyard.artifacts.lineage import Lineage
from draftyard.artifacts.vocab import read_vocab, write_vocab
from draftyard.draft.geometry import VerifierGeometry, expected_tensors, resolve
from draftyard.draft.initial import initial_model
from draftyard.draft.model import save_checkpoint, trainable_parameters
from draftyard.draft.vocabulary import choose
from draftyard.errors import ArtifactError
from draftyard.params.draft import DraftParams
from draftyard.verification.draft_reader import load_draft
from draftyard.verification.run_static import run_static
from tests.training.small import train_params

IDS = (2, 4, 5)
DRAFT = DraftParams(
    vocab_size=40, hidden_size=None, num_hidden_layers=1, num_attention_heads=None, num_key_value_heads=None, head_dim=12, intermediate_size=None, rope_theta=None,
    rms_norm_eps=None, max_position_embeddings=None, norm_before_residual=False, norm_before_fc=False, norm_output=False, dtype="bfloat16",
)  # fmt: skip
TRAIN = train_params()
Tensors = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Build:
    verifier: Path
    card: VerifierCard
    vocab: Path
    lineage: Lineage
    tensors: Tensors
    config: str

    def static(self, draft: Path) -> dict[str, Any]:
        return run_static(draft, self.vocab, self.verifier, self.card, self.lineage)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, verifier_dir: Path) -> Build:
    root = tmp_path_factory.mktemp("build")
    geometry = VerifierGeometry.from_config(json.loads((verifier_dir / "config.json").read_text()))
    card = VerifierCard(
        source="path", name="verifier", revision=None, gguf=None, trust_remote_code=False, engine_args={}, files={}, geometry=geometry, tokenizer_digest="b" * 64,
        chat_template_digest=None, num_parameters=1, dtype="float32",
    )  # fmt: skip
    counts = torch.arange(96).numpy()
    write_vocab(root / "vocab", choose(counts, 40, [1, 2, 95]), {})
    draft = resolve(DRAFT, geometry, IDS)
    model = initial_model(draft, read_vocab(root / "vocab"), card, verifier_dir, TRAIN)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trainable_parameters(model).values():
            parameter.mul_(1 + 0.2 * torch.randn(parameter.shape, generator=generator))
    save_checkpoint(model, root / "draft", DTYPES[DRAFT.dtype])
    params = {"train": dataclasses.asdict(TRAIN), "draft": dataclasses.asdict(DRAFT)}
    lineage = Lineage("draft", "0" * 64, {}, params, {}, {"aux_layer_ids": list(IDS)}, {})
    tensors = load_file(root / "draft/model.safetensors")
    return Build(verifier_dir, card, root / "vocab", lineage, tensors, (root / "draft/config.json").read_text())


def written(build: Build, directory: Path, change: Callable[[Tensors], None] | None = None) -> Path:
    tensors = {name: tensor.clone() for name, tensor in build.tensors.items()}
    if change is not None:
        change(tensors)
    directory.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(build.config)
    return directory


def problems(result: dict[str, Any]) -> dict[str, str]:
    return {check["id"]: check["detail"] for check in result["checks"] if check["status"] == "fail"}


def test_the_draft_as_trained_passes(build: Build, tmp_path: Path) -> None:
    result = build.static(written(build, tmp_path))
    assert (result["status"], problems(result)) == ("pass", {})
    ids = {check["id"]: check for check in result["checks"]}
    assert {"params.shapes", "d2t.build", "weights.moved"} <= set(ids)
    assert "all 16 tensors" in ids["params.shapes"]["detail"]
    assert "all 13 trained tensors moved" in ids["weights.moved"]["detail"]
    expected = expected_tensors(resolve(DRAFT, build.card.geometry, IDS))
    assert {row["name"]: tuple(row["shape"]) for row in result["tensors"]} == {name: spec.shape for name, spec in expected.items()}
    assert all(row["shape"] == row["expected_shape"] for row in result["tensors"])
    assert (result["head_dim"], result["hidden_per_head"]) == (12, 8.0)
    assert result["reference"].startswith("speculators ")
    assert all(row["reference_shape"] == row["expected_shape"] == row["shape"] for row in result["tensors"])
    canonical_json(result)


def test_another_draft_stands_beside_it_and_every_difference_is_red(build: Build, tmp_path: Path) -> None:
    table = {name: ["BF16" if t.is_floating_point() else str(t.dtype), list(t.shape)] for name, t in build.tensors.items() if name not in ("d2t", "t2d")}
    table["layers.0.self_attn.q_proj.weight"][1] = [32, 64]
    table["only.there"] = ["BF16", [3]]
    (tmp_path / "other.json").write_text(json.dumps(table))
    result = run_static(written(build, tmp_path / "draft"), build.vocab, build.verifier, build.card, build.lineage, tmp_path / "other.json")
    found = {row["name"]: row for row in result["tensors"]}
    assert result["reference"] == "other.json"
    assert (found["layers.0.self_attn.q_proj.weight"]["shape"], found["layers.0.self_attn.q_proj.weight"]["reference_shape"]) == ([48, 64], [32, 64])
    assert (found["only.there"]["shape"], found["only.there"]["reference_shape"], found["d2t"]["reference_shape"]) == (None, [3], None)
    (check,) = [check for check in result["checks"] if check["id"] == "reference"]
    assert check["status"] == result["status"] == "fail"


def drop(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[name]

    return change


def put(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = make(tensors[name])

    return change


@pytest.mark.parametrize(
    ("change", "check_id", "detail"),
    [
        (drop("fc.weight"), "params.shapes", "fc.weight is missing"),
        (drop("d2t"), "d2t.build", "d2t or t2d of the checkpoint is not the one in models/vocab"),
        (drop("layers.0.hidden_norm.weight"), "weights.moved", "layers.0.hidden_norm.weight"),
        (put("d2t", lambda t: t + 1), "d2t.build", "is not the one in models/vocab"),
        (put("t2d", lambda t: ~t), "d2t.build", "is not the one in models/vocab"),
        (put("layers.0.self_attn.q_proj.weight", lambda t: t[:-12]), "params.shapes", r"q_proj.weight is BF16 \[36, 64\], params say BF16 \[48, 64\]"),
        (put("layers.0.self_attn.q_proj.weight", lambda t: t[:-12]), "weights.moved", "q_proj"),
        (put("fc.weight", lambda t: t.float()), "params.shapes", "fc.weight is F32"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), "params.shapes", "extra is not expected"),
    ],
)
def test_a_broken_draft_is_a_red_line(change: Callable[[Tensors], None], check_id: str, detail: str, build: Build, tmp_path: Path) -> None:
    result = build.static(written(build, tmp_path, change))
    assert result["status"] == "fail"
    assert re.search(detail, problems(result)[check_id])


def test_a_tensor_that_nobody_trained_is_named(build: Build, tmp_path: Path) -> None:
    initial = initial_model(resolve(DRAFT, build.card.geometry, IDS), read_vocab(build.vocab), build.card, build.verifier, TRAIN).state_dict()
    name = "layers.0.mlp.up_proj.weight"
    result = build.static(written(build, tmp_path, put(name, lambda t: initial[name].to(t.dtype))))
    assert problems(result) == {"weights.moved": f"not trained (relative change below 0.001): {name}"}


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, None])
def test_a_checkpoint_that_cannot_be_read_is_red_and_no_traceback(content: bytes | None, build: Build, tmp_path: Path) -> None:
    path = written(build, tmp_path) / "model.safetensors"
    if content is None:
        path.write_bytes(path.read_bytes()[:-100])
    else:
        path.write_bytes(content)
    result = build.static(tmp_path)
    assert result["status"] == "fail"
    assert "readable" in problems(result)
    canonical_json(result)
    with pytest.raises(ArtifactError, match=r"model\.safetensors: cannot be loaded"):
        load_draft(tmp_path)


def test_the_reader_refuses_missing_unknown_and_misshaped_tensors(build: Build, tmp_path: Path) -> None:
    for number, (change, message) in enumerate(
        [
            (drop("fc.weight"), r"tensors missing: \['fc.weight'\], unknown: \[\]; re-run the stage train"),
            (drop("embed_tokens.weight"), r"tensors missing: \['embed_tokens.weight'\]"),
            (lambda tensors: tensors.update(extra=torch.zeros(1)), r"unknown: \['extra'\]"),
            (put("fc.weight", lambda t: t[:, :-1]), "cannot be loaded .*size mismatch for fc.weight"),
        ]
    ):
        with pytest.raises(ArtifactError, match=message):
            load_draft(written(build, tmp_path / str(number), change))


def test_the_reader_gives_a_float32_model_in_eval_mode(build: Build, tmp_path: Path) -> None:
    model = load_draft(written(build, tmp_path))
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(model.fc.weight, build.tensors["fc.weight"].float())
    assert torch.equal(model.d2t, build.tensors["d2t"])
