"""models/vocab/: the maps come back, and maps that do not agree with each other are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from draftyard.artifacts.files import read_json
from draftyard.artifacts.vocab import read_vocab, write_vocab
from draftyard.draft.vocabulary import VocabularyMap
from draftyard.errors import ArtifactError

TARGETS = np.array([1, 2, 5, 9])
D2T = TARGETS - np.arange(4)
T2D = np.isin(np.arange(12), TARGETS)


def test_the_maps_come_back(tmp_path: Path) -> None:
    write_vocab(tmp_path / "vocab", VocabularyMap(D2T, T2D), {"size": 4})
    read = read_vocab(tmp_path / "vocab")
    assert (read.d2t.tolist(), read.t2d.tolist(), read.target_ids.tolist()) == (D2T.tolist(), T2D.tolist(), [1, 2, 5, 9])
    assert read_json(tmp_path / "vocab/vocab.json") == {"size": 4}
    assert (tmp_path / "vocab/vocab.safetensors").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"t2d": T2D}, "must hold d2t"),
        ({"d2t": D2T}, "must hold d2t"),
        ({"d2t": D2T.astype(np.int32), "t2d": T2D}, "must hold d2t .int64"),
        ({"d2t": D2T, "t2d": T2D.astype(np.uint8)}, "and t2d .bool"),
        ({"d2t": D2T[None], "t2d": T2D}, "must hold d2t .int64, one axis"),
        ({"d2t": TARGETS, "t2d": T2D}, "strictly increasing within 0..11"),  # absolute ids instead of offsets: 1, 3, 7, 12
        ({"d2t": np.array([1, 0, -1, -2]), "t2d": T2D}, "strictly increasing"),  # the same token four times
        ({"d2t": np.array([-1, 1, 3, 6]), "t2d": T2D}, "strictly increasing within 0..11"),
        ({"d2t": np.array([1, 1, 3, 60]), "t2d": T2D}, "strictly increasing within 0..11"),
        ({"d2t": np.zeros(0, dtype=np.int64), "t2d": T2D}, "strictly increasing"),
        ({"d2t": D2T, "t2d": ~T2D}, "t2d is not true exactly"),
        ({"d2t": D2T[:3], "t2d": T2D}, "t2d is not true exactly"),
    ],
)
def test_maps_that_do_not_fit_are_refused(tensors: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "vocab.safetensors")
    with pytest.raises(ArtifactError, match=message):
        read_vocab(tmp_path)


def test_a_missing_and_a_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"vocab\.safetensors: no such file; run the stage vocab"):
        read_vocab(tmp_path)
    (tmp_path / "vocab.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(ArtifactError, match=r"vocab\.safetensors: cannot be read as safetensors"):
        read_vocab(tmp_path)
