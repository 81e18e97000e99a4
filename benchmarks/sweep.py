"""A grid of params as DVC experiments, and its table.

    python benchmarks/sweep.py OUT.csv draft.head_dim=64,96,128 draft.vocab_size=2048,4096 [--leave-out METRIC] [--table-only]

Runs one experiment per combination in this repository, one after the other, and stops each before the gate; shared stages run
once. A combination whose experiment is there already is not run again, so a sweep that was stopped goes on. Needs a clean
work tree, because an experiment takes every change along. Writes OUT.csv, one row per combination, and OUT.json: how it was made.
`make queue SET=...` runs such a grid in copies, so that the work tree stays free; `make experiments` shows it.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dvc.api

from draftyard.artifacts.lineage import package_versions
from draftyard.hardware import bf16_units, cpu_flags

METRICS = (
    "acceptance_length.served", "acceptance_length.simulated", "speedup.median", "speedup.min", "speedup.max", "coverage.holdout",
    "parameters.trainable", "parameters.saved", "equal_outputs", "num_speculative_tokens.recommended", "train.train_loss",
)  # fmt: skip
METRICS_FILE = "reports/metrics.json"
PACKAGES = ("torch", "transformers", "vllm", "speculators", "dvc")


@dataclass(frozen=True)
class Axis:
    """One key of the grid and its values, as written on the command line."""

    key: str
    values: tuple[str, ...]

    @staticmethod
    def parse(text: str) -> Axis:
        """Of "draft.head_dim=64,128". Raises argparse.ArgumentTypeError."""
        key, equals, values = text.partition("=")
        if "." not in key or not equals or not all(values.split(",")):
            raise argparse.ArgumentTypeError(f"{text!r}: must be GROUP.KEY=VALUE[,VALUE...]")
        return Axis(key, tuple(values.split(",")))


def combinations(axes: list[Axis], prefix: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(experiment name, key -> value) for every point of the grid, the last axis fastest."""
    for values in itertools.product(*(axis.values for axis in axes)):
        chosen = {axis.key: value for axis, value in zip(axes, values, strict=True)}
        yield "-".join([prefix, *(f"{key.split('.')[-1]}-{value}" for key, value in chosen.items())]).replace(".", "_"), chosen


def experiments() -> set[str]:
    """Names of this repository's experiments, of any commit."""
    listed = subprocess.run(["dvc", "exp", "list", "--all-commits", "--name-only"], check=True, capture_output=True, text=True).stdout
    return {line.strip() for line in listed.splitlines() if line.strip()}


def run(name: str, chosen: dict[str, str]) -> None:
    """Run one experiment up to the report. Exits with DVC's status when it fails."""
    settings = [word for key, value in chosen.items() for word in ("-S", f"{key}={value}")]
    status = subprocess.run(["dvc", "exp", "run", "--name", name, *settings, "report"], check=False).returncode
    if status:
        sys.exit(f"{name}: dvc exited with {status}; mend that and run the same command again, finished experiments are kept")


def figure(metrics: dict[str, Any], path: str) -> Any:
    """The value at a dotted path; "" where there is none (a build that was not served)."""
    value: Any = metrics
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value


def table(axes: list[Axis], prefix: str, left_out: tuple[str, ...]) -> list[dict[str, Any]]:
    """One row per combination, from the metrics that each experiment recorded; without those whose path begins with one of `left_out`."""
    rows = []
    for name, chosen in combinations(axes, prefix):
        metrics = dvc.api.metrics_show(METRICS_FILE, rev=name)
        rows.append({**chosen, **{path: figure(metrics, path) for path in METRICS if not path.startswith(left_out)}})
    return rows


def how(arguments: list[str]) -> dict[str, Any]:
    """What a reader needs to make the table again."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    vector = sorted({"avx2", "avx512f", *bf16_units(cpu_flags())} & cpu_flags())
    return {
        "command": ["python", "benchmarks/sweep.py", *(word for word in arguments if word != "--table-only")],
        "commit": commit,
        "machine": {"architecture": platform.machine(), "units": vector, "python": platform.python_version()},
        "packages": package_versions(*PACKAGES),
    }


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("axes", nargs="+", type=Axis.parse, metavar="GROUP.KEY=VALUE[,VALUE...]")
    parser.add_argument("--prefix", default="sweep", help="first part of the experiments' names")
    parser.add_argument("--leave-out", action="append", default=[], metavar="METRIC", help="such as speedup, when other work ran beside the sweep")
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    if not arguments.table_only:
        there = experiments()
        for name, chosen in combinations(arguments.axes, arguments.prefix):
            if name not in there:
                run(name, chosen)
    rows = table(arguments.axes, arguments.prefix, tuple(arguments.leave_out))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    arguments.out.with_suffix(".json").write_text(json.dumps(how(sys.argv[1:]), indent=2) + "\n", encoding="utf-8")
    print(f"{arguments.out}: {len(rows)} experiments; the work tree holds the last one: git restore params.yaml dvc.lock reports, then dvc checkout")


if __name__ == "__main__":
    main()
