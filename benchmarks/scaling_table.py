"""The tables of docs/scaling.md: bytes and hours of large builds, from profiles and from stated assumptions. Measures nothing.

    python benchmarks/scaling_table.py [--shared-gb-s 5] [--prefill-efficiency 0.4] [--decode-efficiency 0.1] ...

Bytes and parameter counts are exact. Hours are sums on paper: each rate below is an assumption, printed above the tables and open to change;
put in what your engine's log and your disks say. Run in the repository.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from draftyard.disk import hidden_states_bytes_per_token, human_bytes
from draftyard.draft.config_values import text_config
from draftyard.draft.geometry import parameter_counts, resolve
from draftyard.draft.verifier_size import verifier_size
from draftyard.params.hidden_states import resolve_aux_layer_ids
from draftyard.params.load import load_file
from draftyard.planning_verifier import find_verifier

SAMPLES = (100_000, 1_000_000)
HOUR = 3600


def rate(default: float, text: str) -> float:
    """A field of Assumptions, with what it means."""
    value: float = field(default=default, metadata={"help": text})
    return value


@dataclass(frozen=True)
class Assumptions:
    """Every figure that is not computed. GB and TB are powers of 1000."""

    tokens_per_sample: int = field(default=2048, metadata={"help": "tokens of a conversation"})
    answer_tokens: int = field(default=1024, metadata={"help": "of them written by the verifier"})
    peak_tflops: float = rate(989, "of one H100 or H200 SXM in dense bfloat16 (its data sheet)")
    prefill_efficiency: float = rate(0.4, "of that peak while extracting a dense verifier: long prompts, large batches")
    decode_efficiency: float = rate(0.1, "of that peak while a dense verifier generates with hundreds of sequences in flight")
    experts_factor: float = rate(0.35, "of both for a mixture of experts: small matrices per expert, all-to-all, weights unpacked from 4 bits")
    train_efficiency: float = rate(0.2, "of that peak while training a draft (our loop is not tuned for GPUs)")
    shared_gb_s: float = rate(5, "GB/s that the shared file system or object store gives all nodes together")
    nvme_gb_s: float = rate(6, "GB/s of the NVMe disks of one node")
    remote_gb_s: float = rate(1.25, "GB/s to the DVC remote: 10 Gbit/s")
    md5_gb_s: float = rate(0.65, "GB/s that DVC hashes on one core (measured on a 2-core machine)")


@dataclass(frozen=True)
class Case:
    """A verifier on GPUs that hold it. active: parameters that work on a token. draft_flops: of one training token, forward and backward."""

    name: str
    gpus: int
    gpu: str
    active: float
    mixture: bool
    bytes_per_token: dict[str, int]
    draft_flops: float
    epochs: int


def load_case(root: Path, profile: str, name: str, gpus: int, gpu: str) -> Case:
    """The case of profiles/<profile>.yaml."""
    path = root / "profiles" / f"{profile}.yaml"
    params = load_file(path)
    source = find_verifier(params, root, path)
    raw = json.loads(Path(source.origin).read_text(encoding="utf-8"))
    text, size = text_config(raw), verifier_size(raw, source.geometry)
    active = float(size.parameters - size.experts)
    if size.experts:
        active += size.experts * text["num_experts_per_tok"] / text["n_routed_experts"]
    aux = resolve_aux_layer_ids(params.hidden_states.aux_layer_ids, source.geometry.num_hidden_layers)
    counts = parameter_counts(resolve(params.draft, source.geometry, aux), trainable_lm_head=params.train.trainable_lm_head)
    return Case(
        name=name,
        gpus=gpus,
        gpu=gpu,
        active=active,
        mixture=bool(size.experts),
        bytes_per_token={d: hidden_states_bytes_per_token(source.geometry.hidden_size, len(aux), d) for d in ("bfloat16", "float8_e4m3")},
        # 6 per parameter and row; with ttt_rows: accepted the later steps add about as many rows as the first has. The targets cost a forward of the head.
        draft_flops=2 * 6 * counts.trainable,
        epochs=params.train.epochs,
    )


@dataclass(frozen=True)
class Hours:
    """One case at one number of samples. store_*: writing once, reading once per epoch, through the shared store."""

    tokens: float
    generate: float
    prefill: float
    write: float
    train: float
    read: float

    @property
    def extract(self) -> float:
        """Writing overlaps with the engine: the slower of the two."""
        return max(self.prefill, self.write)

    @property
    def fit(self) -> float:
        """Reading overlaps with training."""
        return max(self.train, self.read)


def hours(case: Case, samples: int, a: Assumptions, dtype: str) -> Hours:
    """Hours on all GPUs of the case."""
    tokens = float(samples * a.tokens_per_sample)
    flops = case.gpus * a.peak_tflops * 1e12
    factor = a.experts_factor if case.mixture else 1.0
    size = tokens * case.bytes_per_token[dtype]
    return Hours(
        tokens=tokens,
        generate=samples * a.answer_tokens * 2 * case.active / (flops * a.decode_efficiency * factor) / HOUR,
        prefill=tokens * 2 * case.active / (flops * a.prefill_efficiency * factor) / HOUR,
        write=size / (a.shared_gb_s * 1e9) / HOUR,
        train=case.epochs * tokens * case.draft_flops / (flops * a.train_efficiency) / HOUR,
        read=case.epochs * size / (a.shared_gb_s * 1e9) / HOUR,
    )


def slower(compute: float, store: float) -> str:
    """Which of two overlapping costs decides."""
    return "store" if store > compute else "GPUs"


def lines(cases: list[Case], a: Assumptions) -> Iterator[str]:
    """The assumptions and the tables, in Markdown."""
    yield "| assumption | value | |"
    yield "| --- | --- | --- |"
    for item in dataclasses.fields(a):
        yield f"| `--{item.name.replace('_', '-')}` | {getattr(a, item.name):g} | {item.metadata['help']} |"
    yield ""
    yield "| verifier | GPUs | active parameters | per token, bfloat16 | float8_e4m3 | generated tokens/s | extracted tokens/s | trained tokens/s |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for case in cases:
        one = hours(case, 1, a, "bfloat16")
        rates = [a.answer_tokens / one.generate / HOUR, one.tokens / one.prefill / HOUR, case.epochs * one.tokens / one.train / HOUR]
        sizes = [human_bytes(case.bytes_per_token[d]) for d in ("bfloat16", "float8_e4m3")]
        yield f"| {case.name} | {case.gpus} x {case.gpu} | {case.active / 1e9:.1f} B | {' | '.join(sizes)} | " + " | ".join(f"{r:,.0f}" for r in rates) + " |"
    yield ""
    yield "| verifier | samples | dtype | states | generate | extract (GPUs, store) | decides | train (GPUs, store) | decides | whole build |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for case in cases:
        for samples in SAMPLES:
            for dtype, size in case.bytes_per_token.items():
                h = hours(case, samples, a, dtype)
                total = h.generate + h.extract + h.fit
                extract = f"{h.extract:.1f} h ({h.prefill:.1f}, {h.write:.1f}) | {slower(h.prefill, h.write)}"
                train = f"{h.fit:.1f} h ({h.train:.1f}, {h.read:.1f}) | {slower(h.train, h.read)}"
                yield f"| {case.name} | {samples:,} | {dtype} | {human_bytes(h.tokens * size)} | {h.generate:.1f} h | {extract} | {train} | {total:.1f} h |"
    yield ""
    yield "| verifier | samples | streaming: extra hours of all GPUs | states not stored | DVC hashes them (1 core) | uploads them | one NVMe node reads them |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for case in cases:
        for samples in SAMPLES:
            h = hours(case, samples, a, "bfloat16")
            stored = h.tokens * case.bytes_per_token["bfloat16"]
            other = [stored / (speed * 1e9) / HOUR for speed in (a.md5_gb_s, a.remote_gb_s, a.nvme_gb_s)]
            extra = (case.epochs - 1) * h.prefill
            yield f"| {case.name} | {samples:,} | {extra:.1f} h | {human_bytes(stored)} | " + " | ".join(f"{hour:.1f} h" for hour in other) + " |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for item in dataclasses.fields(Assumptions):
        parser.add_argument(f"--{item.name.replace('_', '-')}", type=type(item.default), default=item.default, help=item.metadata["help"])
    assumptions = Assumptions(**vars(parser.parse_args()))
    root = Path.cwd()
    cases = [
        load_case(root, "llama-3.1-8b-instruct", "Llama-3.1-8B", 8, "H100"),
        load_case(root, "llama-3.3-70b-instruct", "Llama-3.3-70B", 16, "H100"),
        load_case(root, "kimi-k2.5", "Kimi-K2.5", 16, "H200"),
    ]
    print("\n".join(lines(cases, assumptions)))


if __name__ == "__main__":
    main()
