"""Serving measurements: the verifier plain and with the draft, on the same prompts, in two vLLM processes side by side."""

from __future__ import annotations

import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftyard.engines.environment import engine_environment
from draftyard.errors import DraftyardError
from draftyard.progress import Progress
from draftyard.runtime import Runtime
from draftyard.verification import serving_worker
from draftyard.verification.simulation import Tally

REPLY_TIMEOUT_SECONDS = 1800.0


@dataclass(frozen=True)
class ServedPrompt:
    """A holdout prompt to serve: the template-applied token ids of its last turn."""

    id: str
    category: str
    token_ids: list[int]


class EngineProcess:
    """A serving_worker child. Replies are awaited with a bound; a child that dies is reported with its log's last lines."""

    def __init__(self, name: str, config: dict[str, Any], runtime: Runtime, logs: Path) -> None:
        self._name = name
        self._log = logs / f"verify-{name}.log"
        logs.mkdir(parents=True, exist_ok=True)
        read_fd, write_fd = os.pipe()
        with self._log.open("w", encoding="utf-8") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", serving_worker.__name__, str(write_fd)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(write_fd,),
                env=engine_environment(runtime, self._log.with_suffix(".engine.log")),
                text=True,
            )
        os.close(write_fd)
        self._replies = os.fdopen(read_fd, encoding="utf-8")
        self._started: dict[str, Any] | None = None
        self._send({**config, "runtime": asdict(runtime.engine)})

    def wait_ready(self) -> str | None:
        """Wait for the engine, the first time. Returns None when it is up, or the sentence that says why it cannot start."""
        if self._started is None:
            self._started = self._receive()
        return self._started.get("error")

    def decode(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """See serving_worker.decode."""
        self._send({"do": "decode", "prompts": prompts, "max_tokens": max_tokens})
        return self._receive()

    def logit_gap(self, token_ids: list[int], first: int, second: int) -> float | None:
        """See serving_worker.logit_gap."""
        self._send({"do": "gap", "token_ids": token_ids, "first": first, "second": second})
        gap: float | None = self._receive()["gap"]
        return gap

    def close(self) -> None:
        """End the child."""
        with contextlib.suppress(OSError):
            assert self._child.stdin is not None
            self._child.stdin.close()
        try:
            self._child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._replies.close()

    def _send(self, value: dict[str, Any]) -> None:
        try:
            assert self._child.stdin is not None
            self._child.stdin.write(json.dumps(value) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise self._dead() from None

    def _receive(self) -> dict[str, Any]:
        ready, _, _ = select.select([self._replies], [], [], REPLY_TIMEOUT_SECONDS)
        line = self._replies.readline() if ready else ""
        if not line:
            raise self._dead()
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _dead(self) -> DraftyardError:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
        return DraftyardError(f"the {self._name} engine stopped answering; its last words ({self._log}):\n  " + "\n  ".join(lines))


@contextlib.contextmanager
def engines(plain: dict[str, Any], draft: dict[str, Any], runtime: Runtime, logs: Path) -> Iterator[tuple[EngineProcess, EngineProcess]]:
    """Both engine processes, ended in any case."""
    first = EngineProcess("plain", plain, runtime, logs)
    try:
        second = EngineProcess("draft", draft, runtime, logs)
        try:
            yield first, second
        finally:
            second.close()
    finally:
        first.close()


def rates(tally: Tally, prompts: int) -> dict[str, Any]:
    """Counts and rates of a tally.

    cumulative_rates[i]: rounds with draft tokens 0..i accepted / rounds; conditional_rates[i]: the same / rounds that got to token i.
    """
    cumulative = [n / tally.rounds if tally.rounds else 0.0 for n in tally.accepted]
    reached = [tally.rounds, *tally.accepted[:-1]]
    conditional = [n / r if r else 0.0 for n, r in zip(tally.accepted, reached, strict=True)] if tally.accepted else []
    return {
        "prompts": prompts,
        "acceptance_length": tally.acceptance_length,
        "rounds": tally.rounds,
        "accepted": tally.accepted,
        "cumulative_rates": cumulative,
        "conditional_rates": conditional,
    }


def measure_acceptance(prompts: list[ServedPrompt], rounds: list[list[int]], k: int) -> dict[str, Any]:
    """Acceptance overall, per category and per prompt ("samples", counts only) from each prompt's accepted draft tokens per round."""
    overall = Tally(accepted=[0] * k)
    categories: dict[str, Tally] = {}
    counts: dict[str, int] = {}
    samples = []
    for prompt, lengths in zip(prompts, rounds, strict=True):
        tally = categories.setdefault(prompt.category, Tally(accepted=[0] * k))
        counts[prompt.category] = counts.get(prompt.category, 0) + 1
        own = Tally(accepted=[0] * k)
        for length in lengths:
            own.add(length, k)
        overall.merge(own)
        tally.merge(own)
        samples.append({"id": prompt.id, "category": prompt.category, "rounds": own.rounds, "accepted": own.accepted})
    by_category = {c: rates(t, counts[c]) for c, t in sorted(categories.items())}
    return {"overall": rates(overall, len(prompts)), "categories": by_category, "samples": samples}


def compare_outputs(
    prompts: list[ServedPrompt],
    plain: list[list[int]],
    draft: list[list[int]],
    text: Callable[[list[int]], str],
    gap: Callable[[list[int], int, int], float | None],
) -> dict[str, Any]:
    """Token-for-token equality.

    A divergence names the prompt, the position, the text that both share before it, both texts from there on, and the plain
    engine's log-probability gap there.
    """
    divergences = []
    for prompt, left, right in zip(prompts, plain, draft, strict=True):
        if left == right:
            continue
        position = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
        both = position < min(len(left), len(right))
        divergences.append(
            {
                "id": prompt.id,
                "position": position,
                "shared_text": text(left[:position]),
                "plain_text": text(left[position:]),
                "draft_text": text(right[position:]),
                "logit_gap": gap(prompt.token_ids + left[:position], left[position], right[position]) if both else None,
            }
        )
    return {"prompts": len(prompts), "equal": len(prompts) - len(divergences), "divergences": divergences}


def measure_speed(plain: EngineProcess, draft: EngineProcess, prompts: list[ServedPrompt], max_tokens: int, repeats: int) -> dict[str, Any]:
    """Decoding speed one prompt at a time: plain, draft, plain, draft, ...; one speed-up per pair, prefill included on both sides."""
    progress = Progress("verify speed", len(prompts) * repeats, "pairs")
    plain_rates: list[float] = []
    draft_rates: list[float] = []
    for number in range(repeats):
        for index, prompt in enumerate(prompts):
            for engine, found in ((plain, plain_rates), (draft, draft_rates)):
                result = engine.decode([prompt.token_ids], max_tokens)
                found.append(len(result["outputs"][0]) / result["seconds"])
            progress.update(number * len(prompts) + index + 1, f"{plain_rates[-1]:.1f} -> {draft_rates[-1]:.1f} tokens/s")
    progress.close()
    speedups = [d / p for d, p in zip(draft_rates, plain_rates, strict=True)]
    return {
        "batch": 1,
        "prompts": len(prompts),
        "plain_tokens_per_s": plain_rates,
        "draft_tokens_per_s": draft_rates,
        "speedups": speedups,
        "speedup_median": statistics.median(speedups),
        "speedup_min": min(speedups),
        "speedup_max": max(speedups),
    }


def warm_up(plain: EngineProcess, draft: EngineProcess, prompt: ServedPrompt) -> None:
    """One short answer on each engine, so that first-call costs are nobody's."""
    for engine in (plain, draft):
        engine.decode([prompt.token_ids], 4)
