"""Writing a safetensors file from streams of bytes, so that copying a checkpoint needs no memory of its size."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from draftyard.artifacts.files import atomic_writer
from draftyard.draft.geometry import DTYPE_BYTES, TensorSpec


def write_safetensors(path: Path, specs: Mapping[str, TensorSpec], read: Callable[[str], Iterable[bytes | memoryview]]) -> str:
    """Write the tensors of `specs` atomically; `read(name)` yields a tensor's bytes (little-endian, row by row). Returns the file's SHA-256, taken on the way.

    The order is the format's own (wide dtypes first, so that every tensor stays aligned, then by name): same tensors, same bytes.
    """
    ordered = sorted(specs, key=lambda name: (-DTYPE_BYTES[specs[name].dtype], name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in ordered:
        spec = specs[name]
        header[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [offset, offset + spec.num_bytes]}
        offset += spec.num_bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with atomic_writer(path, "wb") as file:

        def write(chunk: bytes | memoryview) -> int:
            file.write(chunk)
            digest.update(chunk)
            return len(chunk)

        write(struct.pack("<Q", len(text)))
        write(text)
        for name in ordered:
            written = sum(write(chunk) for chunk in read(name))
            assert written == specs[name].num_bytes, name
    return digest.hexdigest()
