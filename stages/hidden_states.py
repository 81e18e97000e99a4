"""Stage `hidden_states`: the verifier's states over its own answers -> data/hidden_states/."""

from __future__ import annotations

import dataclasses
import logging
import shutil

from draftyard.artifacts import generations as generations_format
from draftyard.artifacts.card import read_card
from draftyard.artifacts.files import publish_directory, write_json
from draftyard.artifacts.hidden_states import ARTIFACT, CONVENTION, LAST_STATE, write_index
from draftyard.artifacts.lineage import package_versions, read_lineage, require_same, write_lineage
from draftyard.disk import planned_hidden_states_bytes, require_disk
from draftyard.engines.canary import run_canary
from draftyard.engines.environment import enter_engine_environment
from draftyard.engines.extract import extract_split
from draftyard.engines.vllm_engine import resolve_engine_args, start_extraction_engine
from draftyard.params.hidden_states import HiddenStatesParams, resolve_aux_layer_ids
from draftyard.stage import StageContext, run_stage
from draftyard.verifiers import materialise
from draftyard.work import WorkArea

log = logging.getLogger(__name__)
MODULES = ("engines/extract.py", "engines/connector.py", "engines/vllm_engine.py", "artifacts/hidden_states.py")


def main(context: StageContext) -> None:
    """Check the disk, run the canary, capture both splits, publish."""
    card = read_card(context.root / "models/verifier.json")
    model_dir = materialise(card, context.work)  # before the engine's environment, which is offline
    enter_engine_environment(context.runtime, context.work / "logs" / "hidden_states.log")
    params = context.group(HiddenStatesParams, "hidden_states")
    source = read_lineage(context.root / "data/generations", generations_format.ARTIFACT)
    require_same("verifiers", "data/generations", source.inputs["verifier"], "models/verifier.json", card.digest, "run dvc repro generate")
    directory = context.root / "data/generations"
    lengths = {split: [len(g.token_ids) for g in generations_format.read_split(directory, split)] for split in generations_format.SPLITS}
    aux_ids = resolve_aux_layer_ids(params.aux_layer_ids, card.geometry.num_hidden_layers)
    tokens = {split: sum(counts) for split, counts in lengths.items()}
    needed = planned_hidden_states_bytes(sum(tokens.values()), hidden_size=card.geometry.hidden_size, num_aux_layers=len(aux_ids), dtype=params.dtype)
    require_disk(context.work, needed, "hidden states", "lower prompts.max_prompts or generate.max_new_tokens, or set DRAFTYARD_WORK_DIR to a larger disk")
    engine_args, _ = resolve_engine_args(card.engine_args)
    packages = package_versions("vllm", "torch", "safetensors")
    inputs = {"generations": source.digest, "verifier": card.digest}
    shaping = {
        "params": dataclasses.asdict(params),
        "inputs": inputs,
        "packages": packages,
        "dtype": engine_args["dtype"],
        "batching": dataclasses.asdict(context.runtime.engine),
    }
    with WorkArea(context.work, ARTIFACT, shaping, MODULES) as area:
        raw, built = area.path / "raw", area.path / "built"
        shutil.rmtree(raw, ignore_errors=True)
        longest = max(max(counts) for counts in lengths.values())
        llm = start_extraction_engine(
            model_dir,
            aux_ids,
            card.geometry.num_hidden_layers,
            raw,
            max_model_len=longest + 8,
            runtime=context.runtime.engine,
            engine_args=engine_args,
            trust_remote_code=card.trust_remote_code,
        )
        canary = run_canary(llm, generations_format.read_split(directory, "holdout"), model_dir, card, list(aux_ids), params)
        log.info(
            "canary: %.4f agreement over %d positions, reference difference %s", canary["agreement"], canary["positions"], canary["reference_max_difference"]
        )
        entries = {}
        for split, counts in lengths.items():
            entries[split], resumed = extract_split(
                llm,
                split,
                generations_format.read_split(directory, split),
                counts,
                built,
                hidden_size=card.geometry.hidden_size,
                num_states=len(aux_ids) + 1,
                dtype=params.dtype,
                shard_bytes=params.shard_mib << 20,
            )
            if resumed:
                log.info("%d finished %s shards were resumed", resumed, split)
        shutil.rmtree(built / "entries")
        write_index(built, aux_layer_ids=aux_ids, hidden_size=card.geometry.hidden_size, dtype=params.dtype, splits=entries)
        facts = {"aux_layer_ids": list(aux_ids), "aux_layer_convention": CONVENTION, "last_hidden_states": LAST_STATE, "engine_dtype": engine_args["dtype"]}
        write_lineage(built, ARTIFACT, inputs=inputs, params={"hidden_states": dataclasses.asdict(params)}, packages=packages, facts=facts)
        publish_directory(built, context.root / "data/hidden_states")
        area.discard()
    metrics = {"tokens": tokens, "bytes": needed, "aux_layer_ids": list(aux_ids), "aux_layer_convention": CONVENTION, "dtype": params.dtype, "canary": canary}
    write_json(context.root / "reports/stages/hidden_states.json", metrics)


if __name__ == "__main__":
    run_stage("hidden_states", main)
