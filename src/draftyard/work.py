"""The resume area: <work>/<stage>/<key>/, where work waits under a key of everything that shapes it until DVC holds the result.

    key.json        what the key stands for
    ...             what the stage keeps while it works: shards, resume points
    outs/           the finished outputs under their paths in the repository, and finished.json, written last
    ../<key>.lock   held by the process that works here

A finished area stays: DVC deletes a stage's outputs before it runs the stage again, so a kill between the end of the stage and
the end of DVC's own book-keeping would lose them. The next stage that starts removes it once DVC holds the result (`sweep`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from draftyard import __version__
from draftyard.artifacts.files import digest_file, digest_json, publish_linked, read_json, write_json
from draftyard.artifacts.lineage import FILE, recorded_files
from draftyard.dvc_state import DvcState
from draftyard.errors import ArtifactError, DraftyardError

log = logging.getLogger(__name__)
KEY_FILE = "key.json"
FINISHED_FILE = "finished.json"
OUTS = "outs"


class WorkArea:
    """A directory for one stage under one configuration, locked for this process.

    The key covers `material` (params, input digests, package versions, what the machine adds) and `code` (name -> digest
    of each module that can change the result): shards of two configurations never meet. Use as a context manager; the lock goes with the process.

    Raises:
        DraftyardError: another process works on the same key.
    """

    def __init__(self, base: Path, stage: str, material: Mapping[str, Any], code: Mapping[str, str]) -> None:
        self._described = {"stage": stage, "material": dict(material), "code": dict(code), "draftyard": __version__}
        self.key = digest_json(self._described)[:16]
        self.path = base / stage / self.key
        self.outs = self.path / OUTS
        self._lock: int | None = None

    def __enter__(self) -> WorkArea:
        self._lock = lock_area(self.path)
        if self._lock is None:
            raise DraftyardError(f"{self.path}: another process is building this; wait for it, or stop it")
        self.path.mkdir(parents=True, exist_ok=True)
        for left_over in self.path.rglob(".*"):  # what a killed atomic write left, at any depth: it must never be published
            if left_over.is_file():
                left_over.unlink()
        write_json(self.path / KEY_FILE, self._described)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """The JSON result `name` of this area: read back where an earlier run left it whole, else made and kept."""
        path = self.path / name
        if self.has(name):
            log.info("%s was measured by an earlier run", path.stem)
            return read_json(path)["value"]
        value = make()
        write_json(path, {"value": value, "sha256": digest_json(value)})
        return read_json(path)["value"]

    def has(self, name: str) -> bool:
        """Whether an earlier run left the JSON result `name` whole."""
        with contextlib.suppress(ArtifactError, KeyError, TypeError):
            kept = read_json(self.path / name)
            return bool(digest_json(kept["value"]) == kept["sha256"])
        return False

    def new_out(self, out: str) -> Path:
        """An empty place below outs/ for the output `out`, a path in the repository."""
        (self.path / FINISHED_FILE).unlink(missing_ok=True)
        path = self.outs / out
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def finish(self, root: Path, outs: tuple[str, ...]) -> None:
        """Declare the outputs below outs/ whole, and publish them in the repository `root`. Directories hold a lineage.json."""
        digests = {out: _identity(self.outs / out) for out in outs}
        write_json(self.path / FINISHED_FILE, {"root": str(root), "outs": digests})
        self._publish(root, outs)

    def publish_finished(self, root: Path) -> bool:
        """Publish the outputs that an earlier run finished here, after reading them once. Returns False when there are none, or they are damaged."""
        finished = read_finished(self.path)
        if finished is None:
            return False
        for out, digest in finished["outs"].items():
            if reason := _damage(self.outs / out, digest):
                log.warning("%s was finished by an earlier run, but %s; it is made again", out, reason)
                (self.path / FINISHED_FILE).unlink()
                return False
        log.info("finished by an earlier run whose result DVC had not stored yet; nothing is computed again (%s)", self.path)
        write_json(self.path / FINISHED_FILE, {**finished, "root": str(root)})
        self._publish(root, tuple(finished["outs"]))
        return True

    def _publish(self, root: Path, outs: tuple[str, ...]) -> None:
        for out in outs:
            try:
                publish_linked(self.outs / out, root / out)
            except OSError as error:
                raise DraftyardError(
                    f"{root / out}: cannot be written ({error.strerror or error}); the finished result is kept in {self.path}: mend that and run again"
                ) from error


def lock_area(path: Path) -> int | None:
    """The descriptor of the lock file of the area `path`, locked; None when another process holds it.

    A lock on a file that `remove_area` has just removed is none: then the new one is tried.
    """
    lock_path = path.with_name(f"{path.name}.lock")
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        lock = os.open(lock_path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_ino == lock_path.stat().st_ino:
                return lock
        except BlockingIOError:
            os.close(lock)
            return None
        except FileNotFoundError:
            pass
        os.close(lock)


def is_locked(path: Path) -> bool:
    """Whether a process works on the area `path`."""
    lock = lock_area(path)
    if lock is not None:
        os.close(lock)
    return lock is None


def remove_area(path: Path) -> bool:
    """Remove the area `path` with its lock file, unless a process works on it. Returns whether it is gone."""
    lock = lock_area(path)
    if lock is None:
        return False
    try:
        # A kill in the middle leaves an area that says neither that it is finished nor nothing at all: it is still listed.
        (path / FINISHED_FILE).unlink(missing_ok=True)
        for child in [child for child in path.iterdir() if child.name != KEY_FILE]:
            if child.is_dir():
                shutil.rmtree(child)
            else:
                child.unlink()
        shutil.rmtree(path)
        path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    finally:
        os.close(lock)
    return True


def areas(base: Path) -> Iterator[Path]:
    """Every resume area below the work directory `base`, in the order of their names."""
    yield from (path.parent for path in sorted(base.glob(f"*/*/{KEY_FILE}")))


def read_finished(path: Path) -> dict[str, Any] | None:
    """What the area `path` has finished ({"root", "outs": output -> digest}); None when it has not, or the record is damaged."""
    try:
        finished = read_json(path / FINISHED_FILE)
        return {"root": str(finished["root"]), "outs": {str(out): str(digest) for out, digest in finished["outs"].items()}}
    except (ArtifactError, KeyError, TypeError, AttributeError):
        return None


def stored(path: Path, root: Path) -> bool:
    """Whether DVC holds everything that the area `path` finished for the repository `root`: then the area is needed no more."""
    finished = read_finished(path)
    if finished is None or finished["root"] != str(root):
        return False
    state = DvcState.read(root)
    for out in finished["outs"]:
        source = path / OUTS / out
        held = state.holds(out, source / FILE if source.is_dir() else source)
        if not held:
            return False
    return True


def abandoned(path: Path) -> bool:
    """Whether the area `path` finished for a repository that does not exist any more."""
    finished = read_finished(path)
    return finished is not None and not Path(finished["root"]).exists()


def sweep(base: Path, root: Path) -> None:
    """Remove every finished area of this repository whose result DVC holds, or whose repository is gone: the copy of a queued
    experiment, which DVC deletes at its end. Says so. Called when a stage starts.
    """
    for path in areas(base):
        try:
            if (stored(path, root) or abandoned(path)) and remove_area(path):
                log.info("removed %s: DVC holds its result, or its experiment is over", path)
        except OSError as error:
            if error.errno != errno.ENOENT:  # another process was faster
                log.warning("%s could not be removed (%s)", path, error.strerror)


def _identity(path: Path) -> str:
    """What names the bytes of a finished output: of a directory its lineage, which lists every file."""
    return digest_file(path / FILE if path.is_dir() else path)


def _damage(path: Path, digest: str) -> str | None:
    """Why the finished output `path` is not what it was, or None."""
    if not path.exists() or (path.is_dir() and not (path / FILE).exists()):
        return f"{path} is missing"
    if _identity(path) != digest:
        return f"{path} has changed"
    for name, expected in recorded_files(path).items() if path.is_dir() else ():
        if not (path / name).is_file() or digest_file(path / name) != expected:
            return f"{path / name} is missing or has changed"
    return None
