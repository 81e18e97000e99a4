"""Generation and extraction of this build against a bare vLLM script, on the same tokens, dtype and threads.

    python benchmarks/engine_speed.py [--prompts 64] [--pairs 3] [--only generation] [--json FILE]

Run in the repository after `dvc repro`. Each side has an engine of its own, up all the time; they work in turns (ours, bare,
ours, bare, ...), the other one idle, after one unmeasured round each. Ours is what the stages run: template, scheduling, checks
and a finished shard on the disk. The bare script gets the same prompts as token ids, calls `LLM.generate` with vLLM's own batch
sizes, and is left with the answers in memory, or with the raw files of the captured states read back. Starting an engine is in
neither side. The target is a median ratio of at least 0.9; the token ids of both sides are compared too.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from draftyard.artifacts.card import read_card
from draftyard.artifacts.generations import Generation, read_split, write_shard
from draftyard.artifacts.prompts import Prompt
from draftyard.artifacts.prompts import read_split as read_prompts
from draftyard.engines.environment import engine_environment
from draftyard.engines.tokenizer import load_tokenizer
from draftyard.engines.vllm_engine import resolve_engine_args
from draftyard.params.hidden_states import resolve_aux_layer_ids
from draftyard.params.load import load_file
from draftyard.runtime import load_runtime, work_dir
from draftyard.verifiers import materialise

TASKS = ("generation", "extraction")
SIDES = ("ours", "bare")


class Round:
    """One side's work, ready to run again and again. `run` returns the token ids that came out, per prompt."""

    def __init__(self, task: str, root: Path, scratch: Path, limit: int) -> None:
        self.root, self.scratch = root, scratch
        self.card = read_card(root / "models/verifier.json")
        self.params = load_file(root / "params.yaml")
        engine = load_runtime(root).engine
        # Both engines stay up: on a GPU each gets half of the memory.
        engine = dataclasses.replace(engine, gpu_memory_utilization=engine.gpu_memory_utilization / 2)
        self.runtime = dataclasses.replace(load_runtime(root), engine=engine)
        self.model_dir = materialise(self.card, work_dir(root))
        self.memory = {"gpu_memory_utilization": engine.gpu_memory_utilization}
        self.aux_ids = resolve_aux_layer_ids(self.params.hidden_states.aux_layer_ids, self.card.geometry.num_hidden_layers)
        single = [prompt for prompt in read_prompts(root / "data/prompts", "train") if len(prompt.turns) == 1][:limit]
        answers = {generation.id: generation for generation in read_split(root / "data/generations", "train") if generation.sample == 0}
        self.prompts: list[Prompt] = [prompt for prompt in single if prompt.id in answers]
        self.answers: list[Generation] = [answers[prompt.id] for prompt in self.prompts]
        self.engine_args = resolve_engine_args(self.card.engine_args)[0]
        self.max_model_len = self.params.generate.max_model_len if task == "generation" else max(len(answer.token_ids) for answer in self.answers) + 8
        self.config: dict[str, Any] = {
            "model": str(self.model_dir),
            "max_model_len": self.max_model_len,
            "engine_args": self.engine_args,
            "trust_remote_code": self.card.trust_remote_code,
        }

    def run(self) -> list[list[int]]:
        """Do the work once."""
        raise NotImplementedError


class OurGeneration(Round):
    """The stage's engine, answerer and shard."""

    def __init__(self, task: str, root: Path, scratch: Path, limit: int) -> None:
        super().__init__(task, root, scratch, limit)
        from draftyard.engines.answering import AnsweringEngine
        from draftyard.engines.generate import Answerer

        engine = AnsweringEngine(self.config, self.runtime, scratch / "engine.log")
        self.answerer = Answerer(engine, load_tokenizer(self.model_dir, self.card.trust_remote_code), self.params.generate)

    def run(self) -> list[list[int]]:
        """Template, answers, shard."""
        from draftyard.engines.generate import GenerateReport

        pairs = [(prompt, 0) for prompt in self.prompts]
        tokens = self.params.generate.max_new_tokens
        found = self.answerer.answer_shard(pairs, greedy=True, max_new_tokens=tokens, report=GenerateReport(), on_answers=lambda done, new: None)
        write_shard(self.scratch / "train-00000.jsonl", found)
        return [answer.turns[-1].output_token_ids for answer in found]


class BareGeneration(Round):
    """What a script of ten lines does."""

    def __init__(self, task: str, root: Path, scratch: Path, limit: int) -> None:
        super().__init__(task, root, scratch, limit)
        from vllm import LLM

        self.llm = LLM(str(self.model_dir), max_model_len=self.max_model_len, enforce_eager=True, **self.memory, **self.engine_args)

    def run(self) -> list[list[int]]:
        """Token ids in, answers out."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        self.llm.reset_prefix_cache()  # prefixes cached in an earlier round would answer for it
        prompts = [TokensPrompt(prompt_token_ids=answer.turns[-1].prompt_token_ids) for answer in self.answers]
        outputs = self.llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=self.params.generate.max_new_tokens), use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


class OurExtraction(Round):
    """The stage's engine, capture and shard."""

    def __init__(self, task: str, root: Path, scratch: Path, limit: int) -> None:
        super().__init__(task, root, scratch, limit)
        from draftyard.engines.capturing import CapturingEngine

        geometry = self.card.geometry
        layers = {"aux_layer_ids": self.aux_ids, "num_layers": geometry.num_hidden_layers, "hidden_size": geometry.hidden_size}
        self.engine = CapturingEngine({**self.config, "storage": str(scratch / "raw"), **layers}, self.runtime, scratch / "engine.log")

    def run(self) -> list[list[int]]:
        """States, checks, shard; what it holds is what was asked for, or the engine fails."""
        path = self.scratch / "train-00000.safetensors"
        entry = self.engine.capture_shard(self.answers, path, self.params.hidden_states.dtype, lambda tokens: None)
        assert entry["ids"] == [answer.id for answer in self.answers]
        return [answer.token_ids for answer in self.answers]


class BareExtraction(Round):
    """vLLM's own way of extracting, with the connector that also runs on a CPU."""

    def __init__(self, task: str, root: Path, scratch: Path, limit: int) -> None:
        super().__init__(task, root, scratch, limit)
        from vllm import LLM

        name, module = "HiddenStatesConnector", "draftyard.engines.connector"
        layers = {"eagle_aux_hidden_state_layer_ids": [*self.aux_ids, self.card.geometry.num_hidden_layers]}
        self.llm = LLM(
            str(self.model_dir),
            max_model_len=self.max_model_len,
            enforce_eager=True,
            enable_prefix_caching=False,
            **self.memory,
            speculative_config={"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": {"hf_config": layers}},
            kv_transfer_config={
                "kv_connector": name,
                "kv_connector_module_path": module,
                "kv_role": "kv_producer",
                "kv_connector_extra_config": {"shared_storage_path": str(scratch / "raw")},
            },
            **self.engine_args,
        )

    def run(self) -> list[list[int]]:
        """Token ids in; then every file is waited for, read and removed."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        from draftyard.engines.connector import take_hidden_states

        prompts = [TokensPrompt(prompt_token_ids=answer.token_ids) for answer in self.answers]
        outputs = self.llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=1, detokenize=False), use_tqdm=False)
        found = []
        for output in outputs:
            while (captured := take_hidden_states(output.kv_transfer_params["hidden_states_path"])) is None:
                self.llm.llm_engine.engine_core.get_output()  # the last request's file is written in the step after it
            found.append(captured[1].tolist())
        return found


ROUNDS = {
    ("generation", "ours"): OurGeneration,
    ("generation", "bare"): BareGeneration,
    ("extraction", "ours"): OurExtraction,
    ("extraction", "bare"): BareExtraction,
}


def work(task: str, side: str, limit: int, reply_fd: int) -> None:
    """The child: start, say so, then one round per line on standard input."""
    with os.fdopen(reply_fd, "w", encoding="utf-8") as replies, tempfile.TemporaryDirectory() as scratch:
        worker = ROUNDS[task, side](task, Path.cwd(), Path(scratch), limit)
        print(json.dumps({"ready": True}), file=replies, flush=True)
        for _ in sys.stdin:
            started = time.perf_counter()
            token_ids = worker.run()
            print(json.dumps({"seconds": time.perf_counter() - started, "token_ids": token_ids}), file=replies, flush=True)


class Side:
    """The parent's end of one child."""

    def __init__(self, task: str, side: str, limit: int) -> None:
        runtime, work_area = load_runtime(Path.cwd()), work_dir(Path.cwd())
        log = work_area / "logs" / f"benchmark-{task}-{side}.log"
        read_fd, write_fd = os.pipe()
        # Ours gives its engine's process this environment by itself.
        environment = engine_environment(runtime, log.with_suffix(".engine.log")) if side == "bare" else None
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as output:
            self.child = subprocess.Popen(
                [sys.executable, __file__, "--child", task, side, str(write_fd), "--prompts", str(limit)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(write_fd,),
                env=environment,
                text=True,
            )
        os.close(write_fd)
        self.log, self.replies = log, os.fdopen(read_fd, encoding="utf-8")

    def receive(self) -> dict[str, Any]:
        """The next reply. Raises SystemExit with the log's name when the child is gone."""
        line = self.replies.readline()
        if not line:
            raise SystemExit(f"a side died, see {self.log}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def round(self) -> dict[str, Any]:
        """One round: seconds and token ids."""
        assert self.child.stdin is not None
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        return self.receive()

    def close(self) -> None:
        """End the child."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait()


@contextlib.contextmanager
def both_sides(task: str, limit: int) -> Iterator[list[Side]]:
    """Both children with their engines up, started one after the other."""
    sides: list[Side] = []
    try:
        for name in SIDES:
            sides.append(Side(task, name, limit))
            sides[-1].receive()
        yield sides
    finally:
        for side in sides:
            side.close()


def measure(task: str, limit: int, pairs: int) -> dict[str, Any]:
    """Interleaved rounds of one task."""
    with both_sides(task, limit) as sides:
        first = [side.round()["token_ids"] for side in sides]
        rates: dict[str, list[float]] = {name: [] for name in SIDES}
        for _ in range(pairs):
            for name, side in zip(SIDES, sides, strict=True):
                result = side.round()
                rates[name].append(sum(map(len, result["token_ids"])) / result["seconds"])
    ratios = [ours / bare for ours, bare in zip(rates["ours"], rates["bare"], strict=True)]
    return {
        "task": task,
        "prompts": len(first[0]),
        "tokens": sum(map(len, first[0])),
        "equal_token_ids": sum(a == b for a, b in zip(*first, strict=True)),
        "ours_tokens_per_s": [round(rate, 1) for rate in rates["ours"]],
        "bare_tokens_per_s": [round(rate, 1) for rate in rates["bare"]],
        "ratio_median": round(median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
    }


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", choices=TASKS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        task, side, reply_fd = arguments.child
        work(task, side, arguments.prompts, int(reply_fd))
        return
    results = []
    print("| task | tokens | ours, tokens/s | bare vLLM, tokens/s | ratio (min - max) | equal token ids |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    for task in TASKS if arguments.only is None else (arguments.only,):
        result = measure(task, arguments.prompts, arguments.pairs)
        ours, bare = median(result["ours_tokens_per_s"]), median(result["bare_tokens_per_s"])
        spread = f"{result['ratio_median']:.2f} ({result['ratio_min']:.2f} - {result['ratio_max']:.2f})"
        print(f"| {task} | {result['tokens']} | {ours:.0f} | {bare:.0f} | {spread} | {result['equal_token_ids']} of {result['prompts']} |", flush=True)
        results.append(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
