"""Writing files so that they are whole or absent, and naming their content by digest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from draftyard.errors import ArtifactError


def canonical_json(value: Any) -> bytes:
    """The one JSON text of `value`: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_json(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_directory(path: Path, exclude: tuple[str, ...] = ("lineage.json",)) -> str:
    """SHA-256 over the names and digests of all files below `path`, without those named in `exclude`."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name not in exclude)
    return digest_json({p.relative_to(path).as_posix(): digest_file(p) for p in files})


@contextlib.contextmanager
def atomic_writer(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; on success it is flushed to disk and renamed to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically as indented JSON with sorted keys and a final newline."""
    with atomic_writer(path) as file:
        json.dump(value, file, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
        file.write("\n")


def read_json(path: Path, *, max_bytes: int = 1 << 30) -> Any:
    """Read a JSON file. Raises ArtifactError naming the file when it is absent, too large or not JSON."""
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise ArtifactError(f"{path}: {size} bytes, more than the {max_bytes} expected of such a file")
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no such file; run the stage that makes it (dvc repro), or fetch it (dvc pull)") from None
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: is not valid JSON ({error})") from None
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from None


def publish_directory(built: Path, out: Path) -> None:
    """Move a finished directory to the stage's output path, replacing what is there."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists():
        shutil.rmtree(out)
    try:
        os.replace(built, out)
    except OSError:  # another file system: copy beside the output, then rename
        staging = out.with_name(f".{out.name}.incoming")
        shutil.rmtree(staging, ignore_errors=True)
        shutil.copytree(built, staging)
        os.replace(staging, out)
        shutil.rmtree(built)
