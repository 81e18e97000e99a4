"""data/hidden_states/: the verifier's states at the aux layers and at the end, in safetensors shards with an index.

A shard holds whole samples, one after the other: aux_hidden_states [N, n_aux * H], last_hidden_states [N, H] (both in
the stored dtype), token_ids int32 [N], loss_mask uint8 [N] (1 where the verifier wrote the token). last_hidden_states
is the output of the last layer BEFORE the final norm; lm_head(norm(.)) of row t is the verifier's distribution of token t+1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from draftyard.artifacts.files import digest_file, read_json, write_json
from draftyard.errors import ArtifactError

ARTIFACT = "hidden_states"
FORMAT = 1
CONVENTION = "vllm: 0 is the embedding output, i the output of layer i counted from 1"
LAST_STATE = "output of the last layer before the final norm"
TENSORS = ("aux_hidden_states", "last_hidden_states", "token_ids", "loss_mask")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One captured conversation of T tokens.

    aux: [T, n_aux * H]. last: [T, H]. token_ids: int64 [T]. loss_mask: bool [T].
    """

    id: str
    category: str
    sample: int
    aux: torch.Tensor
    last: torch.Tensor
    token_ids: torch.Tensor
    loss_mask: torch.Tensor


@dataclass(frozen=True)
class SampleRef:
    """Where a sample lies: rows [start, start + length) of a shard."""

    id: str
    category: str
    sample: int
    file: str
    start: int
    length: int


def write_shard(path: Path, samples: list[Sample], dtype: str) -> dict[str, Any]:
    """Write one shard atomically (temporary file, rename) and return its index entry: file, sha256, tokens, samples.

    Raises ArtifactError naming the sample whose states do not fit into `dtype` (float16 ends at 65504).
    """
    tensors = {
        "aux_hidden_states": torch.cat([s.aux for s in samples]).to(DTYPES[dtype]).contiguous(),
        "last_hidden_states": torch.cat([s.last for s in samples]).to(DTYPES[dtype]).contiguous(),
        "token_ids": torch.cat([s.token_ids for s in samples]).to(torch.int32),
        "loss_mask": torch.cat([s.loss_mask for s in samples]).to(torch.uint8),
    }
    for name in TENSORS[:2]:
        infinite = (~torch.isfinite(tensors[name])).any(-1)  # (N,)
        if bool(infinite.any()):
            row = int(infinite.nonzero()[0, 0])
            ends = torch.tensor([len(s.token_ids) for s in samples]).cumsum(0)
            worst = samples[int((ends > row).nonzero()[0, 0])]
            raise ArtifactError(
                f"{path.name}: {name} of sample {worst.id}/{worst.sample} are not finite in {dtype}; set hidden_states.dtype to bfloat16 or float32"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    save_file(tensors, temporary)
    temporary.chmod(0o644)
    temporary.replace(path)
    entries, start = [], 0
    for s in samples:
        length = len(s.token_ids)
        entries.append({"id": s.id, "category": s.category, "sample": s.sample, "start": start, "length": length})
        start += length
    return {"file": path.name, "sha256": digest_file(path), "tokens": start, "samples": entries}


def write_index(directory: Path, *, aux_layer_ids: Iterable[int], hidden_size: int, dtype: str, splits: dict[str, list[dict[str, Any]]]) -> None:
    """Write index.json over the shards' entries, per split."""
    write_json(
        directory / "index.json",
        {
            "format": FORMAT,
            "aux_layer_ids": list(aux_layer_ids),
            "aux_layer_convention": CONVENTION,
            "last_hidden_states": LAST_STATE,
            "hidden_size": hidden_size,
            "dtype": dtype,
            "splits": splits,
        },
    )


@dataclass
class HiddenStates:
    """Reader of a hidden-states directory. Shards are memory-mapped; a shard's digest is checked when it is first opened.

    Raises ArtifactError for an index of another format or convention, a missing or damaged shard.
    """

    directory: Path
    aux_layer_ids: list[int] = field(init=False)
    hidden_size: int = field(init=False)
    dtype: str = field(init=False)

    def __post_init__(self) -> None:
        path = self.directory / "index.json"
        index = read_json(path)
        if not isinstance(index, dict) or index.get("format") != FORMAT:
            found = index.get("format") if isinstance(index, dict) else None
            raise ArtifactError(f"{path}: format {found!r}, expected {FORMAT}; re-run the stage hidden_states")
        for key, expected in (("aux_layer_convention", CONVENTION), ("last_hidden_states", LAST_STATE)):
            if index.get(key) != expected:
                raise ArtifactError(f"{path}: {key} is {index.get(key)!r}, expected {expected!r}; re-run the stage hidden_states")
        try:
            self.aux_layer_ids = index["aux_layer_ids"]
            self.hidden_size = index["hidden_size"]
            self.dtype = index["dtype"]
            self._shards = {shard["file"]: shard for shards in index["splits"].values() for shard in shards}
            self._refs = {
                split: [SampleRef(s["id"], s["category"], s["sample"], shard["file"], s["start"], s["length"]) for shard in shards for s in shard["samples"]]
                for split, shards in index["splits"].items()
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(f"{path}: is not an index ({type(error).__name__}: {error}); re-run the stage hidden_states") from None
        self._open: dict[str, Any] = {}

    def refs(self, split: str) -> list[SampleRef]:
        """The samples of a split, in order."""
        return list(self._refs[split])

    def load(self, ref: SampleRef) -> Sample:
        """Read one sample in the stored dtype."""
        shard = self._shard(ref.file)
        rows = slice(ref.start, ref.start + ref.length)
        aux, last, token_ids, loss_mask = (shard.get_slice(name)[rows] for name in TENSORS)
        return Sample(
            id=ref.id, category=ref.category, sample=ref.sample, aux=aux, last=last, token_ids=token_ids.to(torch.int64), loss_mask=loss_mask.to(torch.bool)
        )

    def loss_mask(self, ref: SampleRef) -> torch.Tensor:
        """The loss mask of one sample, bool [T], without its states."""
        return self._shard(ref.file).get_slice("loss_mask")[ref.start : ref.start + ref.length].to(torch.bool)

    def _shard(self, name: str) -> Any:
        if name not in self._open:
            path = self.directory / name
            if Path(name).name != name or not path.is_file():
                raise ArtifactError(f"{path}: shard is missing; fetch it with dvc pull, or re-run the stage hidden_states")
            found = digest_file(path)
            if found != self._shards[name]["sha256"]:
                expected = self._shards[name]["sha256"]
                raise ArtifactError(f"{path}: digest {found}, index.json says {expected}: the shard is damaged; re-run the stage hidden_states")
            self._open[name] = self._checked(path, self._shards[name]["tokens"])
        return self._open[name]

    def _checked(self, path: Path, tokens: int) -> Any:
        """Open a shard whose tensors have the shapes that the index promises."""
        widths = {"aux_hidden_states": [len(self.aux_layer_ids) * self.hidden_size], "last_hidden_states": [self.hidden_size], "token_ids": [], "loss_mask": []}
        opened = safe_open(path, framework="pt")
        for name, width in widths.items():
            found = opened.get_slice(name).get_shape() if name in opened.keys() else None  # noqa: SIM118 (not a dict)
            if found != [tokens, *width]:
                raise ArtifactError(f"{path}: {name} has shape {found}, index.json says {[tokens, *width]}; re-run the stage hidden_states")
        return opened
