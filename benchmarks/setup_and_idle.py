"""Seconds of `dvc repro` with nothing to do, and of `make setup` in a fresh clone.

    python benchmarks/setup_and_idle.py [--repeats 5] [--setup] [--make-args TORCH_INDEX=URL]

Run in the repository after `dvc repro`. The first call warms DVC's and the system's caches and is shown apart. --setup clones the
last commit into a temporary directory and makes its .venv there (1.5 GB of disk, minutes); what pip has cached is not fetched again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

NOTHING_TO_DO = "Data and pipelines are up to date."


def idle_repro() -> float:
    """Seconds of one `dvc repro`. Raises SystemExit when it had something to do."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    started = time.perf_counter()
    result = subprocess.run(["dvc", "repro"], capture_output=True, text=True, check=False, env=environment)
    seconds = time.perf_counter() - started
    if NOTHING_TO_DO not in result.stdout:
        raise SystemExit(f"dvc repro had something to do, or failed:\n{(result.stdout + result.stderr)[-2000:]}")
    return seconds


def fresh_setup(make_args: list[str]) -> float:
    """Seconds of `make setup` in a clone of the last commit."""
    with tempfile.TemporaryDirectory() as scratch:
        clone = Path(scratch) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(Path.cwd()), str(clone)], check=True)
        started = time.perf_counter()
        subprocess.run(["make", "setup", *make_args], cwd=clone, check=True, stdout=sys.stderr)
        return time.perf_counter() - started


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--setup", action="store_true")
    parser.add_argument("--make-args", nargs="*", default=[])
    arguments = parser.parse_args()
    first, *others = (idle_repro() for _ in range(1 + arguments.repeats))
    result = {"idle_repro_first_s": round(first, 2), "idle_repro_median_s": round(median(others), 2), "idle_repro_max_s": round(max(others), 2)}
    if arguments.setup:
        result["setup_s"] = round(fresh_setup(arguments.make_args), 1)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
