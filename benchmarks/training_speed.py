"""Tokens/s of this training's forward and backward against speculators' own, on the same data, model and cores.

    python benchmarks/training_speed.py [--pack-tokens 350 1400] [--pairs 3] [--json FILE]

Run in the repository after `dvc repro`. Ours is what the loop runs (training/batches.py, training/forward.py). Theirs is
`Eagle3DraftModel.forward` with eager attention over the same samples packed into one sequence: a dense mask, all rows
computed. Both in this process, so with the same threads and allocator; ours, theirs, ours, theirs, ... Their losses must
agree to 1e-4 (relative), else the exit status is 1. Two loss masks: the verifier's own tokens, and every token (less the first
ttt_steps - 1 of a sample: packed, they would be targets of the sample before).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from draftyard.artifacts.card import read_card
from draftyard.artifacts.hidden_states import HiddenStates, Sample
from draftyard.artifacts.vocab import read_vocab
from draftyard.draft.geometry import resolve
from draftyard.draft.initial import initial_model
from draftyard.params.load import load_file
from draftyard.runtime import load_runtime, work_dir
from draftyard.training.batches import Row, make_batch, plan_steps, split_micro, usable_rows
from draftyard.training.device import prepare
from draftyard.training.forward import TttForward
from draftyard.training.loss import ttt_loss
from draftyard.verifiers import materialise

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Packed:
    """Samples as one sequence of N rows, shifted as speculators shifts them. tensors: the arguments of its forward."""

    tensors: dict[str, Tensor]

    @classmethod
    def build(cls, samples: list[Sample]) -> Packed:
        """Concatenate: input_ids[1:], hidden_states[:-1], verifier_last_hidden_states[1:], loss_mask[1:], positions from 1 in each sample."""
        rows = [len(s.token_ids) - 1 for s in samples]
        tensors = {
            "hidden_states": torch.cat([s.aux[:-1] for s in samples]).float(),
            "verifier_last_hidden_states": torch.cat([s.last[1:] for s in samples]).float(),
            "input_ids": torch.cat([s.token_ids[1:] for s in samples]),
            "loss_mask": torch.cat([s.loss_mask[1:] for s in samples]),
            "document_ids": torch.cat([torch.full((n,), i) for i, n in enumerate(rows)]),
            "position_ids": torch.cat([torch.arange(1, n + 1) for n in rows]),
        }
        return cls({name: tensor[None] for name, tensor in tensors.items()})


def with_mask(sample: Sample, every_token: bool, ttt_steps: int) -> Sample:
    """The sample with the loss on every token (see above), or as it is."""
    if not every_token:
        return sample
    mask = torch.ones_like(sample.loss_mask)
    mask[:ttt_steps] = False  # the shift takes the first token away
    return replace(sample, loss_mask=mask)


def run_ours(forward: TttForward, batches: list[Any], denominators: list[list[float]], steps: int, decay: float) -> float:
    """Forward and backward of one pack in the loop's micro-batches. Returns the loss."""
    total = 0.0
    for batch in batches:
        result = ttt_loss(forward, batch, num_steps=steps, decay=decay, denominator=denominators[0])
        result.loss.backward()
        total += float(result.loss.detach())
    return total


def run_theirs(model: Any, packed: Packed, steps: int, decay: float) -> float:
    """Forward and backward of one pack through speculators' own forward. Returns the loss."""
    from speculators.losses import eager

    _, loss, _ = model(**packed.tensors, ttt_steps=steps, ttt_step_loss_decay=decay, loss_config={"kl_div": (eager.kl_div_loss, 1.0)})
    loss.backward()
    return float(loss.detach())


def timed(model: Any, run: Callable[[int], float], packs: int) -> tuple[float, list[float]]:
    """Seconds and losses of `run` over all packs, gradients cleared before each as the loop does."""
    losses = []
    started = time.perf_counter()
    for number in range(packs):
        model.zero_grad(set_to_none=True)
        losses.append(run(number))
    return time.perf_counter() - started, losses


def compare(model: Any, packs: list[list[Sample]], *, micro_tokens: int, steps: int, decay: float, pairs: int) -> dict[str, Any]:
    """Interleaved timings over the same packs of samples, after one unmeasured round of each."""
    forward = TttForward(model)
    device = torch.device("cpu")
    ours_data, theirs_data = [], []
    for samples in packs:
        by_length = split_micro([Row(_ref(i, s), len(s.token_ids)) for i, s in enumerate(samples)], micro_tokens)
        groups = [[samples[row.ref.start] for row in rows] for rows in by_length]
        batches = [make_batch(group, [len(s.token_ids) for s in group], 0.0, device, torch.float32) for group in groups]
        weights = [[float(sum(s.loss_mask[1 + k :].sum() for s in samples)) for k in range(steps)]]
        ours_data.append((batches, weights))
        theirs_data.append(Packed.build(samples))
    tokens = sum(len(s.token_ids) for samples in packs for s in samples)

    def ours(number: int) -> float:
        return run_ours(forward, *ours_data[number], steps, decay)

    def theirs(number: int) -> float:
        return run_theirs(model, theirs_data[number], steps, decay)

    _, our_losses = timed(model, ours, len(packs))
    _, their_losses = timed(model, theirs, len(packs))
    worst = max(abs(a - b) / abs(b) for a, b in zip(our_losses, their_losses, strict=True))
    rows = []
    for _ in range(pairs):
        rows.append(tuple(tokens / timed(model, run, len(packs))[0] for run in (ours, theirs)))
    ratios = [a / b for a, b in rows]
    return {
        "packs": len(packs),
        "tokens": tokens,
        "loss_tokens": int(sum(s.loss_mask[1:].sum() for samples in packs for s in samples)),
        "ours_tokens_per_s": [round(a, 1) for a, _ in rows],
        "speculators_tokens_per_s": [round(b, 1) for _, b in rows],
        "ratio_median": round(median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
        "worst_relative_loss_difference": float(f"{worst:.1e}"),
    }


def _ref(number: int, sample: Sample) -> Any:
    """A reference that carries the sample's place in its pack."""
    from draftyard.artifacts.hidden_states import SampleRef

    return SampleRef(sample.id, sample.category, sample.sample, "", number, len(sample.token_ids))


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack-tokens", nargs="+", type=int, default=[350, 1400], help="tokens per packed sequence; 350 is the default build's optimizer step")
    parser.add_argument("--tokens", type=int, default=4200, help="tokens timed at a time, in packs")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    root = Path.cwd()
    params, runtime = load_file(root / "params.yaml"), load_runtime(root)
    compute = prepare(replace(runtime, train=replace(runtime.train, device="cpu")))
    card = read_card(root / "models/verifier.json")
    data = HiddenStates(root / "data/hidden_states")
    geometry = resolve(params.draft, card.geometry, data.aux_layer_ids)
    vocabulary = read_vocab(root / "models/vocab")
    model = initial_model(geometry, vocabulary, card, materialise(card, work_dir(root)), params.train)
    rows, _, _ = usable_rows(data.refs("train"), params.train.max_sample_tokens)
    results = []
    for every_token in (False, True):
        for pack_tokens in arguments.pack_tokens:
            chosen = plan_steps(rows, pack_tokens, params.train.seed, 0)[: max(1, arguments.tokens // pack_tokens)]
            packs = [[with_mask(data.load(row.ref), every_token, params.train.ttt_steps) for row in step] for step in chosen]
            result = compare(
                model,
                packs,
                micro_tokens=runtime.train.micro_batch_tokens,
                steps=params.train.ttt_steps,
                decay=params.train.ttt_decay,
                pairs=arguments.pairs,
            )
            results.append({"loss_on": "every token" if every_token else "answers", "pack_tokens": pack_tokens, **result})
            show(results[-1], header=len(results) == 1)
    report = {
        "threads": torch.get_num_threads(),
        "dtype": compute.dtype_name,
        "hidden_size": geometry.hidden_size,
        "draft_vocab_size": geometry.draft_vocab_size,
        "ttt_steps": params.train.ttt_steps,
        "results": results,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if any(result["worst_relative_loss_difference"] > TOLERANCE for result in results):
        raise SystemExit(f"the losses differ by more than {TOLERANCE}: the two sides did not compute the same thing")


def show(result: dict[str, Any], *, header: bool) -> None:
    """One row of the table, tokens/s as medians."""
    if header:
        print("| loss on | tokens per pack | loss tokens | ours, tokens/s | speculators, tokens/s | ratio (min - max) | loss difference |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
    share = result["loss_tokens"] / result["tokens"]
    ours, theirs = median(result["ours_tokens_per_s"]), median(result["speculators_tokens_per_s"])
    spread = f"{result['ratio_median']:.2f} ({result['ratio_min']:.2f} - {result['ratio_max']:.2f})"
    worst = result["worst_relative_loss_difference"]
    print(f"| {result['loss_on']} | {result['pack_tokens']} | {share:.0%} | {ours:.0f} | {theirs:.0f} | {spread} | {worst:.0e} |", flush=True)


if __name__ == "__main__":
    main()
