"""The resume area: .work/<stage>/<key>/, where unfinished work waits under a key of everything that shapes it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftyard import __version__
from draftyard.artifacts.files import digest_file, digest_json, read_json, write_json
from draftyard.errors import DraftyardError

KEY_FILE = "key.json"
PACKAGE_DIR = Path(__file__).parent


class WorkArea:
    """A directory for one stage under one configuration, locked for this process.

    The key covers `material` (params, input digests, package versions) and the source text of the package modules
    in `modules`: shards of two configurations never meet. Use as a context manager; the lock goes with the process.

    Raises:
        DraftyardError: another process works on the same key.
    """

    def __init__(self, base: Path, stage: str, material: dict[str, Any], modules: tuple[str, ...]) -> None:
        code = {name: digest_file(PACKAGE_DIR / name) for name in modules}
        described = {"material": material, "code": code, "draftyard": __version__}
        self.key = digest_json(described)[:16]
        self.path = base / stage / self.key
        self._lock_path = base / stage / f"{self.key}.lock"
        self._described = described
        self._lock: int | None = None

    def __enter__(self) -> WorkArea:
        self._lock = self._acquire()
        self.path.mkdir(parents=True, exist_ok=True)
        for left_over in self.path.rglob(".*"):  # what a killed atomic write left, at any depth: it must never be published
            if left_over.is_file():
                left_over.unlink()
        write_json(self.path / KEY_FILE, self._described)
        return self

    def _acquire(self) -> int:
        """The descriptor of the lock file, locked. A lock on a file that `discard` has just removed is none: then try the new one."""
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            lock = os.open(self._lock_path, os.O_CREAT | os.O_RDWR, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_ino == self._lock_path.stat().st_ino:
                    return lock
            except BlockingIOError:
                os.close(lock)
                raise DraftyardError(f"{self.path}: another process is building this; wait for it, or stop it") from None
            except FileNotFoundError:
                pass
            os.close(lock)

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """The JSON result `name` of this area: read back where a killed run left it, else made and kept."""
        path = self.path / name
        if not path.exists():
            write_json(path, make())
        return read_json(path)

    def discard(self) -> None:
        """Remove the area after its result has been published."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock_path.unlink(missing_ok=True)
