"""Acceptance of the built draft on question sets that nobody trained on, simulated and served.

    python benchmarks/acceptance.py QUESTIONS.jsonl [...] [--questions 24] [--max-new-tokens 96] [--simulate-only]

Each file holds one JSON object a line whose "turns"[0] is the question (MT-Bench's format). Run in the repository after
`dvc repro`; answers and states go to a temporary directory. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from draftyard.artifacts.card import read_card
from draftyard.artifacts.hidden_states import HiddenStates, write_index
from draftyard.artifacts.prompts import Prompt
from draftyard.engines.environment import enter_engine_environment
from draftyard.engines.extract import extract_split
from draftyard.engines.generate import Answerer, GenerateReport
from draftyard.engines.tokenizer import load_tokenizer
from draftyard.engines.vllm_engine import resolve_engine_args, start_engine, start_extraction_engine
from draftyard.params.load import load_file
from draftyard.runtime import load_runtime, work_dir
from draftyard.verifiers import materialise


def read_questions(path: Path, limit: int) -> list[Prompt]:
    """The first `limit` questions of a file, its stem as their category."""
    lines = path.read_text(encoding="utf-8").splitlines()[:limit]
    return [Prompt(id=f"{path.stem}-{i}", category=path.stem, system=None, turns=(json.loads(line)["turns"][0],)) for i, line in enumerate(lines)]


def main() -> None:
    """Answer, capture, simulate, serve, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--simulate-only", action="store_true", help="no serving: a third of the time")
    parser.add_argument("--draft", type=Path, default=Path("models/draft"))
    arguments = parser.parse_args()
    root = Path.cwd()
    runtime, work = load_runtime(root), work_dir(root)
    card = read_card(root / "models/verifier.json")
    model_dir = materialise(card, work)
    enter_engine_environment(runtime, work / "logs" / "benchmark.log")
    params = load_file(root / "params.yaml")
    questions = [q for path in arguments.files for q in read_questions(path, arguments.questions)]
    engine_args, _ = resolve_engine_args(card.engine_args)
    tokenizer = load_tokenizer(model_dir, card.trust_remote_code)
    llm = start_engine(model_dir, max_model_len=2048, runtime=runtime.engine, engine_args=engine_args)
    answerer = Answerer(llm, tokenizer, params.generate)
    answers = answerer.answer_shard(
        [(q, 0) for q in questions], greedy=True, max_new_tokens=arguments.max_new_tokens, report=GenerateReport(), on_answers=lambda done, tokens: None
    )
    del llm, answerer
    index = json.loads((root / "data/hidden_states/index.json").read_text(encoding="utf-8"))
    aux_ids = tuple(index["aux_layer_ids"])
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        hidden = card.geometry.hidden_size
        extractor = start_extraction_engine(
            model_dir, aux_ids, card.geometry.num_hidden_layers, directory / "raw", max_model_len=2048, runtime=runtime.engine, engine_args=engine_args
        )
        lengths = [len(a.token_ids) for a in answers]
        entries, _ = extract_split(
            extractor, "holdout", iter(answers), lengths, directory, hidden_size=hidden, num_states=len(aux_ids) + 1, dtype=index["dtype"], shard_bytes=1 << 30
        )
        write_index(directory, aux_layer_ids=aux_ids, hidden_size=hidden, dtype=index["dtype"], splits={"holdout": entries, "train": []})
        del extractor
        from draftyard.verification.draft_reader import load_draft
        from draftyard.verification.run_serving import run_serving
        from draftyard.verification.run_simulation import run_simulation

        simulated = run_simulation(
            load_draft(arguments.draft), HiddenStates(directory), {(a.id, 0) for a in answers}, card.num_parameters, params.verify, runtime
        )
    served: dict[str, Any] = {}
    if not arguments.simulate_only:
        lengths_served = {"max_tokens": arguments.max_new_tokens, "max_model_len": 2048}
        served = run_serving(arguments.draft, model_dir, card, answers, params.verify, runtime, work / "logs", **lengths_served)
    result: dict[str, Any] = {
        "questions": len(answers),
        "max_new_tokens": arguments.max_new_tokens,
        "k": params.verify.num_speculative_tokens,
        "simulated": {name: part["acceptance_length"] for name, part in simulated["categories"].items()},
        "served": {name: part["acceptance_length"] for name, part in served.get("categories", {}).items()},
        "equal_outputs": [served["equality"]["equal"], served["equality"]["prompts"]] if "equality" in served else None,
        "speedup_median": served["speed"]["speedup_median"] if "speed" in served else None,
    }
    for side in ("simulated", "served"):
        result[f"mean_{side}"] = sum(result[side].values()) / len(result[side]) if result[side] else None
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
