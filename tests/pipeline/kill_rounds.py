"""Builds a tiny draft from scratch while killing it at random moments, and compares every byte with an uninterrupted build.

    python -m tests.pipeline.kill_rounds [--kills 20] [--seed 0] [--until train] [--json FILE]

Each kill is a SIGKILL of the whole process group (dvc, the running stage, its engines) after a random time; then the same command
again. A build that gets to its end between kills is compared, thrown away with its cache, and begun anew until all kills are spent.
Exit 1 when a byte differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from draftyard.artifacts.files import digest_file
from tests.pipeline.tiny_repo import environment, make_repository, run, stages_run

COMPARED = ("data/prompts", "data/generations", "data/hidden_states", "models", "reports")
MEASURED = ("reports/verify/serving.json", "reports/metrics.json", "reports/comparison.json", "reports/report.html", "reports/report.md")
"""Speeds are measured anew in each build, and these hold them."""
MIN_DELAY_SECONDS = 2.0


@dataclass
class Rounds:
    """What the kills cost. lost_seconds: from the last file that a killed stage had finished (or its start) to the kill, one entry per kill.

    resumed: what the stages said they went on with. differences: files whose bytes differ from the uninterrupted build.
    """

    kills: Counter[str] = field(default_factory=Counter)
    builds: int = 0
    lost_seconds: list[float] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    reference_seconds: float = 0.0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """For --json."""
        return {**asdict(self), "kills": dict(self.kills)}

    def render(self) -> str:
        """The figures as people read them."""
        total = sum(self.kills.values())
        where = ", ".join(f"{count} in {stage}" for stage, count in sorted(self.kills.items()))
        lines = [
            f"kills: {total} ({where}) over {self.builds} builds; an uninterrupted build takes {self.reference_seconds:.0f} s",
            f"work repeated: {sum(self.lost_seconds):.0f} s in {self.seconds:.0f} s, at most {max(self.lost_seconds, default=0.0):.0f} s at one kill",
            f"differences: {len(self.differences)}",
            *(f"  {name}" for name in self.differences),
        ]
        return "\n".join(lines)


def snapshot(root: Path) -> dict[str, str]:
    """File -> digest of every artifact, metric and report that the same build must give again; of measured files nothing."""
    found = {}
    for name in COMPARED:
        for path in sorted((root / name).rglob("*")):
            relative = path.relative_to(root).as_posix()
            if path.is_file() and relative not in MEASURED:
                found[relative] = digest_file(path)
    return found


def kill_at_random(root: Path, command: list[str], delay: float) -> tuple[str | None, str]:
    """Run `command`, and kill its process group after `delay` seconds. Returns (stage that was killed or None when it had ended, output)."""
    log = root.parent / f"{root.name}.log"
    with log.open("w") as file:
        child = subprocess.Popen(command, cwd=root, env=environment(root), stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            child.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    output = log.read_text(errors="replace")
    if child.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(f"{' '.join(command)}: exit {child.returncode}\n{output[-4000:]}")
    started = stages_run(output)
    return (started[-1] if started else "dvc") if child.returncode else None, output


def lost(root: Path, stage: str, since: float, now: float) -> float:
    """Seconds from the newest whole file in the stage's work area to the kill; from the end of the stage before it, or `since`, when it had finished none."""
    lock = root / "dvc.lock"  # which DVC writes at the end of each stage
    written = [lock.stat().st_mtime] if lock.exists() else []
    written += [path.stat().st_mtime for path in (root / ".work" / stage).rglob("*") if path.is_file() and not path.name.startswith(".")]
    return now - max([since, *(at for at in written if at <= now)])


def clear(root: Path) -> None:
    """Forget the build: outputs, lock, cache and work."""
    for name in (*COMPARED, ".work", ".dvc/cache", ".dvc/tmp"):
        shutil.rmtree(root / name, ignore_errors=True)
    (root / "dvc.lock").unlink(missing_ok=True)
    run(root, "git", "checkout", "-q", "--", ".")


def kill_rounds(
    expected: dict[str, str], root: Path, *, kills: int, seed: int, reference_seconds: float, until: str | None = None, builds: int | None = None
) -> Rounds:
    """Spend `kills` kills on builds of the repository `root`, which has none, and compare each finished build with `expected`. builds: at most so many."""
    command = ["dvc", "repro", *([until] if until else [])]
    generator = random.Random(seed)
    rounds = Rounds(reference_seconds=reference_seconds)
    began = time.monotonic()
    while sum(rounds.kills.values()) < kills and rounds.builds != builds:
        for _ in range(10 * kills + 10):
            left = kills - sum(rounds.kills.values())
            delay = generator.uniform(MIN_DELAY_SECONDS, max(0.5 * reference_seconds, 2 * MIN_DELAY_SECONDS)) if left else 3600.0
            since = time.time()
            stage, output = kill_at_random(root, command, delay)
            rounds.resumed += [line.strip() for line in output.splitlines() if "resumed" in line or "nothing is computed again" in line]
            if stage is None:
                break
            rounds.kills[stage] += 1
            rounds.lost_seconds.append(lost(root, stage, since, time.time()))
            print(f"kill {sum(rounds.kills.values())} of {kills}: {stage}, after {delay:.0f} s", file=sys.stderr, flush=True)
        rounds.builds += 1
        found = snapshot(root)
        rounds.differences += [f"build {rounds.builds}: {name}" for name in sorted(set(found) | set(expected)) if found.get(name) != expected.get(name)]
        if sum(rounds.kills.values()) < kills and rounds.builds != builds:
            clear(root)
    rounds.seconds = time.monotonic() - began
    return rounds


def main() -> int:
    """Build the reference, spend the kills, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--until", default=None, help="last stage to build; all of them without it")
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as scratch:
        reference, killed = (make_repository(Path(scratch) / name) for name in ("reference", "killed"))
        began = time.monotonic()
        run(reference, "dvc", "repro", *([arguments.until] if arguments.until else []))
        seconds = time.monotonic() - began
        rounds = kill_rounds(snapshot(reference), killed, kills=arguments.kills, seed=arguments.seed, reference_seconds=seconds, until=arguments.until)
    print(rounds.render())
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rounds.to_json(), indent=2) + "\n")
    return 1 if rounds.differences else 0


if __name__ == "__main__":
    sys.exit(main())
