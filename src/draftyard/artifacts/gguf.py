"""GGUF files (versions 2 and 3, little-endian): the header read strictly, tensors de-quantised one at a time.

The layout is that of ggml's docs/gguf.md. The `gguf` package also reads it, but turns every one of a vocabulary's 100,000 strings
into NumPy views (10 s of CPU per pass); it is used here for the block formats of the quantised types.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftyard.errors import ArtifactError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_DEPTH = 4
"""Arrays within arrays; real files have none."""

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor of the file. shape: outermost dimension first, as in PyTorch. start, num_bytes: its data in the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    start: int
    num_bytes: int


class GGUFFile:
    """An open GGUF file: `fields` (metadata key -> value) and `tensors` (name -> GGUFTensor)."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self._data = data
        cursor = _Cursor(path, data)
        if cursor.take(4) != MAGIC:
            raise ArtifactError(f"{path}: does not start with {MAGIC.decode()}: not a GGUF file")
        version = cursor.scalar("<I")
        if version not in VERSIONS:
            raise ArtifactError(f"{path}: GGUF version {version}, expected one of {VERSIONS}")
        num_tensors, num_fields = cursor.scalar("<Q"), cursor.scalar("<Q")
        cursor.expect(num_fields, 13, "fields")  # a key's length, a type, one byte
        self.fields: dict[str, Any] = {}
        for _ in range(num_fields):
            key = cursor.string()
            if key in self.fields:
                raise ArtifactError(f"{path}: field {key!r} is written twice")
            self.fields[key] = cursor.value(cursor.scalar("<I"))
        cursor.expect(num_tensors, 24, "tensors")  # a name's length, dimensions, type, offset
        self.tensors = self._read_tensors(cursor, num_tensors)

    def _read_tensors(self, cursor: _Cursor, count: int) -> dict[str, GGUFTensor]:
        described = []
        for _ in range(count):
            name, dimensions = cursor.string(), cursor.scalar("<I")
            if not 1 <= dimensions <= MAX_DIMENSIONS:
                raise ArtifactError(f"{self.path}: tensor {name!r} has {dimensions} dimensions, expected 1..{MAX_DIMENSIONS}")
            shape = tuple(cursor.scalar("<Q") for _ in range(dimensions))[::-1]
            described.append((name, shape, cursor.scalar("<I"), cursor.scalar("<Q")))
        alignment = self.fields.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ArtifactError(f"{self.path}: general.alignment={alignment!r}: must be a power of two")
        origin = -(-cursor.position // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, ggml_type, offset in described:
            block, block_bytes = _block_size(self.path, name, ggml_type)
            elements = math.prod(shape)
            num_bytes = elements // block * block_bytes
            if name in tensors or shape[-1] % block or origin + offset + num_bytes > len(self._data):
                raise ArtifactError(
                    f"{self.path}: tensor {name!r} {list(shape)} is written twice, has partial blocks, or ends beyond the file; download it again"
                )
            tensors[name] = GGUFTensor(name, shape, ggml_type, origin + offset, num_bytes)
        return tensors

    def load(self, name: str) -> NDArray[np.float32]:
        """Tensor `name` de-quantised to float32, in its shape. Raises ArtifactError for a type without a decoder."""
        import numpy as np
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        kind = GGMLQuantizationType(tensor.ggml_type)
        raw = np.frombuffer(self._data[tensor.start : tensor.start + tensor.num_bytes], np.uint8)
        plain = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}.get(kind)
        if plain is not None:
            return raw.view(plain).astype(np.float32).reshape(tensor.shape)
        try:
            return dequantize(raw.reshape(*tensor.shape[:-1], -1), kind).reshape(tensor.shape)
        except NotImplementedError:
            raise ArtifactError(
                f"{self.path}: tensor {name!r} has type {kind.name}, which this version cannot decode; choose another file of the model"
            ) from None


@contextmanager
def open_gguf(path: Path) -> Iterator[GGUFFile]:
    """Open `path` and read its header. Raises ArtifactError when it is absent, damaged, or not a GGUF file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield GGUFFile(path, data)
    except (OSError, ValueError) as error:  # ValueError: mmap of an empty file, text that is not UTF-8
        raise ArtifactError(f"{path}: cannot be read as GGUF ({error})") from None


def _block_size(path: Path, name: str, ggml_type: int) -> tuple[int, int]:
    """Elements and bytes of one block of `ggml_type`."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        return GGML_QUANT_SIZES[GGMLQuantizationType(ggml_type)]
    except (ValueError, KeyError):
        raise ArtifactError(f"{path}: tensor {name!r} has the unknown type {ggml_type}") from None


class _Cursor:
    """Reads values front to back; nothing is allocated before its size is held against the file's."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self.position = path, data, 0

    def expect(self, count: int, size: int, what: str) -> None:
        """Refuse a count of items that the rest of the file cannot hold."""
        left = len(self._data) - self.position
        if count * size > left:
            raise ArtifactError(f"{self._path}: claims {count} {what} in the {left} bytes left of the file: it is damaged, download it again")

    def take(self, count: int) -> bytes:
        self.expect(count, 1, "bytes")
        self.position += count
        return self._data[self.position - count : self.position]

    def scalar(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def string(self) -> str:
        return self.take(self.scalar("<Q")).decode("utf-8")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or depth == MAX_DEPTH:
            raise ArtifactError(f"{self._path}: value of type {kind} at byte {self.position} is unknown, or nested too deeply")
        inner, count = self.scalar("<I"), self.scalar("<Q")
        if inner in _SCALARS:
            code = _SCALARS[inner]
            self.expect(count, struct.calcsize(code), "numbers")
            return list(struct.unpack(f"<{count}{code[1]}", self.take(count * struct.calcsize(code))))
        self.expect(count, 8, "items")  # a length each
        return [self.value(inner, depth + 1) for _ in range(count)]
