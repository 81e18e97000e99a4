"""What the build's own bookkeeping costs on a large data set: prompts -> generations -> hidden_states -> vocab with engines that compute nothing.

    python benchmarks/load.py [--samples 20000 200000] [--json FILE]

For each size a fresh git and DVC repository with a tiny verifier (hidden size 8) and that many distinct prompts of one short line.
The real stage scripts run in it, each in a process of its own; only the two vLLM engines are replaced, by ones that answer at once
with 12 made-up tokens and with random states. Prints, per size and stage, CPU seconds (imports aside, which other work on the
machine does not distort as it does wall time) and the peak of resident memory; then the bytes of index and lineage, and the
seconds of `dvc status` with nothing changed (the best of three).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("verifier", "prompts", "generate", "hidden_states", "vocab")
HIDDEN_SIZE = 8
ANSWER_TOKENS = 12
HOLDOUT = 200
VOCABULARY = 3000
WORDS = 9


def write_prompts_source(path: Path, count: int) -> None:
    """`count` lines of WORDS made-up words each, a function of the line's number."""
    chooser = random.Random(0)
    words = ["".join(chooser.choices("aeiou" * 2 + "bcdfghjklmnpqrstvwxyz", k=chooser.randint(3, 9))) for _ in range(VOCABULARY)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            line = random.Random(number)
            file.write(json.dumps({"id": f"load-{number}", "prompt": " ".join(line.choices(words, k=WORDS)) + "?"}) + "\n")


def make_repository(root: Path, samples: int) -> None:
    """A repository of this work tree for `samples` synthetic samples."""
    sys.path[:0] = [str(ROOT)]
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.pipeline.tiny_repo import VERIFIER, commit, run, write_params, write_runtime
    from tests.pipeline.tiny_repo import make_repository as make_tiny

    make_tiny(root)
    config = LlamaConfig(
        vocab_size=512, hidden_size=HIDDEN_SIZE, intermediate_size=16, num_hidden_layers=8, num_attention_heads=1, num_key_value_heads=1, head_dim=8,
        max_position_embeddings=1024, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(root / VERIFIER)
    write_prompts_source(root / "data/sources/load/load.jsonl", samples)
    write_params(
        root,
        prompts={
            "sources": [{"kind": "jsonl", "path": "data/sources/load/load.jsonl"}],
            "max_prompts": None,
            "category_weights": {},
            "holdout_prompts": HOLDOUT,
        },
        hidden_states={"dtype": "bfloat16", "shard_mib": 8},  # tokens per shard as 1 GiB holds of a verifier with hidden size 1024
    )
    write_runtime(root, samples_per_shard=512)
    commit(root, "load")
    run(root, "git", "gc", "-q", check=False)


class InstantEngine:
    """Answers every request at once, with ids that are a function of the request's id."""

    def __init__(self, *_: Any) -> None:
        self._waiting: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add(self, request: Any) -> None:
        """See engines/requests.py."""
        self._waiting.append(request)

    def finished(self, on_step: Callable[[int], None] | None = None) -> Iterator[Any]:
        """See engines/requests.py."""
        from draftyard.engines.requests import Finished

        while self._waiting:
            request = self._waiting.pop()
            digest = hashlib.sha256(request.id.encode()).digest()
            if on_step is not None:
                on_step(ANSWER_TOKENS)
            yield Finished(id=request.id, token_ids=[40 + byte for byte in digest[:ANSWER_TOKENS]], finish_reason="length")

    def canary(self, *_: Any) -> dict[str, Any]:
        """Figures of no meaning."""
        return {"samples": 0, "positions": 0, "agreement": 1.0, "mean_rank": 0.0, "reference_max_difference": None}

    def capture_shard(self, generations: list[Any], path: Path, dtype: str, on_tokens: Callable[[int], None]) -> dict[str, Any]:
        """A shard of random states."""
        import torch

        from draftyard.artifacts.hidden_states import Sample, write_shard

        samples = []
        for generation in generations:
            count = len(generation.token_ids)
            states = torch.randn(count, 4 * HIDDEN_SIZE)
            ids, mask = torch.tensor(generation.token_ids), torch.ones(count, dtype=torch.bool)
            facts: dict[str, Any] = {"id": generation.id, "category": generation.category, "sample": generation.sample}
            samples.append(Sample(**facts, aux=states[:, HIDDEN_SIZE:], last=states[:, :HIDDEN_SIZE], token_ids=ids, loss_mask=mask))
            on_tokens(count)
        return write_shard(path, samples, dtype)


def load_stage(root: Path, stage: str) -> ModuleType:
    """The stage script as a module."""
    spec = importlib.util.spec_from_file_location(f"stage_{stage}", root / "stages" / f"{stage}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_in_child(stage: str) -> None:
    """Run a stage of the repository in the current directory, its engine replaced. Prints wall and CPU seconds, peak memory (KiB)."""
    if stage in ("generate", "hidden_states"):  # before the script imports them
        from draftyard.engines import answering, capturing

        answering.AnsweringEngine = InstantEngine  # type: ignore[misc, assignment]
        capturing.CapturingEngine = InstantEngine  # type: ignore[misc, assignment]
    from draftyard.stage import run_stage

    module: Any = load_stage(Path.cwd(), stage)
    started, cpu_started = time.perf_counter(), time.process_time()
    run_stage(stage, module.main)
    print(json.dumps({"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu_started, "peak_kib": peak_kib()}))


def peak_kib() -> int:
    """Peak resident memory of this process, KiB. Not ru_maxrss: a child has that of its parent before exec."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))


def measure(root: Path, samples: int) -> dict[str, Any]:
    """Build, and collect the figures of one size."""
    make_repository(root, samples)
    from tests.pipeline.tiny_repo import environment, run

    result: dict[str, Any] = {"samples": samples, "stages": {}}
    for stage in STAGES:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), "--stage", stage], cwd=root, env=environment(root), stdout=subprocess.PIPE, text=True, check=True
        )
        result["stages"][stage] = json.loads(done.stdout.splitlines()[-1])
        print(f"{samples} {stage}: {result['stages'][stage]}", file=sys.stderr, flush=True)
    run(root, "dvc", "commit", "-q", "-f", *STAGES)
    result["dvc_status_seconds"] = []
    for _ in range(3):
        started = time.perf_counter()
        run(root, "dvc", "status", *STAGES)
        result["dvc_status_seconds"].append(time.perf_counter() - started)
    data = root / "data"
    result["bytes"] = {
        "prompts": sum(path.stat().st_size for path in (data / "prompts").glob("*.jsonl")),
        "generations": sum(path.stat().st_size for path in (data / "generations").glob("*.jsonl")),
        "hidden_states": sum(path.stat().st_size for path in (data / "hidden_states").glob("*.safetensors")),
        "index": (data / "hidden_states/index.json").stat().st_size,
        "lineage": sum(path.stat().st_size for path in root.glob("*/*/lineage.json")),
    }
    result["files"] = sum(1 for directory in ("generations", "hidden_states") for _ in (data / directory).iterdir())
    return result


def show(results: list[dict[str, Any]]) -> None:
    """The tables."""
    print("| stage | samples | CPU seconds | CPU ms per sample | peak memory, MB |\n| --- | --- | --- | --- | --- |")
    for stage in STAGES[1:]:
        for result in results:
            figures = result["stages"][stage]
            cpu = figures["cpu_seconds"]
            print(f"| {stage} | {result['samples']:,} | {cpu:.0f} | {1000 * cpu / result['samples']:.2f} | {figures['peak_kib'] * 1024 / 1e6:.0f} |")
    print("\n| samples | index.json | lineage.json, all | generations | files | dvc status, s |\n| --- | --- | --- | --- | --- | --- |")
    for result in results:
        sizes = result["bytes"]
        mega = [f"{sizes[name] / 1e6:.2f} MB" for name in ("index", "lineage", "generations")]
        print(f"| {result['samples']:,} | {' | '.join(mega)} | {result['files']} | {min(result['dvc_status_seconds']):.1f} |")


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()), help="where the repositories are made, and removed again")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        run_in_child(arguments.stage)
        return
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    results = []
    for samples in arguments.samples:
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
            results.append(measure(Path(scratch) / "build", samples))
    show(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
