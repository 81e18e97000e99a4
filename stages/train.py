"""Stage `train`: hidden states and vocabulary -> models/draft/, a checkpoint that vLLM loads as it is."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from pathlib import Path
from typing import Any

from draftyard.artifacts import hidden_states as hidden_states_format
from draftyard.artifacts import vocab as vocab_format
from draftyard.artifacts.card import read_card
from draftyard.artifacts.feature_store import find_store
from draftyard.artifacts.files import write_json
from draftyard.artifacts.lineage import package_versions, read_lineage, require_same, write_lineage
from draftyard.draft.geometry import parameter_counts, resolve
from draftyard.draft.initial import initial_model
from draftyard.draft.model import save_checkpoint
from draftyard.engines.tokenizer import load_tokenizer
from draftyard.params.draft import DraftParams
from draftyard.params.train import TrainParams
from draftyard.stage import StageContext, run_stage
from draftyard.training.card import write_model_card
from draftyard.training.describe import loss_mask_sample
from draftyard.training.device import prepare
from draftyard.training.launch import launch, speak_for_all
from draftyard.training.loop import Trainer, write_curves
from draftyard.training.ranks import Ranks
from draftyard.training.tracking import tracked
from draftyard.verifiers import materialise

log = logging.getLogger(__name__)
OUT, METRICS, CURVES = "models/draft", "reports/stages/train.json", "reports/training.csv"


def main(context: StageContext) -> None:
    """Check that the inputs belong together, train, save the best epoch."""
    speak_for_all()
    params, draft = context.group(TrainParams, "train"), context.group(DraftParams, "draft")
    root = context.root
    card = read_card(root / "models/verifier.json")
    states, vocab = read_lineage(root / "data/hidden_states", hidden_states_format.ARTIFACT), read_lineage(root / "models/vocab", vocab_format.ARTIFACT)
    require_same("verifiers", "data/hidden_states", states.inputs["verifier"], "models/verifier.json", card.digest, "run dvc repro hidden_states")
    require_same(
        "generations", "data/hidden_states", states.inputs["generations"], "models/vocab", vocab.inputs["generations"], "run dvc repro hidden_states vocab"
    )
    data = hidden_states_format.HiddenStates(root / "data/hidden_states", find_store(root, context.runtime, context.work))
    geometry = resolve(draft, card.geometry, data.aux_layer_ids)
    vocabulary = vocab_format.read_vocab(root / "models/vocab")
    require_same("vocabulary sizes", "models/vocab", len(vocabulary.d2t), "draft.vocab_size", geometry.draft_vocab_size, "run dvc repro vocab")
    counts = parameter_counts(geometry, trainable_lm_head=params.trainable_lm_head)
    heads, width = geometry.num_attention_heads, geometry.num_attention_heads * geometry.head_dim
    log.info("draft: %d heads x %d = %d against hidden_size %d", heads, geometry.head_dim, width, geometry.hidden_size)
    log.info("%.2f M parameters, %.2f M trainable", counts.total / 1e6, counts.trainable / 1e6)
    if launch(Path(__file__), root, context.work, context.runtime):
        return
    compute = prepare(context.runtime, context.work / "logs")
    log.info("training on %s in %s (%s)", compute.accelerator.device, compute.dtype_name, compute.reason)
    model_dir = materialise(card, context.work)
    model = initial_model(geometry, vocabulary, card, model_dir, params)
    packages = package_versions("torch", "transformers", "speculators", "accelerate")
    inputs = {"hidden_states": states.digest, "vocab": vocab.digest, "verifier": card.digest}
    described = {"train": dataclasses.asdict(params), "draft": dataclasses.asdict(draft)}
    shaping = {
        "params": described,
        "inputs": inputs,
        "packages": packages,
        "device": compute.accelerator.device.type,
        "dtype": compute.dtype_name,
        "micro_batch_tokens": context.runtime.train.micro_batch_tokens,
        "threads": context.runtime.num_threads(),
    }
    ranks = Ranks(compute.accelerator)
    with contextlib.ExitStack() as held:
        area = context.area(shaping)

        def enter() -> str | None:
            """The resume points' directory, the area locked; None when an earlier run had finished."""
            held.enter_context(area)
            return None if area.publish_finished(root) else str(area.path / "resume")

        if (resume_dir := ranks.first(enter)) is None:
            return
        trainer = Trainer(
            model, data, params, micro_batch_tokens=context.runtime.train.micro_batch_tokens, accelerator=compute.accelerator, autocast=compute.autocast,
            work=Path(resume_dir), csv_path=root / CURVES, checkpoint_every_steps=context.runtime.train.checkpoint_every_steps,
            sharding=context.runtime.train.sharding,
        )  # fmt: skip
        with tracked(compute.accelerator, area.key, described):
            trained = trainer.run()
        state = trainer.state()
        if trained.resumed_from:
            log.info("resumed after step %d", trained.resumed_from)
        tokenizer = load_tokenizer(model_dir, card.trust_remote_code)
        metrics: dict[str, Any] = {
            "parameters": dict(counts.__dict__),
            "geometry": geometry.to_json(),
            "epochs": trained.position.epochs,
            "best_epoch": trained.position.best_epoch,
            "holdout_acceptance_length": trained.position.best_acceptance,
            "steps": trained.position.step,
            "samples": trained.samples,
            "tokens_per_epoch": trained.tokens,
            "samples_cut": trained.cut,
            "samples_skipped": trained.skipped,
            "dtype": compute.dtype_name,
            "loss_mask_sample": loss_mask_sample(data, tokenizer, params.prompt_loss_weight),
        }
        facts = {"aux_layer_ids": list(data.aux_layer_ids), "aux_layer_convention": hidden_states_format.CONVENTION}

        def publish() -> None:
            built = area.new_out(OUT)
            save_checkpoint(model, built, hidden_states_format.DTYPES[draft.dtype], state)
            write_model_card(built / "README.md", card, geometry, params, metrics)
            write_lineage(built, "draft", inputs=inputs, params=described, packages=packages, facts=facts)
            write_json(area.new_out(METRICS), metrics)
            write_curves(area.new_out(CURVES), trained.position.rows)
            area.finish(root, (OUT, METRICS, CURVES))

        ranks.first(publish)


if __name__ == "__main__":
    run_stage("train", main)
