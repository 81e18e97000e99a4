"""Stage `vocab`: the draft vocabulary and its maps -> models/vocab/."""

from __future__ import annotations

import logging
import shutil
from typing import Any

from draftyard.artifacts import generations as generations_format
from draftyard.artifacts.card import read_card
from draftyard.artifacts.files import write_json
from draftyard.artifacts.lineage import package_versions, read_lineage, require_same, write_lineage
from draftyard.artifacts.vocab import ARTIFACT, write_vocab
from draftyard.draft.vocabulary import choose, count_tokens, coverage, uncovered
from draftyard.engines.tokenizer import load_tokenizer
from draftyard.params.base import coerce
from draftyard.stage import StageContext, run_stage
from draftyard.verifiers import materialise

log = logging.getLogger(__name__)
SHOWN = 50


def main(context: StageContext) -> None:
    """Count the verifier's own tokens, choose, write the maps and their coverage."""
    size = coerce("draft.vocab_size", context.params["draft"]["vocab_size"], int | None)
    card = read_card(context.root / "models/verifier.json")
    directory = context.root / "data/generations"
    source = read_lineage(directory, generations_format.ARTIFACT)
    require_same("verifiers", "data/generations", source.inputs["verifier"], "models/verifier.json", card.digest, "run dvc repro generate")
    vocab_size = card.geometry.vocab_size
    counts = {}
    for split in generations_format.SPLITS:
        spans = (g.token_ids[start:end] for g in generations_format.read_split(directory, split) for start, end in g.loss_spans)
        counts[split] = count_tokens(spans, vocab_size)
    tokenizer = load_tokenizer(materialise(card, context.work), card.trust_remote_code)
    forced = sorted({*card.geometry.eos_token_ids, *tokenizer.all_special_ids})
    vocabulary = choose(counts["train"], size, forced)
    if size is None:
        log.warning("draft.vocab_size is null: the draft proposes all %d tokens of the verifier; its lm_head will be the largest tensor", vocab_size)
    facts: dict[str, Any] = {
        "size": len(vocabulary.d2t),
        "verifier_vocab_size": vocab_size,
        "forced_tokens": forced,
        "coverage_train": coverage(counts["train"], vocabulary.t2d),
        "coverage_holdout": coverage(counts["holdout"], vocabulary.t2d),
        "uncovered": [
            {"token_id": i, "text": tokenizer.decode([i]), "count": n} for i, n in uncovered(counts["train"] + counts["holdout"], vocabulary.t2d, SHOWN)
        ],
    }
    log.info(
        "%d of %d tokens: %.2f%% of the training answers, %.2f%% of the held-out ones",
        facts["size"],
        vocab_size,
        100 * facts["coverage_train"],
        100 * facts["coverage_holdout"],
    )
    out = context.root / "models/vocab"
    shutil.rmtree(out, ignore_errors=True)
    write_vocab(out, vocabulary, facts)
    inputs = {"generations": source.digest, "verifier": card.digest}
    write_lineage(
        out, ARTIFACT, inputs=inputs, params={"draft.vocab_size": size}, packages=package_versions("numpy", "transformers"), facts={"size": facts["size"]}
    )
    write_json(context.root / "reports/stages/vocab.json", facts)


if __name__ == "__main__":
    run_stage("vocab", main)
