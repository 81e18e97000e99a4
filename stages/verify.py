"""Stage `verify`: static checks, simulation and serving measurements -> reports/verify/."""

from __future__ import annotations

import contextlib
import dataclasses
import logging

from draftyard.artifacts.card import read_card
from draftyard.artifacts.feature_store import find_store
from draftyard.artifacts.files import digest_directory, digest_file, write_json
from draftyard.artifacts.generations import ARTIFACT as GENERATIONS
from draftyard.artifacts.generations import read_split
from draftyard.artifacts.hidden_states import ARTIFACT as HIDDEN_STATES
from draftyard.artifacts.hidden_states import HiddenStates
from draftyard.artifacts.lineage import package_versions, read_lineage, require_same
from draftyard.artifacts.vocab import ARTIFACT as VOCAB
from draftyard.engines.vllm_engine import resolve_engine_args
from draftyard.params.verify import VerifyParams
from draftyard.stage import StageContext, run_stage
from draftyard.verification.draft_reader import load_draft
from draftyard.verification.run_serving import Servers, run_serving, servers
from draftyard.verification.run_simulation import run_simulation
from draftyard.verification.run_static import run_static
from draftyard.verifiers import materialise

log = logging.getLogger(__name__)
OUTS = {name: f"reports/verify/{name}.json" for name in ("static", "simulation", "serving")}


def main(context: StageContext) -> None:
    """Refuse a draft of another build, then prove it three ways. Each result is kept as soon as it exists."""
    params = context.group(VerifyParams, "verify")
    root = context.root
    card = read_card(root / "models/verifier.json")
    draft, states = read_lineage(root / "models/draft", "draft"), read_lineage(root / "data/hidden_states", HIDDEN_STATES)
    answers = read_lineage(root / "data/generations", GENERATIONS)
    require_same("verifiers", "models/draft", draft.inputs["verifier"], "models/verifier.json", card.digest, "run dvc repro train")
    require_same("hidden states", "models/draft", draft.inputs["hidden_states"], "data/hidden_states", states.digest, "run dvc repro train")
    require_same("generations", "data/hidden_states", states.inputs["generations"], "data/generations", answers.digest, "run dvc repro hidden_states")
    vocab = read_lineage(root / "models/vocab", VOCAB)
    require_same("vocabularies", "models/draft", draft.inputs["vocab"], "models/vocab", vocab.digest, "run dvc repro train")
    model_dir = materialise(card, context.work)
    inputs = {"draft": draft.digest, "hidden_states": states.digest, "vocab": vocab.digest, "verifier": card.digest}
    reference = root / params.reference if params.reference else None
    if reference is not None:
        inputs["reference"] = digest_file(reference) if reference.is_file() else digest_directory(reference)
    material = {
        "params": {"verify": dataclasses.asdict(params)},
        "inputs": inputs,
        "packages": package_versions("vllm", "torch", "transformers", "speculators"),
        "dtype": resolve_engine_args(card.engine_args)[0]["dtype"],
        "engine": context.runtime.engine.batching(),
        "micro_batch_tokens": context.runtime.train.micro_batch_tokens,
        "threads": context.runtime.num_threads(),
    }
    holdout = list(read_split(root / "data/generations", "holdout"))[: params.served_prompts]
    names = {(g.id, g.sample) for g in holdout}
    generate = answers.params["generate"]
    with context.area(material) as area, contextlib.ExitStack() as held:
        if area.publish_finished(root):
            return
        logs = context.work / "logs"

        def start() -> Servers:
            length = generate["max_model_len"]
            return held.enter_context(servers(root / "models/draft", model_dir, card, params, context.runtime, logs, max_model_len=length))

        # While they start, on one core each, the static checks run; the simulation wants the cores for itself.
        pair = None if area.has("serving.json") else start()
        static = area.once("static.json", lambda: run_static(root / "models/draft", root / "models/vocab", model_dir, card, draft, reference))
        log.info("static checks: %s", static["status"])
        if pair is not None:
            pair.wait_ready()
        data = HiddenStates(root / "data/hidden_states", find_store(root, context.runtime, context.work))

        def simulation() -> dict[str, object]:
            return run_simulation(load_draft(root / "models/draft"), data, names, card.num_parameters, params, context.runtime)

        simulated = area.once("simulation.json", simulation)
        log.info("simulated acceptance length %.4f over %d rounds", simulated["acceptance_length"], simulated["rounds"])
        served = area.once(
            "serving.json", lambda: run_serving(pair or start(), model_dir, card, holdout, params, max_tokens=generate["holdout_max_new_tokens"])
        )
        for name, value in (("static", {**static, "made_from": inputs}), ("simulation", simulated), ("serving", served)):
            write_json(area.new_out(OUTS[name]), value)
        area.finish(root, tuple(OUTS.values()))


if __name__ == "__main__":
    run_stage("verify", main)
