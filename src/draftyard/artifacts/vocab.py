"""models/vocab/: the vocabulary maps d2t and t2d in vocab.safetensors, facts about them in vocab.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from draftyard.artifacts.files import write_json
from draftyard.artifacts.lineage import recorded_files, require_file
from draftyard.artifacts.tensor_file import tensor_file
from draftyard.draft.vocabulary import VocabularyMap
from draftyard.errors import ArtifactError

ARTIFACT = "vocab"


def write_vocab(directory: Path, vocabulary: VocabularyMap, facts: dict[str, Any]) -> None:
    """Write both files into `directory`."""
    path = directory / "vocab.safetensors"
    with tensor_file(path) as temporary:
        save_file({"d2t": vocabulary.d2t, "t2d": vocabulary.t2d}, temporary)
    write_json(directory / "vocab.json", facts)


def read_vocab(directory: Path) -> VocabularyMap:
    """Read and check the maps: dtypes, d2t strictly increasing targets in range, t2d true exactly on them. Raises ArtifactError."""
    path = directory / "vocab.safetensors"
    if not path.is_file():
        raise ArtifactError(f"{path}: no such file; run the stage vocab (dvc repro vocab), or fetch it (dvc pull)")
    if files := recorded_files(directory):
        require_file(directory, path.name, files)
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"{path}: cannot be read as safetensors ({error}); re-run the stage vocab") from None
    d2t, t2d = tensors.get("d2t"), tensors.get("t2d")
    if d2t is None or t2d is None or d2t.dtype != np.int64 or t2d.dtype != np.bool_ or d2t.ndim != 1 or t2d.ndim != 1:
        raise ArtifactError(f"{path}: must hold d2t (int64, one axis) and t2d (bool, one axis); re-run the stage vocab")
    vocabulary = VocabularyMap(d2t, t2d)
    ids = vocabulary.target_ids
    if len(ids) == 0 or ids[0] < 0 or ids[-1] >= len(t2d) or bool((np.diff(ids) <= 0).any()):
        raise ArtifactError(f"{path}: i + d2t[i] must be strictly increasing within 0..{len(t2d) - 1}; re-run the stage vocab")
    if not np.array_equal(np.flatnonzero(t2d), ids):
        raise ArtifactError(f"{path}: t2d is not true exactly on the tokens of d2t; re-run the stage vocab")
    return vocabulary
