"""Checks on values: the vocabulary maps, finite numbers, tensors that hold nothing, norm weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftyard.artifacts.safetensors_header import Checkpoint
from draftyard.artifacts.untrusted import printable
from draftyard.draft.geometry import FLOAT_DTYPES
from draftyard.verification.check_report import Check, join
from draftyard.verification.subject import Draft

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAPS_HINT = "the draft's proposals would be other tokens than it means and are rejected: take d2t and t2d of the same training run"
LARGEST_NORM_WEIGHT = 1000.0
_EXPONENT = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F80_0000, "F64": 0x7FF0_0000_0000_0000, "F8_E5M2": 0x7C, "F8_E4M3": 0x7F}
"""A magnitude (bits without the sign) from here on is no finite number: IEEE 754; F8_E4M3 has one NaN and no infinity."""
_ONE = {"BF16": 0x3F80, "F16": 0x3C00, "F32": 0x3F80_0000, "F64": 0x3FF0_0000_0000_0000}


@dataclass(frozen=True)
class VocabularyMap:
    """targets: int64 (Dv), the verifier's token of each draft token. None where d2t cannot be read as a map."""

    targets: NDArray[np.int64] | None
    checks: tuple[Check, ...]


def check_vocabulary_map(draft: Draft) -> VocabularyMap:
    """d2t holds offsets (token = i + d2t[i]), strictly increasing and in range; t2d is true exactly on its image."""
    import numpy as np

    g = draft.geometry
    d2t = _read_map(draft, "d2t", g.draft_vocab_size)
    if isinstance(d2t, Check):
        return VocabularyMap(None, (d2t, Check("t2d", "skipped", "d2t is not usable")))
    if d2t is None and not g.full_vocabulary:
        detail = f"d2t is missing, although the draft vocabulary ({g.draft_vocab_size}) is smaller than the verifier's ({g.vocab_size})"
        hint = "an engine leaves the offsets at 0, so that draft token i is proposed as token i: acceptance 1.0; add d2t of the training's vocabulary"
        return VocabularyMap(None, (Check("d2t", "fail", detail, hint), Check("t2d", "skipped", "d2t is missing")))
    if d2t is None or (g.full_vocabulary and not d2t.any()):
        check = Check("d2t", "pass", f"the whole vocabulary of {g.vocab_size} tokens: {'no d2t is needed' if d2t is None else 'all offsets are 0'}")
        head = draft.spec("lm_head.weight")
        if head is None or head.num_elements < g.vocab_size:  # the config alone must not decide what is allocated
            return VocabularyMap(None, (check, Check("t2d", "skipped", "no lm_head of that many rows")))
        own = np.arange(g.vocab_size, dtype=np.int64)
        return VocabularyMap(own, (check, _check_t2d(draft, own)))
    targets = np.arange(len(d2t), dtype=np.int64) + d2t
    problem = _map_problem(targets, d2t, g.vocab_size, draft)
    if problem:
        return VocabularyMap(None, (Check("d2t", "fail", problem, MAPS_HINT), Check("t2d", "skipped", "d2t is not usable")))
    check = Check("d2t", "pass", f"offsets: {len(targets)} of {g.vocab_size} tokens, strictly increasing from {targets[0]} to {targets[-1]}")
    return VocabularyMap(targets, (check, _check_t2d(draft, targets)))


def _map_problem(targets: NDArray[np.int64], d2t: NDArray[np.int64], vocab: int, draft: Draft) -> str | None:
    import numpy as np

    t2d = _read_map(draft, "t2d", vocab)
    ids_marked = not isinstance(t2d, Check) and t2d is not None and len(np.flatnonzero(t2d)) == len(d2t) and np.array_equal(np.flatnonzero(t2d), np.sort(d2t))
    holds_ids = len(d2t) > 1 and bool((np.diff(d2t) > 0).all()) and d2t.min() >= 0 and d2t.max() < vocab
    if holds_ids and (ids_marked or targets.max() >= vocab):
        last = f"draft token {len(d2t) - 1} to {targets[-1]} in place of {d2t[-1]}"
        return f"d2t holds token ids, not offsets: token = i + d2t[i] would send {last}; write d2t[i] - i"
    if not d2t.any():
        return f"all offsets are 0: the draft vocabulary is the first {len(d2t)} token ids, which no training text suggests (an uninitialised map)"
    outside = np.flatnonzero((targets < 0) | (targets >= vocab))
    if len(outside):
        i = int(outside[0])
        return f"{len(outside)} entries leave the vocabulary of {vocab}: i + d2t[i] = {targets[i]} at i = {i}"
    steps = np.flatnonzero(np.diff(targets) <= 0)
    if len(steps):
        i, repeated = int(steps[0]), len(targets) - len(np.unique(targets))
        kind = f"{repeated} tokens occur twice" if repeated else "no token twice, but out of order, which t2d cannot express"
        return f"i + d2t[i] is not strictly increasing: {targets[i]} then {targets[i + 1]} at i = {i} ({kind})"
    return None


def _check_t2d(draft: Draft, targets: NDArray[np.int64]) -> Check:
    import numpy as np

    t2d = _read_map(draft, "t2d", draft.geometry.vocab_size)
    if isinstance(t2d, Check):
        return t2d
    if t2d is None:
        return Check("t2d", "pass", "absent; engines do not read it, d2t says everything")
    marked = np.zeros(draft.geometry.vocab_size, bool)
    marked[targets] = True
    wrong = np.flatnonzero(marked != (t2d != 0))
    if len(wrong):
        token = int(wrong[0])
        detail = (
            f"disagrees with d2t on {len(wrong)} tokens, first {token}: d2t {'reaches' if marked[token] else 'does not reach'} it, t2d says {bool(t2d[token])}"
        )
        return Check(
            "t2d",
            "fail",
            detail,
            "the two maps are of different vocabularies (a stale map): training on it selects other tokens than serving proposes; take both of one run",
        )
    return Check("t2d", "pass", f"true on exactly the {len(targets)} tokens of d2t")


def _read_map(draft: Draft, name: str, length: int) -> Any:
    """The map as an array, None when absent, or the Check that says why it cannot be used."""
    spec = draft.spec(name)
    if spec is None:
        return None
    if spec.shape != (length,):
        return Check(
            name,
            "fail",
            f"{name} has shape {list(spec.shape)}, the config asks for [{length}]",
            "the map is of another vocabulary (a stale map of an earlier run): take the one of this training",
        )
    if spec.dtype in FLOAT_DTYPES:
        return Check(name, "fail", f"{name} is {spec.dtype}, expected whole numbers", MAPS_HINT)
    return draft.checkpoint.vector(draft.names[name])


@dataclass(frozen=True)
class Content:
    """What a pass over a tensor's bits shows."""

    finite: bool
    constant: bool
    zero: bool
    one: bool
    """All values are 1.0."""


def read_content(checkpoint: Checkpoint, name: str) -> Content:
    """One pass over a floating-point tensor, in bounded chunks, on bit patterns (no conversion)."""
    dtype = checkpoint.tensors[name].spec.dtype
    largest, first, constant = 0, None, True
    for words in checkpoint.raw_words(name):
        magnitude = words & words.dtype.type((1 << (8 * words.dtype.itemsize - 1)) - 1)
        largest = max(largest, int(magnitude.max()))
        first = words[0] if first is None else first
        constant = constant and bool((words == first).all())
    return Content(finite=largest < _EXPONENT[dtype], constant=constant, zero=largest == 0, one=constant and first == _ONE.get(dtype))


def check_values(draft: Draft) -> Iterator[Check]:
    """All values finite; no tensor that holds one value; norm weights in a plausible range.

    Norm weights of 1 and biases of 0 are initial values: legal, since short or bfloat16 training may not move them, but remarked upon.
    """
    infinite, empty, untouched = [], [], []
    count = 0
    for name, actual in draft.names.items():
        spec = draft.spec(name)
        assert spec is not None
        if spec.dtype not in FLOAT_DTYPES or spec.num_elements == 0:
            continue
        count += 1
        content, shown = read_content(draft.checkpoint, actual), printable(actual)
        if not content.finite:
            infinite.append(shown)
        elif content.constant and spec.num_elements > 1:
            if (content.zero and name.endswith(".bias")) or (content.one and "norm" in name):
                untouched.append(shown)
            else:
                empty.append(f"{shown} is {'all zero' if content.zero else 'one value throughout'}")
    if infinite:
        yield Check(
            "values.finite",
            "fail",
            f"NaN or infinity in {join(infinite)}",
            "every proposal becomes garbage: the training diverged or the weights were never loaded; go back to an earlier checkpoint",
        )
    else:
        yield Check("values.finite", "pass", f"all values of {count} tensors are finite")
    if empty:
        yield Check(
            "values.constant",
            "fail",
            join(empty),
            "nobody trained this tensor, or it was never loaded: the draft cannot propose anything sensible; save it again from the training",
        )
    else:
        note = f"; still at the initial value: {join(untouched)}" if untouched else ""
        yield Check("values.constant", "pass", f"no tensor is zero or constant{note}")
    yield _check_norms(draft)


def _check_norms(draft: Draft) -> Check:
    import numpy as np

    odd, bad = [], []
    norms = [name for name in draft.names if "norm" in name and name.endswith(".weight")]
    for name in norms:
        spec = draft.spec(name)
        assert spec is not None
        if len(spec.shape) != 1 or spec.num_elements == 0 or spec.dtype not in ("BF16", "F16", "F32", "F64"):
            continue
        values = draft.checkpoint.vector(draft.names[name])
        values = values[np.isfinite(values)]
        shown = printable(draft.names[name])
        if not len(values):
            continue
        if np.abs(values).max() < 1e-4:
            bad.append(f"{shown} is at most {np.abs(values).max():.1e}: it silences its input")
        elif np.abs(values).max() > LARGEST_NORM_WEIGHT:
            odd.append(f"{shown} reaches {np.abs(values).max():.1f}")
        elif np.mean(values < 0) > 0.3:
            odd.append(f"{np.mean(values < 0):.0%} of {shown} is negative, as of random numbers")
    if bad:
        return Check("values.norms", "fail", join(bad + odd), "the layer behind the norm gets nothing: the weights were damaged or never loaded")
    if odd:
        return Check(
            "values.norms",
            "warn",
            join(odd),
            "norm weights of trained drafts are positive and of moderate size: look at the training's loss, and at how this file was made",
        )
    return Check("values.norms", "pass", f"{len(norms)} norm weights are plausible")
