"""Stage `hidden_states`: the verifier's states over its own answers -> data/hidden_states/."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shutil
from array import array
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from draftyard.artifacts import generations as generations_format
from draftyard.artifacts.card import read_card
from draftyard.artifacts.feature_store import StoredShards, open_store
from draftyard.artifacts.files import digest_json, write_json
from draftyard.artifacts.generations import Generation
from draftyard.artifacts.hidden_states import ARTIFACT, CONVENTION, LAST_STATE, write_index
from draftyard.artifacts.lineage import made_with, package_versions, read_lineage, require_same, write_lineage
from draftyard.artifacts.shards import drop_damaged, link_shards
from draftyard.disk import SHARDS_IN_FLIGHT, directory_bytes, hidden_states_bytes_per_token, planned_hidden_states_bytes, require_disk, same_file_system
from draftyard.engines.canary import CANARY_POOL
from draftyard.engines.capturing import CapturingEngine
from draftyard.engines.extract import KEPT_THERE, ShardKeeper, SplitCapture, extract_split
from draftyard.engines.recovery import Recovery
from draftyard.engines.vllm_engine import resolve_engine_args
from draftyard.errors import DraftyardError
from draftyard.params.hidden_states import HiddenStatesParams, resolve_aux_layer_ids
from draftyard.stage import StageContext, run_stage
from draftyard.stage_code import stage_code
from draftyard.verifiers import materialise

log = logging.getLogger(__name__)
OUT, METRICS = "data/hidden_states", "reports/stages/hidden_states.json"
GENERATIONS = "data/generations"
SHOWN = 10
BOUNDS = ("max_skipped_fraction", "canary_samples", "canary_min_agreement", "canary_max_difference", "canary_reference_max_parameters")
"""They decide whether the stage fails, never what it makes: changing one keeps the shards."""
REMEDY = "lower prompts.max_prompts or generate.max_new_tokens, or set DRAFTYARD_WORK_DIR to a larger disk"


def main(context: StageContext) -> None:
    """Check the disk, run the canary, capture both splits, publish."""
    card = read_card(context.root / "models/verifier.json")
    params = context.group(HiddenStatesParams, "hidden_states")
    model_dir = materialise(card, context.work)
    source = read_lineage(context.root / "data/generations", generations_format.ARTIFACT)
    require_same("verifiers", "data/generations", source.inputs["verifier"], "models/verifier.json", card.digest, "run dvc repro generate")
    directory = context.root / GENERATIONS
    lengths = {split: array("I", (len(g.token_ids) for g in generations_format.read_split(directory, split))) for split in generations_format.SPLITS}
    aux_ids = resolve_aux_layer_ids(params.aux_layer_ids, card.geometry.num_hidden_layers)
    tokens = {split: sum(counts) for split, counts in lengths.items()}
    needed = planned_hidden_states_bytes(sum(tokens.values()), hidden_size=card.geometry.hidden_size, num_aux_layers=len(aux_ids), dtype=params.dtype)
    # Before anything is imported: what all unfinished work holds may be part of this.
    in_work = needed if params.storage == "outs" else min(needed, SHARDS_IN_FLIGHT * params.shard_mib << 20)
    require_disk(context.work, in_work - directory_bytes(context.work / context.name), "hidden states", REMEDY)
    if params.storage == "outs" and not same_file_system(context.work, context.root):
        require_disk(context.root, needed, "the copy of the hidden states from DRAFTYARD_WORK_DIR", "make room there, or lower prompts.max_prompts")
    engine_args, _ = resolve_engine_args(card.engine_args)
    packages = package_versions("vllm", "torch", "safetensors")
    inputs = {"generations": source.digest, "verifier": card.digest}
    shaping = {
        "params": {"hidden_states": {key: value for key, value in dataclasses.asdict(params).items() if key not in BOUNDS}},
        "inputs": inputs,
        "packages": packages,
        "dtype": engine_args["dtype"],
        "engine": context.runtime.engine.batching(),
        "threads": context.runtime.num_threads(),
    }
    with context.area(shaping) as area:
        # With a store, all shards of a finished run are found there, and one that went missing is made again.
        finished = params.storage == "outs" and made_with(area.outs / OUT, ARTIFACT, dataclasses.asdict(params))
        if finished and area.publish_finished(context.root):
            return
        raw, shards = area.path / "raw", area.path / "shards"
        shutil.rmtree(raw, ignore_errors=True)
        for name in drop_damaged(shards, "safetensors"):
            log.warning("%s: damaged since it was written; it is made again", shards / name)
        require_disk(context.work, in_work - directory_bytes(shards), "hidden states", REMEDY)
        config = {
            "model": str(model_dir),
            "max_model_len": max(max(counts) for counts in lengths.values()) + 8,
            "engine_args": engine_args,
            "trust_remote_code": card.trust_remote_code,
            "storage": str(raw),
            "aux_layer_ids": aux_ids,
            "num_layers": card.geometry.num_hidden_layers,
            "hidden_size": card.geometry.hidden_size,
        }
        per_token = hidden_states_bytes_per_token(card.geometry.hidden_size, len(aux_ids), params.dtype)
        plans = [
            SplitCapture(split=split, lengths=counts, bytes_per_token=per_token, shard_bytes=params.shard_mib << 20, dtype=params.dtype)
            for split, counts in lengths.items()
        ]
        engine = CapturingEngine(config, context.runtime, context.work / "logs" / "hidden_states-engine.log")
        with contextlib.ExitStack() as held:
            kept = held.enter_context(shard_keeper(context, params, shaping, needed))
            if context.runtime.executor == "ray":
                canary = capture_on_cluster(plans, context, params, shards, kept, config, card.engine_args)
            else:
                held.enter_context(engine)
                canary = run_canary(engine, context, params)
            entries = {plan.split: capture_split(engine, plan, context, params, shards, kept) for plan in plans}
        agreement, difference = canary["agreement"], canary["reference_max_difference"]
        log.info("canary: %.4f agreement over %d positions, reference difference %s", agreement, canary["positions"], difference)
        skipped = [name for split in entries.values() for entry in split for name in entry.get("skipped", ())]
        built = area.new_out(OUT)
        digests = link_shards(shards, built) if params.storage == "outs" else {}
        write_index(built, aux_layer_ids=aux_ids, hidden_size=card.geometry.hidden_size, dtype=params.dtype, splits=entries, storage=params.storage)
        facts = {"aux_layer_ids": list(aux_ids), "aux_layer_convention": CONVENTION, "last_hidden_states": LAST_STATE, "engine_dtype": engine_args["dtype"]}
        write_lineage(built, ARTIFACT, inputs=inputs, params={"hidden_states": dataclasses.asdict(params)}, packages=packages, facts=facts, known=digests)
        metrics = {
            "tokens": tokens,
            "bytes": needed,
            "aux_layer_ids": list(aux_ids),
            "aux_layer_convention": CONVENTION,
            "dtype": params.dtype,
            "canary": canary,
            "skipped": len(skipped),
            "skipped_examples": skipped[:SHOWN],
        }
        write_json(area.new_out(METRICS), metrics)
        area.finish(context.root, (OUT, METRICS))


def run_canary(engine: CapturingEngine, context: StageContext, params: HiddenStatesParams) -> dict[str, Any]:
    """The canary's metrics, from the first holdout samples."""
    recovery = Recovery(context.runtime.engine.max_restarts, 0, "the canary, which must be whole,")
    canary, _ = recovery.run([canary_request(context, params)], lambda requests: engine.canary(*requests[0]), lambda _: "the canary")
    return canary


def canary_request(context: StageContext, params: HiddenStatesParams) -> tuple[list[Generation], Path, dict[str, Any]]:
    """The arguments of CapturingEngine.canary."""
    pool = list(islice(generations_format.read_split(context.root / GENERATIONS, "holdout"), CANARY_POOL))
    return pool, context.root / "models/verifier.json", dataclasses.asdict(params)


def capture_on_cluster(
    plans: list[SplitCapture],
    context: StageContext,
    params: HiddenStatesParams,
    shards: Path,
    kept: ShardKeeper,
    config: dict[str, Any],
    engine_args: dict[str, Any],
) -> dict[str, Any]:
    """Have a cluster run the canary and make every missing shard. Returns the canary's metrics."""
    from draftyard.cluster.states import fill_states
    from draftyard.cluster.workers import worker_settings

    settings = worker_settings(config, engine_args, context.runtime, context.work / "logs" / "hidden_states")
    dtype = config["engine_args"]["dtype"]
    bounds = {plan.split: allowed_poisonous(plan, params) for plan in plans}
    answers = partial(generations_format.read_split, context.root / GENERATIONS)
    return fill_states(plans, answers, shards, settings, dtype=dtype, bounds=bounds, canary=canary_request(context, params), kept=kept)


def allowed_poisonous(plan: SplitCapture, params: HiddenStatesParams) -> tuple[int, str]:
    """How many samples of a split the engine may fail on, and what says so. The holdout must be whole: it is simulated and served, and the two are compared."""
    if plan.split == "train":
        return int(params.max_skipped_fraction * len(plan.lengths)), f"hidden_states.max_skipped_fraction={params.max_skipped_fraction}"
    return 0, "the holdout, which must be whole,"


def shard_keeper(context: StageContext, params: HiddenStatesParams, shaping: dict[str, Any], needed: int) -> contextlib.AbstractContextManager[ShardKeeper]:
    """What becomes of finished shards: they stay in the work area, or go to the feature store, under a key of everything that gives the states their meaning.

    How requests share batches on this machine can turn a last bit, and is no part of that key: one machine can make again what another has lost.
    """
    if params.storage == "outs":
        return contextlib.nullcontext(KEPT_THERE)
    shapes = {key: value for key, value in dataclasses.asdict(params).items() if key not in (*BOUNDS, "storage")}
    material = {**{name: shaping[name] for name in ("inputs", "packages", "dtype")}, "params": shapes, "code": stage_code(context.root, context.name)}
    kept = StoredShards(open_store(context.root, context.runtime, context.work), digest_json(material)[:16])
    kept.require_room(needed)
    return kept


def capture_split(
    engine: CapturingEngine, plan: SplitCapture, context: StageContext, params: HiddenStatesParams, shards: Path, kept: ShardKeeper
) -> list[dict[str, Any]]:
    """The index entries of one split."""
    allowed, bound = allowed_poisonous(plan, params)
    recovery = Recovery(context.runtime.engine.max_restarts, allowed, bound)
    answers = generations_format.read_split(context.root / GENERATIONS, plan.split)
    entries, resumed = extract_split(engine, plan, answers, shards, recovery=recovery, kept=kept)
    if resumed:
        log.info("%d finished %s shards were resumed", resumed, plan.split)
    skipped = [name for entry in entries for name in entry.get("skipped", ())]
    if len(skipped) > allowed:  # an earlier run's may be among them
        raise DraftyardError(f"the engine fails on {len(skipped)} samples, each by itself ({', '.join(skipped[:SHOWN])}); {bound} allows {allowed}")
    return entries


if __name__ == "__main__":
    run_stage("hidden_states", main)
