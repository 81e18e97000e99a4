"""What a build will cost, before it starts: parameters, tensors, tokens, bytes, memory, time. Needs no weights and no GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftyard.artifacts.untrusted import MAX_JSON_BYTES
from draftyard.disk import SHARDS_IN_FLIGHT, free_bytes, hidden_states_bytes_per_token, human_bytes
from draftyard.draft.geometry import (
    DraftGeometry,
    ParameterCounts,
    TensorSpec,
    count_weights,
    expected_tensors,
    parameter_counts,
    resolve,
)
from draftyard.draft.layouts import to_layout
from draftyard.hardware import available_memory, has_bf16_hardware, nvidia_gpus
from draftyard.params.hidden_states import resolve_aux_layer_ids
from draftyard.params.load import Params
from draftyard.planning_verifier import VerifierSource, find_verifier

PROMPT_TOKENS = 80
"""A prompt with its chat template, on average; answers are planned at full length, so that the sum bounds from above."""
TOKEN_BYTES = 8
"""A token in a generations shard: its id in JSON, and its share of the text."""
TRAINING_BYTES = {"adamw": 16, "muon": 12}
"""Float32 weight, gradient and moments per trainable parameter."""


@dataclass(frozen=True)
class Room:
    """Disk that a build takes at `path` (relative to the repository) and what is free there."""

    path: str
    purpose: str
    needed: int
    free: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything `draftyard plan` says. Bytes and tokens bound from above; seconds are estimates, None where nothing was measured."""

    verifier: VerifierSource
    geometry: DraftGeometry
    parameters: ParameterCounts
    tensors: dict[str, TensorSpec]
    prompts: int | None
    tokens: dict[str, int]
    bytes_per_token: int
    storage: dict[str, int]
    rooms: tuple[Room, ...]
    memory: dict[str, int]
    seconds: dict[str, float] | None
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The object of `--json`."""
        midlayer = expected_tensors(self.geometry, embed_tokens=False)
        return {
            "geometry": self.geometry.to_json(),
            "verifier": {
                "geometry": self.verifier.geometry.to_json(),
                "origin": self.verifier.origin,
                "num_parameters": self.verifier.num_parameters,
                "num_bytes": self.verifier.num_bytes,
            },
            "parameters": dict(self.parameters.__dict__),
            "layouts": {
                "speculators": {"tensors": len(self.tensors), "weights": count_weights(self.tensors)},
                "midlayer": {"tensors": len(midlayer), "weights": count_weights(midlayer), "names": [to_layout(name, "midlayer") for name in midlayer]},
            },
            "tensors": {name: {"dtype": spec.dtype, "shape": list(spec.shape)} for name, spec in self.tensors.items()},
            "tokens": {"prompts": self.prompts, **self.tokens},
            "storage": {**self.storage, "bytes_per_token": self.bytes_per_token, "paths": [dict(room.__dict__) for room in self.rooms]},
            "memory": self.memory,
            "seconds": self.seconds,
            "warnings": list(self.warnings),
        }


def plan(params: Params, root: Path, params_file: Path, verifier_config: Path | None = None) -> Plan:
    """Plan the build of `params` in the repository `root`. Raises ParamError for a geometry that cannot be built, ArtifactError without a verifier."""
    verifier = find_verifier(params, root, params_file, verifier_config)
    v = verifier.geometry
    ids = resolve_aux_layer_ids(params.hidden_states.aux_layer_ids, v.num_hidden_layers)
    geometry = resolve(params.draft, v, ids)
    counts = parameter_counts(geometry, trainable_lm_head=params.train.trainable_lm_head)
    tensors = expected_tensors(geometry)
    prompts = count_prompts(params, root)
    tokens = _expected_tokens(params, prompts or 0)
    per_token = hidden_states_bytes_per_token(v.hidden_size, len(ids), params.hidden_states.dtype)
    storage = {
        "hidden_states_bytes": tokens["total"] * per_token,
        "generations_bytes": tokens["total"] * TOKEN_BYTES,
        "checkpoint_bytes": sum(spec.num_bytes for spec in tensors.values()),
        "training_state_bytes": counts.trainable * TRAINING_BYTES[params.train.optimizer],
        "verifier_bytes": verifier.num_bytes,
    }
    shard = params.hidden_states.shard_mib << 20
    memory = {
        "training_bytes": _training_bytes(params, counts, _sharers(root)) + shard,
        "extraction_bytes": verifier.num_parameters * 4 + shard,
        "available_bytes": available_memory(),
    }
    rooms = _rooms(root, storage, params)
    gpus = nvidia_gpus()
    seconds = None if gpus or prompts is None or not verifier.dense else estimate_seconds(params, verifier.num_parameters, counts, tokens)
    warnings = tuple(_warnings(params, verifier, geometry, prompts, rooms, memory, root, bool(gpus)))
    return Plan(
        verifier=verifier,
        geometry=geometry,
        parameters=counts,
        tensors=tensors,
        prompts=prompts,
        tokens=tokens,
        bytes_per_token=per_token,
        storage=storage,
        rooms=rooms,
        memory=memory,
        seconds=seconds,
        warnings=warnings,
    )


def count_prompts(params: Params, root: Path) -> int | None:
    """Turns that the verifier will answer (train and holdout): lines of the local sources, cut by max_prompts. None when nothing bounds them."""
    p = params.prompts
    known = all(source["kind"] != "hf" for source in p.sources)
    files = [file for source in p.sources if source["kind"] != "hf" for file in _source_files(root / str(source["path"]))]
    available = sum(_count_turns(file) for file in files)
    if known and files:
        return available if p.max_prompts is None else min(available, p.max_prompts)
    return p.max_prompts


def _source_files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.jsonl")) if path.is_dir() else [path] if path.is_file() else []


def _count_turns(path: Path) -> int:
    """Lines of a jsonl file; a row of several turns counts as many."""
    total = 0
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line) if len(line) < MAX_JSON_BYTES and b'"turns"' in line else {}
            except ValueError:
                row = {}
            turns = row.get("turns") if isinstance(row, dict) else None
            total += len(turns) if isinstance(turns, list) else bool(line.strip())
    return total


def _expected_tokens(params: Params, prompts: int) -> dict[str, int]:
    """Tokens in train and holdout, every answer at full length, no conversation beyond max_model_len."""
    g = params.generate
    holdout = min(params.prompts.holdout_prompts, prompts)
    train = (prompts - holdout) * g.samples_per_prompt * min(PROMPT_TOKENS + g.max_new_tokens, g.max_model_len)
    held_out = holdout * min(PROMPT_TOKENS + g.holdout_max_new_tokens, g.max_model_len)
    return {"train": train, "holdout": held_out, "total": train + held_out}


def estimate_seconds(params: Params, num_parameters: int, counts: ParameterCounts, tokens: dict[str, int]) -> dict[str, float]:
    """Seconds per stage on this machine's CPU, scaled from the default build on 2 cores with AVX2 (SmolLM2-135M, 134.5M parameters, a
    draft of 8.9M trainable parameters), in planned tokens: 200 a second generated, 300 extracted, 405 trained, 9 served one at a time.
    """
    cores = len(os.sched_getaffinity(0)) / 2
    verifier = num_parameters / 134.5e6 / cores
    draft = counts.trainable / 8.9e6 / cores
    held_out = min(params.prompts.holdout_prompts, params.verify.served_prompts or params.prompts.holdout_prompts)
    served = held_out * params.generate.holdout_max_new_tokens
    timed = 2 * params.verify.speed_prompts * params.verify.speed_repeats * params.generate.holdout_max_new_tokens
    seconds = {
        "generate": tokens["total"] / 200 * verifier,
        "hidden_states": tokens["total"] / 300 * verifier,
        "train": params.train.epochs * tokens["train"] / 405 * draft * params.train.ttt_steps / 3,
        "verify": (2 * served / 100 + timed / 9) * verifier,
    }
    return {**seconds, "total": sum(seconds.values())}


def _training_bytes(params: Params, counts: ParameterCounts, sharers: int) -> int:
    """Of one process: weights, gradients and moments in float32, and what the weights are pulled back to; `sharers` processes hold a share each."""
    per_weight = TRAINING_BYTES[params.train.optimizer] + (4 if params.train.initial_weight_decay > 0 else 0)
    return (counts.trainable * per_weight + (counts.total - counts.trainable) * 4) // sharers


def _sharers(root: Path) -> int:
    """Processes that share the draft between them, by runtime.yaml."""
    from draftyard.runtime import load_runtime

    if not (root / "runtime.yaml").is_file():
        return 1
    train = load_runtime(root).train
    return train.num_processes if train.sharding == "fsdp" else 1


def _rooms(root: Path, storage: dict[str, int], params: Params) -> tuple[Room, ...]:
    """Where the bytes go: finished outputs (linked into DVC's cache on the same file system), the resume area, and a feature store that is a directory."""
    from draftyard.runtime import work_dir

    stored = params.hidden_states.storage == "store"
    states = storage["hidden_states_bytes"]
    outputs = (0 if stored else states) + storage["generations_bytes"] + storage["checkpoint_bytes"]
    work = work_dir(root)
    same = _device(work) == _device(root)
    passing = min(states, SHARDS_IN_FLIGHT * params.hidden_states.shard_mib << 20) if stored else 0 if same else states
    in_work = storage["verifier_bytes"] + storage["training_state_bytes"] + passing
    shown = os.path.relpath(work, root) if same else str(work)
    rooms = (Room(".", "outputs and DVC cache", outputs, free_bytes(root)), Room(shown, "resume area", in_work, free_bytes(work)))
    return (*rooms, *_store_room(root, states)) if stored else rooms


def _store_room(root: Path, states: int) -> Iterator[Room]:
    """The feature store, where runtime.yaml is there and names a directory: what is free behind a URL is not known here."""
    from draftyard.runtime import load_runtime, repository

    url = load_runtime(root).store.url if (root / "runtime.yaml").is_file() else None
    if url is not None and "://" not in url:
        yield Room(url, "feature store", states, free_bytes(repository(root) / url))


def _device(path: Path) -> int:
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    return existing.stat().st_dev


def _warnings(
    params: Params, verifier: VerifierSource, g: DraftGeometry, prompts: int | None, rooms: tuple[Room, ...], memory: dict[str, int], root: Path, gpu: bool
) -> Iterator[str]:
    v = verifier.geometry
    if g.num_attention_heads * g.head_dim != g.hidden_size:
        derived = f"{g.hidden_size / g.num_attention_heads:g}"
        yield (
            f"draft.head_dim={g.head_dim}: {g.num_attention_heads} heads x {g.head_dim} = {g.num_attention_heads * g.head_dim} "
            f"is not hidden_size {g.hidden_size} (hidden_size / heads = {derived}); "
            "legal and written into the config, but tools that derive head_dim will not load it"
        )
    if g.max_position_embeddings < v.max_position_embeddings:
        stated = f"draft.max_position_embeddings={g.max_position_embeddings}"
        yield f"{stated}: the verifier serves {v.max_position_embeddings}; acceptance falls beyond the draft's positions"
    if not g.full_vocabulary and not (root / "models/vocab/vocab.json").is_file():
        yield (
            f"draft.vocab_size={g.draft_vocab_size}: how much of the verifier's text these tokens cover is unknown until the vocab stage has counted them "
            f"(gate.min_holdout_coverage={params.gate.min_holdout_coverage})"
        )
    if not gpu and not has_bf16_hardware():
        slow = [key for key, value in (("hidden_states.dtype", params.hidden_states.dtype), ("draft.dtype", g.dtype)) if value == "bfloat16"]
        if slow:
            yield f"{', '.join(slow)}=bfloat16: this CPU has no bfloat16 units; stages compute in float32 and store bfloat16"
        if params.train.optimizer == "muon":
            yield "train.optimizer=muon: its iterations run in bfloat16, which this CPU emulates at a small fraction of AdamW's speed; use adamw here"
    if verifier.mla and not gpu:
        name = f"verifier.name={params.verifier.name}"
        yield f"{name}: multi-head latent attention cannot be served with a draft on a CPU by vLLM 0.32; simulation works, serving needs a GPU"
    if not verifier.dense and not gpu:
        yield f"verifier.name={params.verifier.name}: the times of this plan are measured on dense verifiers; they are left out for a mixture of experts"
    if prompts is None:
        yield "prompts.max_prompts=null: nothing bounds the number of prompts of a hub data set; tokens and bytes are left out of this plan"
    elif prompts == 0:
        yield "prompts.sources: no prompt is there yet; tokens and bytes are planned as 0"
    elif prompts < 2 * params.prompts.holdout_prompts:
        held_out = min(params.prompts.holdout_prompts, prompts)
        yield f"prompts.holdout_prompts={params.prompts.holdout_prompts}: that is most of the {prompts} prompts; {prompts - held_out} are left to train on"
    if params.train.max_sample_tokens < params.generate.max_model_len:
        yield f"train.max_sample_tokens={params.train.max_sample_tokens}: longer samples (up to generate.max_model_len={params.generate.max_model_len}) are cut"
    for room in rooms:
        if room.needed * 1.05 > room.free:
            sizes = f"{room.purpose} need {human_bytes(room.needed)}, {human_bytes(room.free)} are free"
            yield f"{room.path}: {sizes}; lower prompts.max_prompts or generate.max_new_tokens, or use another disk"
    if memory["training_bytes"] > memory["available_bytes"] and not gpu:
        yield f"training needs {human_bytes(memory['training_bytes'])} of memory, {human_bytes(memory['available_bytes'])} are available here"
