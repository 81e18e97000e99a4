"""Disk: what hidden states take, what is free, and the refusal to start what will not fit."""

from __future__ import annotations

import shutil
from pathlib import Path

from draftyard.draft.geometry import DTYPE_BYTES, DTYPE_NAMES
from draftyard.errors import DraftyardError

FLOAT8_SCALE_BYTES = 4
"""Of the float32 scale of one state in float8_e4m3 (artifacts/float8.py, which imports torch)."""


SHARDS_IN_FLIGHT = 3
"""Shards in the work area while a feature store takes them: one being stored, one finished, one being written."""


def hidden_states_bytes_per_token(hidden_size: int, num_aux_layers: int, dtype: str) -> int:
    """Bytes on disk of one token: its aux hidden states and the last one, in `dtype` ("bfloat16", ...; float8_e4m3 with its scales)."""
    state = hidden_size + FLOAT8_SCALE_BYTES if dtype == "float8_e4m3" else hidden_size * DTYPE_BYTES[DTYPE_NAMES[dtype]]
    return (num_aux_layers + 1) * state


def planned_hidden_states_bytes(num_tokens: int, *, hidden_size: int, num_aux_layers: int, dtype: str) -> int:
    """Bytes of the hidden states of `num_tokens` tokens."""
    return num_tokens * hidden_states_bytes_per_token(hidden_size, num_aux_layers, dtype)


def free_bytes(path: Path) -> int:
    """Free bytes for this user on the file system of `path`, which need not exist yet."""
    return shutil.disk_usage(existing(path)).free


def existing(path: Path) -> Path:
    """`path`, or its nearest ancestor that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


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


def directory_bytes(path: Path) -> int:
    """Bytes of all files below `path`, which need not exist; a file with several names counts once."""
    return sum({status.st_ino: status.st_size for file in path.rglob("*") if file.is_file() for status in [file.stat()]}.values())


def same_file_system(first: Path, second: Path) -> bool:
    """Whether two paths, which need not exist yet, lie on one file system."""
    return existing(first).stat().st_dev == existing(second).stat().st_dev
