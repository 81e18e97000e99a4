"""Choosing the draft vocabulary and building its maps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from draftyard.errors import ArtifactError, ParamError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class VocabularyMap:
    """The two maps. d2t: int64 [V'], offsets: draft id i stands for token i + d2t[i]. t2d: bool [V], true where a token is in the draft vocabulary."""

    d2t: NDArray[np.int64]
    t2d: NDArray[np.bool_]

    @property
    def target_ids(self) -> NDArray[np.int64]:
        """Token of each draft id, int64 [V'], strictly increasing."""
        ids: NDArray[np.int64] = np.arange(len(self.d2t), dtype=np.int64) + self.d2t
        return ids

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """d2t and t2d as torch tensors."""
        import torch

        return torch.from_numpy(self.d2t.copy()), torch.from_numpy(self.t2d.copy())


def count_tokens(token_lists: Iterable[list[int]], vocab_size: int) -> NDArray[np.int64]:
    """Occurrences of each token, int64 [V]. Raises ArtifactError for an id outside the vocabulary: the tokens are another verifier's."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for ids in token_lists:
        array = np.asarray(ids, dtype=np.int64)
        if array.size and (array.min() < 0 or array.max() >= vocab_size):
            wrong = int(array.min() if array.min() < 0 else array.max())
            raise ArtifactError(f"token id {wrong} lies outside the verifier's vocabulary of {vocab_size} tokens; re-run the stage generate")
        np.add.at(counts, array, 1)
    return counts


def choose(counts: NDArray[np.int64], draft_vocab_size: int | None, forced: Iterable[int]) -> VocabularyMap:
    """The `draft_vocab_size` most frequent tokens, with every `forced` one (EOS, special tokens) among them.

    Ties, and tokens that never occur, go by the smaller id: byte-pair ids are ordered by how early they were merged, so
    small ids are the commoner ones. None takes the whole vocabulary.
    Raises ParamError when the size exceeds the verifier's vocabulary or does not hold the forced tokens.
    """
    vocab_size = len(counts)
    size = vocab_size if draft_vocab_size is None else draft_vocab_size
    if size < 1:
        raise ParamError("draft.vocab_size", size, "must be positive, or null for the verifier's whole vocabulary")
    if size > vocab_size:
        raise ParamError("draft.vocab_size", size, f"is larger than the verifier's vocabulary of {vocab_size} tokens")
    first = sorted({i for i in forced if 0 <= i < vocab_size})
    if len(first) > size:
        raise ParamError("draft.vocab_size", size, f"is smaller than the {len(first)} special tokens that are always included")
    order = np.lexsort((np.arange(vocab_size), -counts))
    chosen = np.zeros(vocab_size, dtype=np.bool_)
    chosen[first] = True
    rest = order[~chosen[order]][: size - len(first)]
    chosen[rest] = True
    ids = np.flatnonzero(chosen).astype(np.int64)
    return VocabularyMap(ids - np.arange(len(ids), dtype=np.int64), chosen)


def coverage(counts: NDArray[np.int64], t2d: NDArray[np.bool_]) -> float:
    """Fraction of the counted occurrences inside the draft vocabulary; 1.0 without any."""
    total = int(counts.sum())
    return float(counts[t2d].sum() / total) if total else 1.0


def uncovered(counts: NDArray[np.int64], t2d: NDArray[np.bool_], limit: int) -> list[tuple[int, int]]:
    """The most frequent tokens outside the draft vocabulary: (token id, occurrences), at most `limit`."""
    outside = np.where(t2d, 0, counts)
    order = np.lexsort((np.arange(len(outside)), -outside))[:limit]
    return [(int(i), int(outside[i])) for i in order if outside[i] > 0]
