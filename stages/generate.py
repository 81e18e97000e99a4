"""Stage `generate`: the verifier answers the prompts -> data/generations/."""

from __future__ import annotations

import dataclasses
import functools
import logging
from functools import partial

from draftyard.artifacts.card import read_card
from draftyard.artifacts.files import write_json
from draftyard.artifacts.generations import ARTIFACT, SPLITS
from draftyard.artifacts.lineage import made_with, write_lineage
from draftyard.artifacts.prompts import DIRECTORY, read_prompts_lineage, stream_split
from draftyard.artifacts.shards import drop_damaged, link_shards
from draftyard.engines.backend import choose_backend
from draftyard.engines.generate import Answerer, GenerateReport, SplitPlan, generate_split, require_bounds
from draftyard.engines.recovery import Recovery
from draftyard.engines.tokenizer import load_tokenizer
from draftyard.params.generate import GenerateParams
from draftyard.stage import StageContext, run_stage
from draftyard.verifiers import materialise

log = logging.getLogger(__name__)
OUT, METRICS = "data/generations", "reports/stages/generate.json"
BOUNDS = ("max_skipped_fraction", "max_looping_fraction")  # decide whether the stage fails, never what it makes: raising one keeps the shards


def main(context: StageContext) -> None:
    """Answer both splits, count what happened, publish."""
    card = read_card(context.root / "models/verifier.json")
    params = context.group(GenerateParams, "generate")
    model_dir = materialise(card, context.work, weights=params.engine == "vllm")
    tokenizer = functools.cache(lambda: load_tokenizer(model_dir, card.trust_remote_code))  # loaded while a local engine starts
    backend = choose_backend(params, context.runtime, card, model_dir, tokenizer, context.work / "logs" / "generate-engine.log")
    prompts_dir = context.root / DIRECTORY
    prompts = read_prompts_lineage(prompts_dir)
    inputs = {"prompts": prompts.digest, "verifier": card.digest}
    runtime = context.runtime.engine
    shaping = {
        "params": {"generate": {key: value for key, value in dataclasses.asdict(params).items() if key not in BOUNDS}},
        "inputs": inputs,
        "packages": backend.packages,
        **backend.shaping,
    }
    report = GenerateReport()
    with context.area(shaping) as area:
        if made_with(area.outs / OUT, ARTIFACT, dataclasses.asdict(params)) and area.publish_finished(context.root):
            return
        shards = area.path / "shards"
        for name in drop_damaged(shards, "jsonl"):
            log.warning("%s: damaged since it was written; it is made again", shards / name)
        plans = [SplitPlan(split=split, num_prompts=prompts.facts[split], samples_per_shard=runtime.samples_per_shard, params=params) for split in SPLITS]
        allowed = int(params.max_skipped_fraction * sum(plan.num_prompts * plan.samples for plan in plans))
        recovery = Recovery(runtime.max_restarts, allowed, f"generate.max_skipped_fraction={params.max_skipped_fraction}")
        if backend.config is not None:
            from draftyard.cluster.answers import fill_answers
            from draftyard.cluster.workers import worker_settings

            settings = worker_settings(backend.config, card.engine_args, context.runtime, context.work / "logs" / "generate")
            prompts_of, bound = partial(stream_split, prompts_dir), f"generate.max_skipped_fraction={params.max_skipped_fraction}"
            made = fill_answers(plans, prompts_of, shards, settings, params=params, dtype=backend.dtype, max_poisonous=allowed, bound=bound)
            log.info("%d shards were made on the cluster", made)
        with backend.start() as engine:
            answerer = Answerer(engine, tokenizer(), params)
            resumed = sum(generate_split(answerer, plan, stream_split(prompts_dir, plan.split), shards, recovery=recovery, report=report) for plan in plans)
        if resumed:
            log.info("%d finished shards were resumed", resumed)
        metrics = report.to_json(backend.dtype)
        write_json(context.root / METRICS, metrics)  # also when the next line refuses them
        require_bounds(report, params)
        built = area.new_out(OUT)
        digests = link_shards(shards, built)
        facts = {**backend.facts, "tokenizer_digest": card.tokenizer_digest, "chat_template_digest": card.chat_template_digest}
        write_lineage(built, ARTIFACT, inputs=inputs, params={"generate": dataclasses.asdict(params)}, packages=backend.packages, facts=facts, known=digests)
        write_json(area.new_out(METRICS), metrics)
        area.finish(context.root, (OUT, METRICS))


if __name__ == "__main__":
    run_stage("generate", main)
