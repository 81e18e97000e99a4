"""Reading all sources into one pool of distinct prompts, with every line accounted for."""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from draftyard.artifacts.prompts import Prompt
from draftyard.errors import ArtifactError, DraftyardError
from draftyard.params.prompts import PromptsParams
from draftyard.prompts.shapes import Row
from draftyard.prompts.sources import Source
from draftyard.prompts.text import content_key, rank

log = logging.getLogger(__name__)

MAX_CATEGORIES = 100
EXAMPLES_PER_SOURCE = 20
EXAMPLES_SHOWN = 5
LOG_INTERVAL_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A distinct prompt of the pool. index: its place in the spool. rank: its place in the build's random order."""

    index: int
    source: str
    category: str
    rank: bytes


@dataclass
class Counts:
    """Lines per (source, category), by what became of them."""

    read: Counter[tuple[str, str]] = field(default_factory=Counter)
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    duplicates: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass
class Collection:
    """The pool. rejects: source -> {"file:line": reason} for the first of each source."""

    candidates: list[Candidate]
    counts: Counts
    rejects: dict[str, dict[str, str]]


class Store(Protocol):
    """Where the prompts of the pool are kept: a list, or a PromptSpool."""

    def append(self, prompt: Prompt, /) -> None: ...


def collect(sources: list[Source], params: PromptsParams, store: Store) -> Collection:
    """Read `sources` in order, append each distinct prompt to `store`, and count the rest. Of exact duplicates the first stays.

    Memory: about 300 bytes per distinct prompt, whatever its length.

    Raises:
        ArtifactError: a source has no line, more than `params.max_reject_fraction` of its lines rejected, or too many categories.
    """
    collection = Collection([], Counts(), {})
    counts, seen, ids = collection.counts, set[bytes](), set[str]()
    for source in sources:
        examples = collection.rejects.setdefault(source.label, {})
        shown = time.monotonic()
        for read in source.read():
            cell = (source.label, read.category)
            counts.read[cell] += 1
            if time.monotonic() - shown > LOG_INTERVAL_SECONDS:
                shown = time.monotonic()
                log.info("%s: %d lines read", source.label, _total(counts.read, source))
            if read.row is None:
                counts.rejected[cell] += 1
                if len(examples) < EXAMPLES_PER_SOURCE:
                    examples[read.place] = str(read.reason)
                continue
            key = content_key(read.row.system, read.row.turns)
            if bytes.fromhex(key) in seen:
                counts.duplicates[cell] += 1
                continue
            seen.add(bytes.fromhex(key))
            identity = next(name for name in _names(read.row, read.category, key) if name not in ids)
            ids.add(identity)
            collection.candidates.append(Candidate(len(collection.candidates), source.label, read.category, rank(params.seed, key)))
            store.append(Prompt(id=identity, category=read.category, system=read.row.system, turns=read.row.turns))
        _check_source(source, collection, params.max_reject_fraction)
    categories = {category for _, category in counts.read}
    if len(categories) > MAX_CATEGORIES:
        raise ArtifactError(
            f"prompts.sources: the rows name {len(categories)} categories ({', '.join(sorted(categories)[:5])}, ...), more than {MAX_CATEGORIES}; "
            "give the source one with `category: NAME` in params.yaml, which overrides its rows"
        )
    if len(collection.candidates) <= params.holdout_prompts:
        raise DraftyardError(
            f"prompts.holdout_prompts={params.holdout_prompts}: no prompt is left to train on: {counts.read.total()} lines read, "
            f"{counts.rejected.total()} rejected, {counts.duplicates.total()} duplicates, {len(collection.candidates)} distinct prompts; "
            "add prompts, or hold out fewer"
        )
    return collection


def _names(row: Row, category: str, key: str) -> Iterator[str]:
    """Ids for a prompt, best first: its own (behind its category when it is only a number), or one made from its content."""
    if row.id is not None:
        own = f"{category}-{row.id}" if row.id.lstrip("-").isdigit() else row.id
        yield own
        yield f"{own}-{key[:8]}"
    yield f"{category}-{key[:16]}"
    yield from (f"{category}-{key}-{number}" for number in itertools.count())


def _check_source(source: Source, collection: Collection, max_reject_fraction: float) -> None:
    """Log what `source` gave; raise ArtifactError when that is nothing, or too much was rejected."""
    counts, examples = collection.counts, collection.rejects[source.label]
    read, rejected, duplicates = (_total(counter, source) for counter in (counts.read, counts.rejected, counts.duplicates))
    log.info("%s: %d lines read, %d rejected, %d duplicates, %d distinct prompts", source.label, read, rejected, duplicates, read - rejected - duplicates)
    shown = [f"{place}: {reason}" for place, reason in itertools.islice(examples.items(), EXAMPLES_SHOWN)]
    if read == 0:
        raise ArtifactError(f"source {source.label}: holds no line; add prompts, or remove the source from prompts.sources")
    if rejected > max_reject_fraction * read:
        more = f"\n  and {rejected - len(shown)} more" if rejected > len(shown) else ""
        raise ArtifactError(
            f"source {source.label}: {rejected} of {read} lines are rejected, more than prompts.max_reject_fraction={max_reject_fraction} allows; "
            "mend them, or raise the bound:\n  " + "\n  ".join(shown) + more
        )
    for line in shown:
        log.warning("rejected %s", line)
    if rejected > len(shown):
        log.warning("rejected %d more; reports/stages/prompts.json names the first %d", rejected - len(shown), EXAMPLES_PER_SOURCE)


def _total(counter: Counter[tuple[str, str]], source: Source) -> int:
    return sum(count for (label, _), count in counter.items() if label == source.label)
