"""The build that params.yaml describes, against this machine: disk, memory, and what cannot be done here."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from draftyard.disk import human_bytes
from draftyard.doctor.check import Check
from draftyard.errors import DraftyardError
from draftyard.hardware import available_memory, has_bf16_hardware
from draftyard.planning import Plan

GIB = 1 << 30
RESERVE_BYTES = 2 * GIB
"""Left free beside what the plan needs: git, .venv, logs, other programs."""
DISK_GIB = {"warn": 10, "fail": 3}
MEMORY_GIB = {"warn": 8, "fail": 4}
"""Where no plan can be made: the default build (135M verifier). Below `fail` it cannot finish, below `warn` it may not."""
DISK_REMEDY = "free up space, lower prompts.max_prompts, or put the repository and DRAFTYARD_WORK_DIR on a larger disk"
MEMORY_REMEDY = "close other programs; lower engine.kv_cache_gib or train.micro_batch_tokens in runtime.yaml"


@dataclass(frozen=True)
class Build:
    """The plan of params.yaml, or the sentence that says why there is none; memory that the engines take, bytes."""

    plan: Plan | None
    problem: str = ""
    engine_bytes: int = 0
    optimizer: str = ""


def load_build(root: Path) -> Build:
    """Plan the build of the repository `root`. Never raises for a user's mistake: `problem` holds it."""
    from draftyard.params.load import load_file
    from draftyard.planning import plan
    from draftyard.runtime import load_runtime

    try:
        params = load_file(root / "params.yaml")
        made = plan(params, root, root / "params.yaml")
        kv_cache = load_runtime(root).engine.kv_cache_gib * GIB
    except (DraftyardError, OSError) as error:
        return Build(None, str(error))
    # Extraction holds the verifier once, `verify` twice: one engine plain, one with the draft.
    return Build(made, "", 2 * (made.memory["extraction_bytes"] + kv_cache), params.train.optimizer)


def check_params(build: Build) -> Check:
    """params.yaml and runtime.yaml are valid, and the draft can be built for its verifier."""
    if build.plan is None:
        return Check(id="params", status="fail", detail=build.problem, remedy="mend that key; draftyard plan checks them all (docs/parameters.md)")
    if build.plan.warnings:
        return Check(id="params", status="ok", detail=f"valid; draftyard plan has {len(build.plan.warnings)} remarks")
    return Check(id="params", status="ok", detail="valid")


def check_disk(build: Build, root: Path) -> list[Check]:
    """Each place that the build fills has room for it."""
    if build.plan is None:
        return [check_space("disk", shutil.disk_usage(root).free, DISK_GIB, DISK_REMEDY)]
    return [_fits(f"disk {room.path}", room.purpose, room.needed, room.free, DISK_REMEDY) for room in build.plan.rooms]


def check_memory(build: Build, device: str) -> Check:
    """The larger of training and the two engines of `verify` fits into memory; on a GPU the engines have the device's."""
    if build.plan is None:
        return check_space("memory", available_memory(), MEMORY_GIB, MEMORY_REMEDY)
    training = build.plan.memory["training_bytes"]
    needed = training if device == "cuda" else max(training, build.engine_bytes)
    what = "training" if needed == training else "the two engines of verify"
    return _fits("memory", what, needed, build.plan.memory["available_bytes"], MEMORY_REMEDY)


def _fits(name: str, what: str, needed: int, free: int, remedy: str) -> Check:
    detail = f"{human_bytes(free)} free; {what}: {human_bytes(needed)} by the plan"
    if needed * 1.05 > free:
        return Check(id=name, status="fail", detail=detail, remedy=remedy)
    if needed + RESERVE_BYTES > free:
        return Check(id=name, status="warn", detail=f"{detail}, which leaves little", remedy=remedy)
    return Check(id=name, status="ok", detail=detail)


def check_space(name: str, free: int, limits_gib: dict[str, int], remedy: str) -> Check:
    """`free` bytes are enough for the default build."""
    detail = f"{free / GIB:.1f} GiB free"
    if free < limits_gib["fail"] * GIB:
        return Check(id=name, status="fail", detail=f"{detail}; the default build needs {limits_gib['fail']} GiB", remedy=remedy)
    if free < limits_gib["warn"] * GIB:
        return Check(id=name, status="warn", detail=f"{detail}; {limits_gib['warn']} GiB are comfortable for the default build", remedy=remedy)
    return Check(id=name, status="ok", detail=detail)


def check_limits(build: Build, device: str) -> list[Check]:
    """What cannot be done on this machine, known before a build finds out. What this build does not ask for is told, and no warning."""
    if device == "cuda":
        return [Check(id="limits", status="ok", detail="none known for this machine")]
    return [_mla(build), *([_muon(build)] if not has_bf16_hardware() else [])]


def _mla(build: Build) -> Check:
    limit = "a verifier with MLA attention (DeepSeek, Kimi-K2) cannot be served with a draft on a CPU"
    if build.plan is not None and not build.plan.verifier.mla:
        return Check(id="limit: MLA", status="ok", detail=f"{limit}; the verifier of params.yaml is none")
    return Check(
        id="limit: MLA",
        status="warn",
        detail=f"{limit}: the serving part of verify is skipped for it",
        remedy="generation to simulation work here; serve such a verifier on a GPU, or set gate.require_serving: false",
    )


def _muon(build: Build) -> Check:
    limit = "Muon iterates in bfloat16, which this CPU emulates at a small fraction of AdamW's speed"
    if build.optimizer == "muon":
        return Check(id="limit: Muon", status="warn", detail=limit, remedy="train.optimizer: adamw")
    return Check(id="limit: Muon", status="ok", detail=f"{limit}; params.yaml does not ask for it")
