"""A repository as the stages before `train` leave it, with made-up states: no engine, seconds instead of minutes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from draftyard.artifacts import generations as generations_format
from draftyard.artifacts import hidden_states as hidden_states_format
from draftyard.artifacts import vocab as vocab_format
from draftyard.artifacts.card import write_card
from draftyard.artifacts.generations import Generation, Turn
from draftyard.artifacts.lineage import write_lineage
from draftyard.draft.vocabulary import choose
from draftyard.params.base import build
from draftyard.params.verifier import VerifierParams
from draftyard.verifiers import resolve
from tests.pipeline.tiny_repo import ROOT, VERIFIER, save_verifier, tiny_params, write_params, write_runtime

VOCAB, HIDDEN, AUX_IDS = 512, 64, [2, 4, 5]
LENGTH = 24


def generation(number: int) -> Generation:
    """A conversation of LENGTH tokens, the last two thirds of it the verifier's."""
    token_ids = [3 + (number * 31 + position * 7) % (VOCAB - 3) for position in range(LENGTH)]
    start = LENGTH // 3
    turn = Turn(prompt_token_ids=token_ids[:start], output_token_ids=token_ids[start:], text="x", finish_reason="length")
    return Generation(id=f"p-{number}", category="chat", sample=0, turns=[turn], token_ids=token_ids, loss_spans=[(start, LENGTH)])


def sample(row: Generation) -> hidden_states_format.Sample:
    """Random states of a conversation, the same for the same id."""
    import torch

    generator = torch.Generator().manual_seed(int(row.id.removeprefix("p-")))
    mask = torch.zeros(LENGTH, dtype=torch.bool)
    mask[row.loss_spans[0][0] :] = True
    states = [torch.randn(LENGTH, width, generator=generator) for width in (len(AUX_IDS) * HIDDEN, HIDDEN)]
    return hidden_states_format.Sample(
        id=row.id, category=row.category, sample=0, aux=states[0], last=states[1], token_ids=torch.tensor(row.token_ids), loss_mask=mask
    )


def make_training_repository(root: Path, *, train: int = 24, holdout: int = 4) -> Path:
    """Everything that stages/train.py reads, in the directory `root`."""
    root.mkdir(parents=True)
    for name in ("dvc.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, root)
    shutil.copytree(ROOT / "stages", root / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    (root / ".dvc").mkdir()
    (root / ".dvc/config").write_text("[core]\n    no_scm = true\n    analytics = false\n    check_update = false\n")
    save_verifier(root / VERIFIER)
    write_runtime(root)
    write_params(root)
    card, _ = resolve(build(VerifierParams, "verifier", {**tiny_params()["verifier"], "name": str(root / VERIFIER)}), root / ".work")
    write_card(root / "models/verifier.json", card)
    rows = {"train": [generation(n) for n in range(train)], "holdout": [generation(n) for n in range(train, train + holdout)]}
    answers_dir, states_dir = root / "data/generations", root / "data/hidden_states"
    entries = {}
    for split, members in rows.items():
        generations_format.write_shard(answers_dir / generations_format.shard_name(split, 0), members)
        entries[split] = [hidden_states_format.write_shard(states_dir / f"{split}-00000.safetensors", [sample(row) for row in members], "float32")]
    shutil.rmtree(answers_dir / "entries")
    answers = write_lineage(answers_dir, generations_format.ARTIFACT, inputs={"prompts": "0" * 64, "verifier": card.digest}, params={}, packages={})
    hidden_states_format.write_index(states_dir, aux_layer_ids=AUX_IDS, hidden_size=HIDDEN, dtype="float32", splits=entries)
    made_from = {"generations": answers.digest, "verifier": card.digest}
    write_lineage(states_dir, hidden_states_format.ARTIFACT, inputs=made_from, params={}, packages={})
    counts = np.bincount([token for row in rows["train"] for token in row.token_ids], minlength=VOCAB)
    vocabulary = choose(counts, int(tiny_params()["draft"]["vocab_size"]), [0, 1, 2])
    vocab_format.write_vocab(root / "models/vocab", vocabulary, {"size": len(vocabulary.d2t)})
    write_lineage(root / "models/vocab", vocab_format.ARTIFACT, inputs=made_from, params={}, packages={})
    return root
