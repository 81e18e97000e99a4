"""Stage `generate`: the verifier answers the prompts -> data/generations/."""

from __future__ import annotations

import dataclasses
import logging
import shutil

from draftyard.artifacts.card import read_card
from draftyard.artifacts.files import publish_directory, write_json
from draftyard.artifacts.generations import ARTIFACT, SPLITS
from draftyard.artifacts.lineage import package_versions, read_lineage, write_lineage
from draftyard.artifacts.prompts import read_split
from draftyard.engines.environment import enter_engine_environment
from draftyard.engines.generate import Answerer, GenerateReport, generate_split, require_bounds
from draftyard.engines.tokenizer import load_tokenizer
from draftyard.engines.vllm_engine import resolve_engine_args, start_engine
from draftyard.params.generate import GenerateParams
from draftyard.stage import StageContext, run_stage
from draftyard.verifiers import materialise
from draftyard.work import WorkArea

log = logging.getLogger(__name__)
MODULES = ("engines/generate.py", "engines/vllm_engine.py", "artifacts/generations.py")


def main(context: StageContext) -> None:
    """Answer both splits, count what happened, publish."""
    card = read_card(context.root / "models/verifier.json")
    model_dir = materialise(card, context.work)  # before the engine's environment, which is offline
    enter_engine_environment(context.runtime, context.work / "logs" / "generate.log")
    params = context.group(GenerateParams, "generate")
    prompts_dir = context.root / "data/prompts"
    splits = {split: read_split(prompts_dir, split) for split in SPLITS}
    engine_args, reason = resolve_engine_args(card.engine_args)
    log.info("dtype %s (%s)", engine_args["dtype"], reason)
    inputs = {"prompts": read_lineage(prompts_dir, "prompts").digest, "verifier": card.digest}
    packages = package_versions("vllm", "transformers", "torch", "tokenizers")
    runtime = dataclasses.replace(context.runtime.engine)
    shaping = {
        "params": dataclasses.asdict(params),
        "inputs": inputs,
        "packages": packages,
        "dtype": engine_args["dtype"],
        "batching": dataclasses.asdict(runtime),
    }
    report = GenerateReport()
    with WorkArea(context.work, ARTIFACT, shaping, MODULES) as area:
        built = area.path / "built"
        llm = start_engine(model_dir, max_model_len=params.max_model_len, runtime=runtime, engine_args=engine_args, trust_remote_code=card.trust_remote_code)
        answerer = Answerer(llm, load_tokenizer(model_dir, card.trust_remote_code), params)
        resumed = sum(
            generate_split(answerer, split, splits[split], built, samples_per_shard=runtime.samples_per_shard, params=params, report=report) for split in SPLITS
        )
        if resumed:
            log.info("%d finished shards were resumed", resumed)
        write_json(context.root / "reports/stages/generate.json", report.to_json(engine_args["dtype"]))
        require_bounds(report, params)
        shutil.rmtree(built / "skipped", ignore_errors=True)
        facts = {"dtype": engine_args["dtype"], "tokenizer_digest": card.tokenizer_digest, "chat_template_digest": card.chat_template_digest}
        write_lineage(built, ARTIFACT, inputs=inputs, params={"generate": dataclasses.asdict(params)}, packages=packages, facts=facts)
        publish_directory(built, context.root / "data/generations")
        area.discard()


if __name__ == "__main__":
    run_stage("generate", main)
