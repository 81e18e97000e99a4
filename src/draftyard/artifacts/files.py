"""Writing files so that they are whole or absent, and naming their content by digest."""

from __future__ import annotations

import contextlib
import errno
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


def file_digests(path: Path, exclude: tuple[str, ...] = ("lineage.json",)) -> dict[str, str]:
    """Name -> SHA-256 of all files below `path`, sorted, without those named in `exclude`."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name not in exclude)
    return {p.relative_to(path).as_posix(): digest_file(p) for p in files}


def digest_directory(path: Path, exclude: tuple[str, ...] = ("lineage.json",)) -> str:
    """SHA-256 over the names and digests of all files below `path`, without those named in `exclude`."""
    return digest_json(file_digests(path, exclude))


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A name beside `path` to write a file to; on success the file is flushed to disk and renamed to `path`, otherwise nothing of it stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        os.close(descriptor)
        yield temporary
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename is None:  # a write to a full disk names no file
            error.filename = str(path)
        raise


@contextlib.contextmanager
def atomic_writer(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; on success it is flushed to disk and renamed to `path`."""
    with atomic_path(path) as temporary, temporary.open(mode, encoding=None if "b" in mode else "utf-8") as file:
        yield file


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


def link_or_copy(source: Path, target: Path) -> None:
    """Give the file `source` the second name `target` without a second copy; on another file system, or one without hard links, copy it.

    Both names may from then on lead to the same bytes: neither is ever written to, only replaced.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        shutil.copyfile(source, target)
        target.chmod(0o644)


def publish_linked(built: Path, out: Path) -> None:
    """Make `out` the finished file or directory `built`, replacing what is there. `built` stays; a directory's bytes are shared (see `link_or_copy`).

    `out` is whole or absent at every moment.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = out.with_name(f".{out.name}.incoming")
    _remove(staging)  # of a run that was killed here
    try:
        if built.is_file():
            shutil.copyfile(built, staging)
        for source in sorted(p for p in built.rglob("*") if p.is_file()):
            target = staging / source.relative_to(built)
            target.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(source, target)
        if out.is_dir():
            shutil.rmtree(out)
        os.replace(staging, out)
    except BaseException:
        with contextlib.suppress(OSError):
            _remove(staging)
        raise


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
