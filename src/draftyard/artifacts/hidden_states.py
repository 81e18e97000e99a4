"""data/hidden_states/: the verifier's states at the aux layers and at the end, in safetensors shards with an index.

A shard holds whole samples, one after the other: aux_hidden_states [N, n_aux * H], last_hidden_states [N, H] (both in
the stored dtype), token_ids int32 [N], loss_mask uint8 [N] (1 where the verifier wrote the token), and for float8_e4m3
scales float32 [N, n_aux + 1] (float8.py). last_hidden_states is the output of the last layer BEFORE the final norm;
lm_head(norm(.)) of row t is the verifier's distribution of token t+1. The shards lie beside the index, or in a feature store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open

from draftyard.artifacts import float8
from draftyard.artifacts.files import atomic_writer, canonical_json, digest_file, read_json
from draftyard.artifacts.lineage import recorded_files, remedy, require_file
from draftyard.artifacts.safetensors_writer import write_safetensors
from draftyard.draft.geometry import TensorSpec
from draftyard.errors import ArtifactError

ARTIFACT = "hidden_states"
FORMAT = 2
CONVENTION = "vllm: 0 is the embedding output, i the output of layer i counted from 1"
LAST_STATE = "output of the last layer before the final norm"
TENSORS = ("aux_hidden_states", "last_hidden_states", "token_ids", "loss_mask")
SCALES = "scales"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
FLOAT8 = "float8_e4m3"
STORAGES = ("outs", "store")
_CODES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3", torch.int32: "I32", torch.uint8: "U8"}


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


@dataclass(frozen=True, slots=True)
class SampleRef:
    """Where a sample lies: rows [start, start + length) of a shard."""

    id: str
    category: str
    sample: int
    file: str
    start: int
    length: int


class ShardSource(Protocol):
    """Where the shards of an index lie when they are not beside it (feature_store.FeatureStore)."""

    def shard(self, file: str, sha256: str) -> contextlib.AbstractContextManager[Path]:
        """A path of the shard, digest checked, that stays at least until the context ends."""

    def evicts(self) -> bool:
        """Whether its files can go while they are mapped."""


def write_shard(path: Path, samples: list[Sample], dtype: str) -> dict[str, Any]:
    """Write one shard atomically and return its index entry: file, sha256 (taken while writing), bytes, tokens, and a column for each fact of a sample.

    Raises ArtifactError naming the sample whose states do not fit into `dtype` (float16 ends at 65504).
    """
    tensors = _float8_states(samples) if dtype == FLOAT8 else _states(samples, DTYPES[dtype], path.name)
    tensors["token_ids"] = torch.cat([s.token_ids for s in samples]).to(torch.int32)
    tensors["loss_mask"] = torch.cat([s.loss_mask for s in samples]).to(torch.uint8)
    specs = {name: TensorSpec(_CODES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}

    def read(name: str) -> Iterator[memoryview]:
        yield tensors[name].contiguous().view(torch.uint8).flatten().numpy().data

    sha256 = write_safetensors(path, specs, read)
    return {"file": path.name, "sha256": sha256, "bytes": path.stat().st_size, "tokens": len(tensors["token_ids"]), **_columns(samples)}


def _states(samples: list[Sample], dtype: torch.dtype, file: str) -> dict[str, torch.Tensor]:
    """The states of all samples in `dtype`."""
    tensors = {"aux_hidden_states": torch.cat([s.aux for s in samples]).to(dtype), "last_hidden_states": torch.cat([s.last for s in samples]).to(dtype)}
    for name, tensor in tensors.items():
        infinite = (~torch.isfinite(tensor)).any(-1)  # (N,)
        if bool(infinite.any()):
            row = int(infinite.nonzero()[0, 0])
            ends = torch.tensor([len(s.token_ids) for s in samples]).cumsum(0)
            worst = samples[int((ends > row).nonzero()[0, 0])]
            code = str(dtype).removeprefix("torch.")
            raise ArtifactError(f"{file}: {name} of sample {worst.id}/{worst.sample} are not finite in {code}; set hidden_states.dtype to bfloat16 or float32")
    return tensors


def _float8_states(samples: list[Sample]) -> dict[str, torch.Tensor]:
    """The states of all samples in float8, and their scales; sample by sample, so that no float32 copy of a shard exists."""
    parts = []
    for s in samples:
        aux, aux_scales = float8.encode(s.aux, s.aux.shape[1] // s.last.shape[1])
        last, last_scales = float8.encode(s.last, 1)
        parts.append((aux.view(torch.uint8), last.view(torch.uint8), torch.cat((aux_scales, last_scales), 1)))
    aux, last, scales = (torch.cat(columns) for columns in zip(*parts, strict=True))
    return {"aux_hidden_states": aux.view(torch.float8_e4m3fn), "last_hidden_states": last.view(torch.float8_e4m3fn), SCALES: scales}


def _columns(samples: list[Sample]) -> dict[str, Any]:
    """Columns of the index, in the order of the rows. Columns, because there may be millions of samples; category: index into categories."""
    categories = sorted({s.category for s in samples})
    return {
        "ids": [s.id for s in samples],
        "categories": categories,
        "category": [categories.index(s.category) for s in samples],
        "sample": [s.sample for s in samples],
        "length": [len(s.token_ids) for s in samples],
    }


def _refs(shard: dict[str, Any]) -> Iterator[SampleRef]:
    """The samples of an index entry. Raises ValueError when its columns do not fit together."""
    start = 0
    for name, category, sample, length in zip(shard["ids"], shard["category"], shard["sample"], shard["length"], strict=True):
        yield SampleRef(name, shard["categories"][category], sample, shard["file"], start, length)
        start += length
    if start != shard["tokens"]:
        raise ValueError(f"the samples of {shard['file']} have {start} tokens, not {shard['tokens']}")


def write_index(
    directory: Path, *, aux_layer_ids: Iterable[int], hidden_size: int, dtype: str, splits: dict[str, list[dict[str, Any]]], storage: str = "outs"
) -> None:
    """Write index.json over the shards' entries, per split, as one line. storage: outs (the shards lie in `directory`) or store (a feature store)."""
    index = {
        "format": FORMAT,
        "aux_layer_ids": list(aux_layer_ids),
        "aux_layer_convention": CONVENTION,
        "last_hidden_states": LAST_STATE,
        "hidden_size": hidden_size,
        "dtype": dtype,
        "storage": storage,
        "splits": splits,
    }
    with atomic_writer(directory / "index.json", "wb") as file:
        file.write(canonical_json(index) + b"\n")


@dataclass(frozen=True)
class _Shard:
    sha256: str
    tokens: int


@dataclass
class HiddenStates:
    """Reader of a hidden-states directory. Shards are memory-mapped; a shard's digest is checked when it is first opened.

    store: holds the shards where the index says so. Raises ArtifactError for an index of another format or convention, a missing or damaged shard.
    """

    directory: Path
    store: ShardSource | None = None
    aux_layer_ids: list[int] = field(init=False)
    hidden_size: int = field(init=False)
    dtype: str = field(init=False)
    storage: str = field(init=False)

    def __post_init__(self) -> None:
        path = self.directory / "index.json"
        if files := recorded_files(self.directory):
            require_file(self.directory, path.name, files)
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
            self.storage = index["storage"]
            self._refs = {split: [ref for shard in shards for ref in _refs(shard)] for split, shards in index["splits"].items()}
            self._shards = {shard["file"]: _Shard(shard["sha256"], shard["tokens"]) for shards in index["splits"].values() for shard in shards}
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise ArtifactError(f"{path}: is not an index ({type(error).__name__}: {error}); re-run the stage hidden_states") from None
        self._open: dict[str, tuple[Path, Any]] = {}
        if self.dtype not in (*DTYPES, FLOAT8) or self.storage not in STORAGES:
            raise ArtifactError(f"{path}: dtype {self.dtype!r} in storage {self.storage!r} is not known; re-run the stage hidden_states")
        if self.storage == "store" and self.store is None:
            raise ArtifactError(f"{path}: its shards lie in a feature store; name it in runtime.yaml (store.url)")

    def refs(self, split: str) -> list[SampleRef]:
        """The samples of a split, in order."""
        return list(self._refs[split])

    def load(self, ref: SampleRef) -> Sample:
        """Read one sample in the stored dtype; float8 comes back as the bfloat16 that it stands for."""
        shard = self._shard(ref.file)
        rows = slice(ref.start, ref.start + ref.length)
        aux, last, token_ids, loss_mask = (shard.get_slice(name)[rows] for name in TENSORS)
        if self.dtype == FLOAT8:
            scales = shard.get_slice(SCALES)[rows]
            aux, last = float8.decode(aux, scales[:, :-1]), float8.decode(last, scales[:, -1:])
        return Sample(
            id=ref.id, category=ref.category, sample=ref.sample, aux=aux, last=last, token_ids=token_ids.to(torch.int64), loss_mask=loss_mask.to(torch.bool)
        )

    def loss_mask(self, ref: SampleRef) -> torch.Tensor:
        """The loss mask of one sample, bool [T], without its states."""
        return self._shard(ref.file).get_slice("loss_mask")[ref.start : ref.start + ref.length].to(torch.bool)

    def _shard(self, name: str) -> Any:
        if name not in self._open:
            if self.storage == "store":
                assert self.store is not None
                with self.store.shard(name, self._shards[name].sha256) as path:
                    if self.store.evicts():  # a map of a file that is gone would keep its disk space
                        self._open = {other: (kept, opened) for other, (kept, opened) in self._open.items() if kept.exists()}
                    self._open[name] = (path, self._checked(path, self._shards[name].tokens))
            else:
                path = self._own_shard(name)
                self._open[name] = (path, self._checked(path, self._shards[name].tokens))
        return self._open[name][1]

    def _own_shard(self, name: str) -> Path:
        """The path of a shard beside the index, digest checked."""
        path = self.directory / name
        if Path(name).name != name or not path.is_file():
            raise ArtifactError(f"{path}: shard is missing; fetch it with dvc pull, or re-run the stage hidden_states")
        found = digest_file(path)
        expected = self._shards[name].sha256
        if found != expected:
            raise ArtifactError(f"{path}: digest {found}, index.json says {expected}: the shard is damaged; {remedy(self.directory)}")
        return path

    def _checked(self, path: Path, tokens: int) -> Any:
        """Open a shard whose tensors have the shapes that the index promises."""
        states = len(self.aux_layer_ids) + 1
        widths = {"aux_hidden_states": [(states - 1) * self.hidden_size], "last_hidden_states": [self.hidden_size], "token_ids": [], "loss_mask": []}
        if self.dtype == FLOAT8:
            widths[SCALES] = [states]
        opened = safe_open(path, framework="pt")
        for name, width in widths.items():
            found = opened.get_slice(name).get_shape() if name in opened.keys() else None  # noqa: SIM118 (not a dict)
            if found != [tokens, *width]:
                raise ArtifactError(f"{path}: {name} has shape {found}, index.json says {[tokens, *width]}; re-run the stage hidden_states")
        return opened
