"""Acceptance of the built draft on question sets that nobody trained on, simulated and served.

    python benchmarks/acceptance.py QUESTIONS.jsonl [...] [--questions 24] [--max-new-tokens 96] [--simulate-only] [--json FILE]

Each file holds one JSON object a line whose "turns"[0] is the question (MT-Bench's format). Run in the repository after
`dvc repro`; answers and states go to a temporary directory. Prints a table, a row per file and their mean (each file counts
the same): acceptance length simulated on the verifier's greedy answers, served by vLLM with verify.num_speculative_tokens draft
tokens, and the gap, simulated over served less 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftyard.artifacts.card import VerifierCard, read_card
from draftyard.artifacts.generations import Generation
from draftyard.artifacts.hidden_states import HiddenStates, write_index
from draftyard.artifacts.prompts import Prompt
from draftyard.engines.answering import AnsweringEngine
from draftyard.engines.capturing import CapturingEngine
from draftyard.engines.generate import Answerer, GenerateReport
from draftyard.engines.tokenizer import load_tokenizer
from draftyard.engines.vllm_engine import resolve_engine_args
from draftyard.params.load import Params, load_file
from draftyard.runtime import Runtime, load_runtime, work_dir
from draftyard.verification.run_serving import run_serving, servers
from draftyard.verifiers import materialise

MAX_MODEL_LEN = 2048


def read_questions(path: Path, limit: int) -> list[Prompt]:
    """The first `limit` questions of a file, its stem as their category."""
    lines = path.read_text(encoding="utf-8").splitlines()[:limit]
    return [Prompt(id=f"{path.stem}-{i}", category=path.stem, system=None, turns=(json.loads(line)["turns"][0],)) for i, line in enumerate(lines)]


@dataclass(frozen=True)
class Build:
    """The finished build that is measured."""

    card: VerifierCard
    model_dir: Path
    params: Params
    runtime: Runtime
    logs: Path
    draft: Path

    def engine_config(self) -> dict[str, Any]:
        """What every engine of the verifier is told."""
        return {
            "model": str(self.model_dir),
            "engine_args": resolve_engine_args(self.card.engine_args)[0],
            "trust_remote_code": self.card.trust_remote_code,
        }


def answer(build: Build, questions: list[Prompt], max_new_tokens: int) -> list[Generation]:
    """The verifier's greedy answers. Raises SystemExit when one is missing: a mean over fewer questions would not be comparable."""
    config = {**build.engine_config(), "max_model_len": MAX_MODEL_LEN}
    tokenizer = load_tokenizer(build.model_dir, build.card.trust_remote_code)
    report = GenerateReport()
    pairs = [(question, 0) for question in questions]
    with AnsweringEngine(config, build.runtime, build.logs / "acceptance-answers.log") as engine:
        answerer = Answerer(engine, tokenizer, build.params.generate)
        answers = answerer.answer_shard(pairs, greedy=True, max_new_tokens=max_new_tokens, report=report, on_answers=lambda done, tokens: None)
    if report.skipped:
        raise SystemExit(f"not every question was answered: {report.skipped}")
    return answers


def simulate(build: Build, answers: list[Generation]) -> dict[str, Any]:
    """Capture the answers' states and simulate drafting over them."""
    from draftyard.verification.draft_reader import load_draft
    from draftyard.verification.run_simulation import run_simulation

    index = json.loads(Path("data/hidden_states/index.json").read_text(encoding="utf-8"))
    geometry = build.card.geometry
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        config = {
            **build.engine_config(),
            "max_model_len": max(len(answer.token_ids) for answer in answers) + 8,
            "storage": str(directory / "raw"),
            "aux_layer_ids": index["aux_layer_ids"],
            "num_layers": geometry.num_hidden_layers,
            "hidden_size": geometry.hidden_size,
        }
        with CapturingEngine(config, build.runtime, build.logs / "acceptance-states.log") as engine:
            entry = engine.capture_shard(answers, directory / "holdout-00000.safetensors", index["dtype"], lambda tokens: None)
        splits: dict[str, list[dict[str, Any]]] = {"holdout": [entry], "train": []}
        write_index(directory, aux_layer_ids=index["aux_layer_ids"], hidden_size=geometry.hidden_size, dtype=index["dtype"], splits=splits)
        names = {(answer.id, 0) for answer in answers}
        return run_simulation(load_draft(build.draft), HiddenStates(directory), names, build.card.num_parameters, build.params.verify, build.runtime)


def show(result: dict[str, Any]) -> None:
    """The table."""
    print("| questions | simulated | served | gap |\n| --- | --- | --- | --- |")
    for name in [*result["simulated"], "mean"]:
        simulated = result["mean_simulated"] if name == "mean" else result["simulated"][name]
        served = result["mean_served"] if name == "mean" else result["served"].get(name)
        shown, gap = ("not measured", "") if served is None else (f"{served:.4f}", f"{simulated / served - 1:+.2%}")
        print(f"| {name} | {simulated:.4f} | {shown} | {gap} |")


def main() -> None:
    """Answer, capture, simulate, serve, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--questions", type=int, default=24, help="of each file, from its start")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--simulate-only", action="store_true", help="no serving: a third of the time")
    parser.add_argument("--draft", type=Path, default=Path("models/draft"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    root = Path.cwd()
    runtime, work = load_runtime(root), work_dir(root)
    card = read_card(root / "models/verifier.json")
    model_dir = materialise(card, work)
    build = Build(card, model_dir, load_file(root / "params.yaml"), runtime, work / "logs", arguments.draft)
    questions = [q for path in arguments.files for q in read_questions(path, arguments.questions)]
    answers = answer(build, questions, arguments.max_new_tokens)
    simulated = simulate(build, answers)
    served: dict[str, Any] = {}
    if not arguments.simulate_only:
        untimed = dataclasses.replace(build.params.verify, speed_prompts=1, speed_repeats=1)
        with servers(build.draft, model_dir, card, untimed, runtime, build.logs, max_model_len=MAX_MODEL_LEN) as pair:
            served = run_serving(pair, model_dir, card, answers, untimed, max_tokens=arguments.max_new_tokens)
        if served["status"] != "measured":
            print(f"not served: {served['reason']}")
    result: dict[str, Any] = {
        "questions": len(answers),
        "max_new_tokens": arguments.max_new_tokens,
        "k": build.params.verify.num_speculative_tokens,
        "simulated": {name: part["acceptance_length"] for name, part in simulated["categories"].items()},
        "served": {name: part["acceptance_length"] for name, part in served.get("categories", {}).items()},
        "equal_outputs": [served["equality"]["equal"], served["equality"]["prompts"]] if "equality" in served else None,
    }
    for side in ("simulated", "served"):
        result[f"mean_{side}"] = sum(result[side].values()) / len(result[side]) if result[side] else None
    show(result)
    if result["equal_outputs"]:
        print("{} of {} outputs unchanged by the draft".format(*result["equal_outputs"]))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
