"""Disk: what hidden states take, what is free, and the refusal to start what will not fit."""

from __future__ import annotations

import shutil
from pathlib import Path

from draftyard.draft.geometry import DTYPE_BYTES, DTYPE_NAMES
from draftyard.errors import DraftyardError


def hidden_states_bytes_per_token(hidden_size: int, num_aux_layers: int, dtype: str) -> int:
    """Bytes on disk of one token: its aux hidden states and the last one, in `dtype` ("bfloat16", ...)."""
    return (num_aux_layers + 1) * hidden_size * DTYPE_BYTES[DTYPE_NAMES[dtype]]


def planned_hidden_states_bytes(num_tokens: int, *, hidden_size: int, num_aux_layers: int, dtype: str) -> int:
    """Bytes of the hidden states of `num_tokens` tokens."""
    return num_tokens * hidden_states_bytes_per_token(hidden_size, num_aux_layers, dtype)


def free_bytes(path: Path) -> int:
    """Free bytes for this user on the file system of `path`, which need not exist yet."""
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def require_disk(path: Path, needed: int, what: str, remedy: str) -> None:
    """Raise DraftyardError unless `path` has room for `needed` bytes and 5% more."""
    free = free_bytes(path)
    if needed * 1.05 > free:
        raise DraftyardError(f"{path}: {what} takes {human_bytes(needed)}, {human_bytes(free)} are free there; {remedy}")


def human_bytes(count: float) -> str:
    """Bytes as people read them, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
