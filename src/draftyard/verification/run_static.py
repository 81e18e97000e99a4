"""The static part of `verify`: every check of `draftyard check`, the shapes computed from params, and the proof that weights moved."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from draftyard.artifacts.card import VerifierCard
from draftyard.artifacts.hidden_states import DTYPES
from draftyard.artifacts.lineage import Lineage
from draftyard.artifacts.vocab import read_vocab
from draftyard.draft.geometry import DraftGeometry, expected_tensors, resolve
from draftyard.draft.initial import initial_model
from draftyard.draft.model import trainable_parameters
from draftyard.params.base import build
from draftyard.params.draft import DraftParams
from draftyard.params.train import TrainParams
from draftyard.verification.check_report import Check
from draftyard.verification.checks import check_checkpoint
from draftyard.verification.subject import read_reference

MIN_RELATIVE_MOVE = 1e-3


def run_static(draft_dir: Path, vocab_dir: Path, model_dir: Path, card: VerifierCard, lineage: Lineage, reference: Path | None = None) -> dict[str, Any]:
    """All static checks of the draft in `draft_dir` against its verifier, its vocabulary map and the params it was made from.

    reference: another draft's tensor table (JSON) or checkpoint that this one must be like; without one, the tensors that
    speculators' own model class makes from the same params stand beside the formula's, so that the two are seen to agree.
    """
    draft, train = build(DraftParams, "draft", lineage.params["draft"]), build(TrainParams, "train", lineage.params["train"])
    geometry = resolve(draft, card.geometry, lineage.facts["aux_layer_ids"])
    report = check_checkpoint(draft_dir, verifier_dir=model_dir, reference=reference)
    if report.error is not None:
        return {
            **report.to_json(),
            "status": "fail",
            "tensors": [],
            "reference": None,
            "head_dim": geometry.head_dim,
            "hidden_per_head": geometry.hidden_size / geometry.num_attention_heads,
        }
    saved = load_file(draft_dir / "model.safetensors")
    start = initial_model(geometry, read_vocab(vocab_dir), card, model_dir, train)
    checks = [*report.checks, _against_params(saved, geometry), _same_map(saved, vocab_dir), _moved(saved, geometry, trainable_parameters(start))]
    expected = {name: list(spec.shape) for name, spec in expected_tensors(geometry).items()}
    source, other = _library_tensors(start) if reference is None else (reference.name, {n: list(spec.shape) for n, spec in read_reference(reference).items()})
    failed = report.status != "pass" or any(check.status == "fail" for check in checks)
    result = report.to_json()
    result.update(
        status="fail" if failed else "pass",
        checks=[check.__dict__ for check in checks],
        tensors=[
            {
                "name": name,
                "dtype": _dtype(saved[name]) if name in saved else None,
                "shape": list(saved[name].shape) if name in saved else None,
                "expected_shape": expected.get(name),
                "reference_shape": other.get(name),
            }
            for name in sorted({*saved, *expected, *other})
        ],
        reference=source,
        head_dim=geometry.head_dim,
        hidden_per_head=geometry.hidden_size / geometry.num_attention_heads,
    )
    return result


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _library_tensors(model: Any) -> tuple[str, dict[str, list[int]]]:
    """What speculators' Eagle3DraftModel would save: its state without the verifier's own tensors."""
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items() if not name.startswith("verifier_")}
    return f"speculators {version('speculators')}, Eagle3DraftModel", shapes


def _against_params(saved: dict[str, torch.Tensor], geometry: DraftGeometry) -> Check:
    """Names, shapes and dtypes against the formula on params, not on the checkpoint's own config."""
    expected = expected_tensors(geometry)
    wrong = [f"{name} is missing" for name in expected if name not in saved] + [f"{name} is not expected" for name in saved if name not in expected]
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64", torch.bool: "BOOL"}
    for name in sorted(set(saved) & set(expected)):
        found, wanted = (names.get(saved[name].dtype), tuple(saved[name].shape)), (expected[name].dtype, expected[name].shape)
        if found != wanted:
            wrong.append(f"{name} is {found[0]} {list(found[1])}, params say {wanted[0]} {list(wanted[1])}")
    if wrong:
        return Check("params.shapes", "fail", "; ".join(wrong), "the checkpoint is not the draft that params.yaml asks for; run dvc repro train")
    return Check("params.shapes", "pass", f"all {len(expected)} tensors have the names, shapes and dtypes that params.yaml gives")


def _same_map(saved: dict[str, torch.Tensor], vocab_dir: Path) -> Check:
    """The checkpoint's d2t and t2d are the build's, value by value."""
    d2t, t2d = read_vocab(vocab_dir).tensors()
    if "d2t" not in saved and len(d2t) == len(t2d):
        return Check("d2t.build", "pass", "full vocabulary: no map is needed")
    same = "d2t" in saved and "t2d" in saved and torch.equal(saved["d2t"], d2t) and torch.equal(saved["t2d"], t2d)
    if not same:
        return Check(
            "d2t.build",
            "fail",
            "d2t or t2d of the checkpoint is not the one in models/vocab",
            "drafted ids would be read as other tokens; run dvc repro vocab train",
        )
    return Check("d2t.build", "pass", f"all {len(d2t)} offsets of d2t and all {len(t2d)} flags of t2d are those of models/vocab")


def _moved(saved: dict[str, torch.Tensor], geometry: DraftGeometry, initial: dict[str, Any]) -> Check:
    """Every trained tensor differs from its initial value, rebuilt here from the seed."""
    moves = {}
    for name, start in initial.items():
        rounded = start.detach().to(DTYPES[geometry.dtype]).float()
        moves[name] = (
            float((saved[name].float() - rounded).norm() / rounded.norm().clamp_min(1e-12)) if name in saved and saved[name].shape == start.shape else 0.0
        )
    still = sorted(name for name, move in moves.items() if move < MIN_RELATIVE_MOVE)
    if still:
        return Check(
            "weights.moved",
            "fail",
            f"not trained (relative change below {MIN_RELATIVE_MOVE}): {', '.join(still)}",
            "a tensor that nobody trained is served as random numbers; look at reports/training.csv",
        )
    least = min(moves, key=lambda name: moves[name])
    return Check("weights.moved", "pass", f"all {len(moves)} trained tensors moved away from their initial values, least {least} by {moves[least]:.1%}")
