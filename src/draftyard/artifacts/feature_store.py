"""The feature store: shards of hidden states under their digests, outside DVC, so that DVC never hashes terabytes.

    objects/<first two>/<sha256>.safetensors   a shard; never changed, only added and removed
    builds/<key>/<shard>.json                  its index entry, written once the shard is there; <key>: everything that shapes the states

The store is a directory (read in place) or an fsspec URL such as s3://bucket/path (read through a local cache). data/hidden_states/index.json
names each shard by its digest; where the store lies is not part of any artifact (runtime.yaml).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from draftyard.artifacts.files import atomic_path, atomic_writer, canonical_json, link_or_copy, read_json
from draftyard.artifacts.shards import entry_path, write_entry
from draftyard.disk import human_bytes, require_disk
from draftyard.errors import ArtifactError, DraftyardError, ParamError
from draftyard.runtime import Runtime, repository
from draftyard.verifier_files import remembered_digest

AREA = "features"
"""In the work directory: cached shards, and the digests of shards that were read once."""
REMAKE = "dvc repro --force --single-item hidden_states"
REMEDY = f"draftyard store lists what is missing; {REMAKE} makes that alone again"
_SHA256 = re.compile("[0-9a-f]{64}")
_CHUNK = 8 << 20


class FeatureStore:
    """Shards by digest in a directory or behind a URL. cache_bytes bounds the local copies of a store behind a URL.

    Raises (every method):
        DraftyardError: the store cannot be reached, or the URL's protocol needs a package that is not installed.
    """

    def __init__(self, url: str, work: Path, cache_bytes: int) -> None:
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        self.url = url
        with self._reached():
            self._fs, base = fsspec.core.url_to_fs(url)
        self._base = str(base).rstrip("/")
        self.directory = Path(self._base) if isinstance(self._fs, LocalFileSystem) else None
        """The store itself where it is a directory, else None."""
        self._work = work / AREA
        self._cache = self._work / "cache"
        self._cache_bytes = cache_bytes

    @contextlib.contextmanager
    def shard(self, file: str, sha256: str) -> Iterator[Path]:
        """A local path of a shard whose digest was checked; the file is only sure to stay until the context ends (an open file or map outlives it).

        file: its name in the index, for errors. Raises ArtifactError when it is missing or damaged.
        """
        if self.directory is not None:
            path = self.directory / _object(sha256)
            if not path.is_file():
                raise self._missing(file, sha256)
            self._check(path, file, sha256)
            yield path
            return
        with self._locked():
            path = self._cache / f"{sha256}.safetensors"
            if not path.is_file():
                self._fetch(file, sha256, path)
            self._check(path, file, sha256)
            yield path

    def evicts(self) -> bool:
        """Whether a shard that was read can leave this machine again, so that whoever maps it should let go."""
        return self.directory is None

    def size(self, sha256: str) -> int | None:
        """Bytes of a shard, None when the store does not have it."""
        with self._reached():
            try:
                return int(self._fs.size(f"{self._base}/{_object(sha256)}"))
            except FileNotFoundError:
                return None

    def put(self, source: Path, sha256: str) -> None:
        """Store the shard `source`, unless a file of its size is there under its digest. A directory gets a second name of the file where it can."""
        if self.size(sha256) == source.stat().st_size:
            return
        name = _object(sha256)
        with self._reached():
            if self.directory is None:
                self._fs.put_file(str(source), f"{self._base}/{name}")
                return
            target = self.directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            staging = target.with_name(f".{sha256}.{os.getpid()}")
            staging.unlink(missing_ok=True)
            link_or_copy(source, staging)
            os.replace(staging, target)

    def remove(self, sha256: str) -> None:
        """Remove a shard, so that the stage makes it again."""
        with self._reached():
            self._fs.rm(f"{self._base}/{_object(sha256)}")

    def digest(self, sha256: str) -> str:
        """SHA-256 of what lies under the digest `sha256`, read once from end to end."""
        digest = hashlib.sha256()
        with self._reached(), self._fs.open(f"{self._base}/{_object(sha256)}", "rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
        return digest.hexdigest()

    def read_entry(self, key: str, shard: str) -> dict[str, Any] | None:
        """The index entry of `shard` (its file's stem) in the build `key`; None when there is none, or its shard is not in the store."""
        with self._reached():
            try:
                text = self._fs.cat_file(f"{self._base}/builds/{key}/{shard}.json")
            except FileNotFoundError:
                return None
        entry = _parse_entry(text)
        return entry if entry is not None and self.size(entry["sha256"]) == entry["bytes"] else None

    def write_entry(self, key: str, shard: str, entry: dict[str, Any]) -> None:
        """Declare `shard` of the build `key` stored."""
        content, name = canonical_json(entry) + b"\n", f"builds/{key}/{shard}.json"
        with self._reached():
            if self.directory is None:
                self._fs.pipe_file(f"{self._base}/{name}", content)
                return
            with atomic_writer(self.directory / name, "wb") as file:
                file.write(content)

    def _fetch(self, file: str, sha256: str, path: Path) -> None:
        """Bring a shard into the cache; the oldest ones make room."""
        size = self.size(sha256)
        if size is None:
            raise self._missing(file, sha256)
        if size > self._cache_bytes:
            raise ParamError("store.cache_gib", self._cache_bytes / (1 << 30), f"the shard {file} alone has {human_bytes(size)}: raise it in runtime.yaml")
        cached = sorted((status.st_mtime_ns, status.st_size, p) for p in self._cache.glob("*.safetensors") for status in [p.stat()])
        total = sum(bytes_ for _, bytes_, _ in cached)
        for _, bytes_, oldest in cached:
            if total + size <= self._cache_bytes:
                break
            oldest.unlink()
            total -= bytes_
        with self._reached(), atomic_path(path) as temporary:
            self._fs.get_file(f"{self._base}/{_object(sha256)}", str(temporary))

    def _check(self, path: Path, file: str, sha256: str) -> None:
        found = remembered_digest(path, self._work / "digests").sha256
        if found == sha256:
            return
        if self.directory is None:
            path.unlink()
        raise ArtifactError(f"{self.url}: shard {file}: digest {found}, index.json says {sha256}: it is damaged; remove it with draftyard store --drop-damaged")

    def _missing(self, file: str, sha256: str) -> ArtifactError:
        return ArtifactError(f"{self.url}: shard {file} ({_object(sha256)}) is missing; {REMEDY}")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time changes the cache, or opens what is in it."""
        self._cache.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._work / "cache.lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Tell any failure of a file system that fsspec found with the store's name; each has exceptions of its own."""
        try:
            yield
        except DraftyardError:
            raise
        except ImportError as error:
            raise DraftyardError(f"{self.url}: {error}; install what the protocol needs (docs/remotes.md)") from None
        except Exception as error:
            raise DraftyardError(f"{self.url}: the feature store failed ({type(error).__name__}: {' '.join(str(error).split())})") from error


def find_store(root: Path, runtime: Runtime, work: Path) -> FeatureStore | None:
    """The store that runtime.yaml names, None when it names none. A relative directory is relative to the repository."""
    url = runtime.store.url
    if url is None:
        return None
    if "://" not in url:
        url = os.path.abspath(repository(root) / url)
    return FeatureStore(url, work, int(runtime.store.cache_gib * (1 << 30)))


def open_store(root: Path, runtime: Runtime, work: Path) -> FeatureStore:
    """The store that runtime.yaml names. Raises ParamError when it names none."""
    store = find_store(root, runtime, work)
    if store is None:
        raise ParamError("store.url", None, "hidden_states.storage is store: name a directory or a URL in runtime.yaml")
    return store


class StoredShards:
    """The finished shards of one build, kept in a feature store (see shards.KeptShards). One shard is stored while the next is made.

    Use as a context manager: at its end everything is stored. A shard that could not be stored stays in the work area, and is stored by the next run.
    """

    def __init__(self, store: FeatureStore, key: str) -> None:
        self._store, self._key = store, key
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="feature-store")
        self._running: Future[None] | None = None

    def require_room(self, needed: int) -> None:
        """Raise DraftyardError unless a store that is a directory has room for what is missing of `needed` bytes."""
        directory = self._store.directory
        if directory is not None:
            held = sum(read_json(path)["bytes"] for path in (directory / "builds" / self._key).glob("*.json"))
            require_disk(directory, needed - held, "the hidden states", "make room there, or name another store.url in runtime.yaml")

    def find(self, path: Path) -> dict[str, Any] | None:
        """The index entry of a finished shard; None when it is to be made. path: where it would be made."""
        entry = self._store.read_entry(self._key, path.stem)
        if entry is None and path.exists() and entry_path(path).exists():
            entry = read_json(entry_path(path))
            self.keep(path, entry)
        return entry

    def keep(self, path: Path, entry: dict[str, Any]) -> None:
        """Store the shard `path` that was just written, in the background, and remove it here. Raises what became of the one before."""
        write_entry(path, entry)
        self._wait()
        self._running = self._pool.submit(self._put, path, entry)

    def _put(self, path: Path, entry: dict[str, Any]) -> None:
        self._store.put(path, entry["sha256"])
        self._store.write_entry(self._key, path.stem, entry)
        path.unlink()
        entry_path(path).unlink()

    def _wait(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            running.result()

    def __enter__(self) -> StoredShards:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._wait()
        finally:
            self._pool.shutdown()


def _object(sha256: str) -> str:
    """Where the store keeps a shard. The digest comes from a file: it must be one before it becomes part of a path."""
    if _SHA256.fullmatch(sha256) is None:
        raise ArtifactError(f"index.json: {sha256!r} is not a SHA-256; re-run the stage hidden_states")
    return f"objects/{sha256[:2]}/{sha256}.safetensors"


def _parse_entry(text: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(text)
        complete = isinstance(entry, dict) and _SHA256.fullmatch(entry["sha256"]) is not None and isinstance(entry["bytes"], int)
    except (ValueError, KeyError, TypeError):
        complete = False
    return entry if complete else None
