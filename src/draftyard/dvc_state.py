"""What DVC has on record: dvc.lock and its cache, read as files, so that a stage can ask while `dvc repro` runs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftyard.errors import ParamError
from draftyard.params.yaml_file import read_yaml


@dataclass(frozen=True)
class DvcState:
    """outs: output -> MD5 in dvc.lock ("....dir" for a directory). deps: stage -> dependency -> MD5.

    cache: DVC's cache directory, None where there is no repository.
    """

    outs: dict[str, str]
    deps: dict[str, dict[str, str]]
    cache: Path | None

    @classmethod
    def read(cls, root: Path) -> DvcState:
        """The state of the repository `root`."""
        try:
            lock = read_yaml(root / "dvc.lock") if (root / "dvc.lock").exists() else {}
        except ParamError:  # a merge conflict, say: then nothing is known to be held
            lock = {}
        outs, deps = {}, {}
        stages: dict[str, Any] = lock.get("stages") or {}
        for name, stage in stages.items():
            outs.update({str(out["path"]): str(out["md5"]) for out in stage.get("outs") or [] if "md5" in out})
            deps[name] = {str(dep["path"]): str(dep["md5"]) for dep in stage.get("deps") or [] if "md5" in dep}
        return cls(outs, deps, _cache_directory(root))

    def object_path(self, md5: str) -> Path | None:
        """Where the cache keeps the object `md5`, whether or not it is there."""
        return None if self.cache is None else self.cache / "files" / "md5" / md5[:2] / md5[2:]

    def listing(self, out: str) -> dict[str, str]:
        """Name -> MD5 of the files of the directory `out` as the cache knows it; empty when it does not."""
        path = self.object_path(self.outs.get(out, ""))
        try:
            return {entry["relpath"]: entry["md5"] for entry in json.loads(path.read_bytes())} if path is not None else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def holds(self, out: str, witness: Path) -> bool:
        """Whether DVC has stored `out` as the bytes that `witness` stands for.

        witness: the file itself where `out` is a file (kept in git, so dvc.lock alone counts), else the directory's lineage.json,
        which lists every other file. For a directory each object must be in the cache.
        """
        md5 = md5_file(witness)
        if not self.outs.get(out, "").endswith(".dir"):
            return self.outs.get(out) == md5
        listing = self.listing(out)
        paths = [self.object_path(name) for name in listing.values()]
        return listing.get(witness.name) == md5 and all(path is not None and path.exists() for path in paths)


def md5_file(path: Path) -> str:
    """MD5 (hex) of a file, DVC's name for its bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _cache_directory(root: Path) -> Path | None:
    """DVC's cache for the repository `root`: cache.dir of its configuration, or .dvc/cache."""
    from dvc.config import Config, ConfigError

    if not (root / ".dvc").is_dir():
        return None
    try:
        configured = Config(dvc_dir=str(root / ".dvc"))["cache"].get("dir")
    except ConfigError:
        return None
    return Path(configured) if configured else root / ".dvc" / "cache"
