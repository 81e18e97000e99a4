"""What storing hidden states in float8 costs: bytes, error per state, change of the targets, acceptance.

    python benchmarks/feature_dtype.py [--train-epochs N] [--json FILE]

Run in the repository after `dvc repro`. The stored states are written again in float8_e4m3 to a temporary directory. Then, without an
engine: the relative error of each state (Frobenius norm over the holdout, and its median over tokens), how far the targets move
(argmax and KL divergence of the verifier's distribution over the draft vocabulary), and the acceptance length of models/draft
simulated on the holdout from both. With --train-epochs, a draft is also trained from each (same seed, same batches), and both are
simulated on the states as they were stored: what is served does not come from float8.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from draftyard.artifacts.card import read_card
from draftyard.artifacts.feature_store import find_store
from draftyard.artifacts.hidden_states import FLOAT8, HiddenStates, Sample, SampleRef, write_index, write_shard
from draftyard.artifacts.vocab import read_vocab
from draftyard.draft.geometry import resolve
from draftyard.draft.initial import initial_model
from draftyard.params.load import load_file
from draftyard.runtime import load_runtime, work_dir
from draftyard.training.batches import usable_rows
from draftyard.training.device import prepare
from draftyard.training.forward import rms_norm
from draftyard.training.loop import Trainer
from draftyard.verification.draft_reader import load_draft
from draftyard.verification.run_simulation import simulate_rows
from draftyard.verifiers import materialise

SPLITS = ("train", "holdout")


def recode(data: HiddenStates, directory: Path) -> tuple[int, int]:
    """Write every shard of `data` again in float8. Returns the bytes of the states' shards, (before, after)."""
    entries: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    before = 0
    for split in SPLITS:
        for number, members in enumerate(by_shard(data.refs(split))):
            samples = [data.load(ref) for ref in members]
            before += sum(s.aux.nbytes + s.last.nbytes + 5 * len(s.token_ids) for s in samples)
            entries[split].append(write_shard(directory / f"{split}-{number:05d}.safetensors", samples, FLOAT8))
    write_index(directory, aux_layer_ids=data.aux_layer_ids, hidden_size=data.hidden_size, dtype=FLOAT8, splits=entries)
    return before, sum(entry["bytes"] for shards in entries.values() for entry in shards)


def by_shard(refs: list[SampleRef]) -> Iterator[list[SampleRef]]:
    """The samples of each shard, in order."""
    for file in dict.fromkeys(ref.file for ref in refs):
        yield [ref for ref in refs if ref.file == file]


def pairs(left: HiddenStates, right: HiddenStates) -> Iterator[tuple[Sample, Sample]]:
    """Holdout samples of both."""
    for a, b in zip(left.refs("holdout"), right.refs("holdout"), strict=True):
        yield left.load(a), right.load(b)


def errors(stored: HiddenStates, small: HiddenStates) -> list[dict[str, Any]]:
    """Per state: relative error over all tokens (Frobenius), its median over tokens, and the largest magnitude over the RMS."""
    names = [*map(str, stored.aux_layer_ids), "last"]
    squares, totals = torch.zeros(len(names), dtype=torch.float64), torch.zeros(len(names), dtype=torch.float64)
    per_token: list[torch.Tensor] = []
    peaks: list[torch.Tensor] = []
    for a, b in pairs(stored, small):
        x, y = (torch.cat((s.aux, s.last), 1).to(torch.float32).unflatten(1, (len(names), -1)) for s in (a, b))  # (T, L, H)
        off, size = (x - y).square().sum(-1), x.square().sum(-1)  # (T, L)
        squares += off.sum(0)
        totals += size.sum(0)
        per_token.append((off / size).sqrt())
        peaks.append(x.abs().amax(-1) / x.square().mean(-1).sqrt())
    token, peak = torch.cat(per_token), torch.cat(peaks)
    whole = (squares / totals).sqrt()
    return [
        {"layer": name, "relative_error": float(whole[i]), "median_token": float(token[:, i].median()), "median_peak_over_rms": float(peak[:, i].median())}
        for i, name in enumerate(names)
    ]


@torch.inference_mode()
def targets(model: Any, stored: HiddenStates, small: HiddenStates) -> dict[str, float]:
    """How far the verifier's distribution over the draft vocabulary moves: share of positions with another argmax, mean KL divergence in nats."""
    changed = positions = 0
    divergence = 0.0
    for a, b in pairs(stored, small):
        p, q = (torch.log_softmax(model.verifier_lm_head(rms_norm(s.last.to(torch.float32), model.verifier_norm)), -1) for s in (a, b))
        changed += int((p.argmax(-1) != q.argmax(-1)).sum())
        divergence += float((p.exp() * (p - q)).sum())
        positions += len(p)
    return {"positions": positions, "argmax_changed": changed / positions, "kl": divergence / positions}


def main() -> None:
    """Recode, compare, simulate, perhaps train; print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-epochs", type=int, default=0, help="also train a draft from each, for this many epochs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    root = Path.cwd()
    params, runtime, work = load_file(root / "params.yaml"), load_runtime(root), work_dir(root)
    compute = prepare(replace(runtime, train=replace(runtime.train, device="cpu", logger=None)))
    stored = HiddenStates(root / "data/hidden_states", find_store(root, runtime, work))
    card = read_card(root / "models/verifier.json")
    geometry, vocabulary, model_dir = resolve(params.draft, card.geometry, stored.aux_layer_ids), read_vocab(root / "models/vocab"), materialise(card, work)

    def fresh() -> Any:
        return initial_model(geometry, vocabulary, card, model_dir, params.train)

    def acceptance(model: Any, data: HiddenStates) -> dict[str, Any]:
        rows, _, _ = usable_rows(data.refs("holdout"), 1 << 30)
        tally = simulate_rows(model, data, rows, params.verify, runtime).by_k[params.verify.num_speculative_tokens]
        return {"acceptance_length": tally.acceptance_length, "rounds": tally.rounds, "accepted": tally.accepted}

    with tempfile.TemporaryDirectory() as scratch:
        sizes = recode(stored, Path(scratch))
        small = HiddenStates(Path(scratch))
        draft = load_draft(root / "models/draft")
        report: dict[str, Any] = {
            "bytes": {stored.dtype: sizes[0], FLOAT8: sizes[1]},
            "states": errors(stored, small),
            "targets": targets(fresh(), stored, small),
            "simulated": {data.dtype: acceptance(draft, data) for data in (stored, small)},
        }
        if arguments.train_epochs:
            trained = report["trained"] = {"epochs": arguments.train_epochs}
            for data in (stored, small):
                model = fresh()
                train = replace(params.train, epochs=arguments.train_epochs)
                Trainer(
                    model, data, train, micro_batch_tokens=runtime.train.micro_batch_tokens, accelerator=compute.accelerator, autocast=compute.autocast
                ).run()
                trained[data.dtype] = acceptance(model, stored)
    print(render(report, stored.dtype))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def render(report: dict[str, Any], dtype: str) -> str:
    """The report as Markdown."""
    before, after = report["bytes"][dtype], report["bytes"][FLOAT8]
    lines = [f"bytes: {before:,} in {dtype}, {after:,} in {FLOAT8} ({after / before:.3f})", ""]
    lines += ["| state | relative error | median over tokens | largest over RMS, median |", "| --- | --- | --- | --- |"]
    lines += [f"| {s['layer']} | {s['relative_error']:.4f} | {s['median_token']:.4f} | {s['median_peak_over_rms']:.1f} |" for s in report["states"]]
    moved = report["targets"]
    lines += ["", f"targets: another argmax at {moved['argmax_changed']:.2%} of {moved['positions']} positions, KL divergence {moved['kl']:.5f} nats", ""]
    lines += ["| acceptance length | " + f"{dtype} | {FLOAT8} |", "| --- | --- | --- |"]
    for name, kind in (("models/draft, simulated from", "simulated"), (f"trained {report.get('trained', {}).get('epochs')} epochs from", "trained")):
        if kind in report:
            lines.append(f"| {name} | " + " | ".join(f"{report[kind][d]['acceptance_length']:.4f}" for d in (dtype, FLOAT8)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
