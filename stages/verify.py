"""Stage `verify`: static checks, simulation and serving measurements -> reports/verify/."""

from __future__ import annotations

import dataclasses
import logging

from draftyard.artifacts.card import read_card
from draftyard.artifacts.files import write_json
from draftyard.artifacts.generations import ARTIFACT as GENERATIONS
from draftyard.artifacts.generations import read_split
from draftyard.artifacts.hidden_states import ARTIFACT as HIDDEN_STATES
from draftyard.artifacts.hidden_states import HiddenStates
from draftyard.artifacts.lineage import read_lineage, require_same
from draftyard.params.verify import VerifyParams
from draftyard.stage import StageContext, run_stage
from draftyard.verification.draft_reader import load_draft
from draftyard.verification.run_serving import run_serving
from draftyard.verification.run_simulation import run_simulation
from draftyard.verification.run_static import run_static
from draftyard.verifiers import materialise
from draftyard.work import WorkArea

log = logging.getLogger(__name__)


def main(context: StageContext) -> None:
    """Refuse a draft of another build, then prove it three ways. Each result is kept as soon as it exists."""
    params = context.group(VerifyParams, "verify")
    root, out = context.root, context.root / "reports/verify"
    card = read_card(root / "models/verifier.json")
    draft, states = read_lineage(root / "models/draft", "draft"), read_lineage(root / "data/hidden_states", HIDDEN_STATES)
    answers = read_lineage(root / "data/generations", GENERATIONS)
    require_same("verifiers", "models/draft", draft.inputs["verifier"], "models/verifier.json", card.digest, "run dvc repro train")
    require_same("hidden states", "models/draft", draft.inputs["hidden_states"], "data/hidden_states", states.digest, "run dvc repro train")
    require_same("generations", "data/hidden_states", states.inputs["generations"], "data/generations", answers.digest, "run dvc repro hidden_states")
    model_dir = materialise(card, context.work)
    inputs = {"draft": draft.digest, "hidden_states": states.digest, "verifier": card.digest}
    material = {"params": dataclasses.asdict(params), "inputs": inputs, "engine": dataclasses.asdict(context.runtime.engine)}
    holdout = list(read_split(root / "data/generations", "holdout"))[: params.served_prompts]
    names = {(g.id, g.sample) for g in holdout}
    with WorkArea(context.work, "verify", material, ("verification/run_serving.py", "verification/serving.py", "verification/simulation.py")) as area:
        static = area.once("static.json", lambda: run_static(root / "models/draft", root / "models/vocab", model_dir, card, draft))
        log.info("static checks: %s", static["status"])
        data = HiddenStates(root / "data/hidden_states")

        def simulation() -> dict[str, object]:
            return run_simulation(load_draft(root / "models/draft"), data, names, card.num_parameters, params, context.runtime)

        simulated = area.once("simulation.json", simulation)
        log.info("simulated acceptance length %.4f over %d rounds", simulated["acceptance_length"], simulated["rounds"])
        generate = answers.params["generate"]
        lengths = {"max_tokens": generate["holdout_max_new_tokens"], "max_model_len": generate["max_model_len"]}
        served = area.once(
            "serving.json", lambda: run_serving(root / "models/draft", model_dir, card, holdout, params, context.runtime, context.work / "logs", **lengths)
        )
        for name, value in (("static", static), ("simulation", simulated), ("serving", served)):
            write_json(out / f"{name}.json", value)
        area.discard()


if __name__ == "__main__":
    run_stage("verify", main)
