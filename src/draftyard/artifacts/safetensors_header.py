"""Reading safetensors checkpoints of unknown origin: the header first, then single tensors in bounded chunks.

Every size that a header claims is checked against the file before anything is allocated (format: 8 bytes little-endian
header length, JSON header, data; github.com/huggingface/safetensors). One file, or shards with an index.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftyard.artifacts.untrusted import MAX_JSON_BYTES, open_regular, parse_json, printable, read_untrusted_json
from draftyard.draft.geometry import DTYPE_BYTES, TensorSpec
from draftyard.errors import ArtifactError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CHUNK_BYTES = 8 << 20
"""Bytes read at a time."""
MAX_RANK = 8
MAX_INDEX_BYTES = 64 << 20
"""Index of a verifier: 140,000 tensors of a mixture of experts take about 15 MB."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_PICKLE_STARTS = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""First bytes of a zip (torch.save) and of pickle protocols 2-5; as a header length they exceed every file."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*\.safetensors")


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies: `path`, absolute byte offset `start`, and its dtype and shape."""

    name: str
    spec: TensorSpec
    path: Path
    start: int


@dataclass(frozen=True)
class Checkpoint:
    """The headers of a checkpoint: no weights are held.

    files: the safetensors files. duplicates: tensors that lie in two shards. index_problems: sentences on what the
    index says and the shards contradict.
    """

    directory: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, TensorEntry]
    duplicates: tuple[str, ...] = ()
    index_problems: tuple[str, ...] = ()

    def specs(self) -> dict[str, TensorSpec]:
        """Tensor name -> dtype and shape."""
        return {name: entry.spec for name, entry in self.tensors.items()}

    def raw_chunks(self, name: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The tensor's bytes, in pieces of at most `chunk_bytes`."""
        yield from _read(self.tensors[name], 0, self.tensors[name].spec.num_bytes, chunk_bytes)

    def raw_words(self, name: str) -> Iterator[NDArray[Any]]:
        """The elements as unsigned integers of their width, flat, in bounded chunks: for tests on bit patterns."""
        import numpy as np

        kind = np.dtype(f"<u{DTYPE_BYTES[self.tensors[name].spec.dtype]}")
        for chunk in self.raw_chunks(name):
            yield np.frombuffer(chunk, kind)

    def rows(self, name: str, first: int, count: int) -> NDArray[np.float32]:
        """Rows [first, first + count) of a floating-point matrix as float32: (count, width)."""
        entry = self.tensors[name]
        width = entry.spec.shape[1] if len(entry.spec.shape) > 1 else 1
        row_bytes = width * DTYPE_BYTES[entry.spec.dtype]
        data = b"".join(_read(entry, first * row_bytes, (first + count) * row_bytes, CHUNK_BYTES))
        return to_float32(data, entry.spec.dtype).reshape(count, width)

    def vector(self, name: str, max_bytes: int = 64 << 20) -> NDArray[Any]:
        """A whole small tensor: int64 for integers, bool for BOOL, float32 for floats. Raises ArtifactError above `max_bytes`."""
        import numpy as np

        spec = self.tensors[name].spec
        if spec.num_bytes > max_bytes:
            raise ArtifactError(f"{name}: {spec.num_bytes} bytes, more than the {max_bytes} that such a tensor may have")
        data = b"".join(self.raw_chunks(name))
        if spec.dtype == "BOOL":
            return (np.frombuffer(data, np.uint8) != 0).reshape(spec.shape)
        if spec.dtype[0] in "IU":
            return np.frombuffer(data, f"<{spec.dtype[0].lower()}{DTYPE_BYTES[spec.dtype]}").astype(np.int64).reshape(spec.shape)
        return to_float32(data, spec.dtype).reshape(spec.shape)


def to_float32(data: bytes, dtype: str) -> NDArray[np.float32]:
    """Flat little-endian elements of BF16, F16, F32 or F64 as float32. Raises ArtifactError for another dtype."""
    import numpy as np

    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype not in ("F16", "F32", "F64"):
        raise ArtifactError(f"values of dtype {dtype} are not read: only BF16, F16, F32 and F64")
    return np.frombuffer(data, {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype]).astype(np.float32)


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of one safetensors file. Raises ArtifactError naming the file and what in it is wrong."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        if len(prefix) < 8:
            raise ArtifactError(f"{path}: {size} bytes are too few for a safetensors file; it is truncated: copy or download it again")
        (length,) = struct.unpack("<Q", prefix)
        if length > size - 8 and prefix[:2] in _PICKLE_STARTS:
            raise ArtifactError(f"{path}: is a pickle, which can run code when loaded; only safetensors are read: convert it")
        if length > size - 8:
            raise ArtifactError(f"{path}: its header claims {length} bytes, the file has {size}; it is truncated, or no safetensors file")
        if length > MAX_JSON_BYTES:
            raise ArtifactError(f"{path}: a header of {length} bytes; a checkpoint's is at most {MAX_JSON_BYTES}")
        header = parse_json(file.read(length), f"{path} (header)")
    header.pop("__metadata__", None)
    entries = {name: _entry(name, value, path, data_start=8 + length) for name, value in header.items()}
    _check_offsets(path, entries, 8 + length, size)
    return entries


def _entry(name: str, value: object, path: Path, *, data_start: int) -> TensorEntry:
    where = f"{path}: tensor {printable(name, 80)}"
    if not name or len(name) > 512:
        raise ArtifactError(f"{where}: a name has 1 to 512 characters")
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ArtifactError(f"{where}: its entry must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise ArtifactError(f"{where}: unknown dtype {printable(str(dtype), 40)}; known: {', '.join(sorted(DTYPE_BYTES))}")
    for label, numbers, longest in (("shape", shape, MAX_RANK), ("data_offsets", offsets, 2)):
        if not isinstance(numbers, list) or len(numbers) > longest or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
            raise ArtifactError(f"{where}: {label} must be at most {longest} whole numbers of at least 0")
    spec = TensorSpec(dtype, tuple(shape))
    if len(offsets) != 2 or offsets[1] - offsets[0] != spec.num_bytes:
        raise ArtifactError(f"{where}: {dtype} {shape} takes {spec.num_bytes} bytes, its data_offsets {printable(str(offsets), 60)} say otherwise")
    return TensorEntry(name, spec, path, data_start + offsets[0])


def _check_offsets(path: Path, entries: Mapping[str, TensorEntry], data_start: int, size: int) -> None:
    """The tensors must fill the file exactly: no overlap, no hole, no end beyond the file (the format's own rule)."""
    end, before = data_start, "the header"
    for entry in sorted(entries.values(), key=lambda e: (e.start, e.spec.num_bytes)):
        name = printable(entry.name, 80)
        if entry.start < end:
            raise ArtifactError(f"{path}: tensor {name} overlaps {before}; the file is damaged or was made to deceive")
        if entry.start > end:
            raise ArtifactError(f"{path}: {entry.start - end} bytes before tensor {name} belong to no tensor; the file is damaged")
        end, before = entry.start + entry.spec.num_bytes, f"tensor {name}"
    if end > size:
        raise ArtifactError(f"{path}: truncated: its tensors end at byte {end}, the file at {size}; copy or download it again")
    if end < size:
        raise ArtifactError(f"{path}: {size - end} bytes after the last tensor belong to none; the file is damaged")


def open_checkpoint(path: Path) -> Checkpoint:
    """The headers of a checkpoint: a directory (one file, or shards with an index) or one safetensors file.

    Raises ArtifactError when it cannot be read as a checkpoint at all.
    """
    try:
        if not path.is_dir():
            if path.suffix in _PICKLES:
                raise ArtifactError(f"{path}: is a pickle by its name, which can run code when loaded; only safetensors are read: convert it")
            return Checkpoint(path.parent, (path,), read_header(path))
        names = sorted(os.listdir(path))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    weights = [name for name in names if name.endswith(".safetensors")]
    if INDEX_FILE in names:
        return _open_sharded(path, weights)
    if not weights:
        pickles = [name for name in names if name.endswith(_PICKLES)]
        found = f"only pickles ({', '.join(pickles[:3])}), which can run code when loaded: convert them to safetensors" if pickles else f"no {WEIGHTS_FILE}"
        raise ArtifactError(f"{path}: {found}")
    if len(weights) > 1:
        shown = ", ".join(map(printable, weights[:3]))
        raise ArtifactError(f"{path}: {len(weights)} safetensors files ({shown}, ...) without {INDEX_FILE}: which of them belong together is not said")
    file = path / weights[0]
    return Checkpoint(path, (file,), read_header(file))


def read_weight_map(directory: Path, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, str]:
    """The index of a sharded checkpoint: tensor name -> file name, each a plain name in `directory`. Raises ArtifactError."""
    path = directory / INDEX_FILE
    weight_map = read_untrusted_json(path, max_bytes=max_bytes).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ArtifactError(f"{path}: weight_map must be an object of tensor names and file names")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _PLAIN_NAME.fullmatch(file):
            where = f"{path}: tensor {printable(name, 80)} lies in {printable(str(file), 80)!r}"
            raise ArtifactError(f"{where}: must be a plain *.safetensors name in the same directory")
    return weight_map


def _open_sharded(directory: Path, present: list[str]) -> Checkpoint:
    weight_map = read_weight_map(directory)
    files = sorted(set(weight_map.values()))
    for file in files:
        if file not in present:
            raise ArtifactError(f"{directory / INDEX_FILE}: names {file}, which is not there; copy or download the missing shard")
    tensors: dict[str, TensorEntry] = {}
    duplicates, problems = [], []
    for file in files:
        for name, entry in read_header(directory / file).items():
            if name in tensors:
                duplicates.append(name)
            elif name not in weight_map:
                problems.append(f"{printable(name, 80)} lies in {file} but is not in the index")
            elif weight_map[name] != file:
                problems.append(f"{printable(name, 80)} lies in {file}, the index says {weight_map[name]}")
            tensors.setdefault(name, entry)
    problems += [f"{printable(name, 80)} is in the index but in no shard" for name in weight_map if name not in tensors]
    problems += [f"{printable(file, 80)} is not in the index: engines will not read it" for file in present if file not in files]
    return Checkpoint(directory, tuple(directory / file for file in files), tensors, tuple(duplicates), tuple(problems))


def open_selected(directory: Path, names: tuple[str, ...]) -> Checkpoint:
    """Those of `names` that a (perhaps huge) checkpoint holds, opening only their shards. Raises ArtifactError."""
    if not (directory / INDEX_FILE).exists():
        whole = open_checkpoint(directory)
        return Checkpoint(directory, whole.files, {name: whole.tensors[name] for name in names if name in whole.tensors})
    weight_map = read_weight_map(directory, max_bytes=MAX_INDEX_BYTES)
    files = tuple(directory / file for file in sorted({weight_map[name] for name in names if name in weight_map}))
    entries = {name: entry for file in files for name, entry in read_header(file).items() if name in names}
    return Checkpoint(directory, files, entries)


def _read(entry: TensorEntry, begin: int, end: int, chunk_bytes: int) -> Iterator[bytes]:
    """Bytes [begin, end) of a tensor's data. Raises ArtifactError when the file became shorter than its header."""
    with open_regular(entry.path) as file:
        for at in range(begin, end, chunk_bytes):
            wanted = min(chunk_bytes, end - at)
            try:
                data = os.pread(file.fileno(), wanted, entry.start + at)
            except OSError as error:
                raise ArtifactError(f"{entry.path}: cannot be read ({error.strerror})") from None
            if len(data) != wanted:
                raise ArtifactError(f"{entry.path}: tensor {printable(entry.name, 80)} ends early; the file changed or the disk failed")
            yield data
