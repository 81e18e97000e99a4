"""`draftyard work`: the resume areas on this machine, whether each still fits the repository, and the removal of those that do not."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from draftyard import __version__
from draftyard.artifacts.card import read_card
from draftyard.artifacts.files import digest_file, read_json
from draftyard.artifacts.lineage import FILE, package_versions, read_lineage
from draftyard.disk import directory_bytes, human_bytes
from draftyard.errors import ArtifactError, DraftyardError
from draftyard.params.load import load_file
from draftyard.progress import format_seconds
from draftyard.runtime import Runtime, load_runtime
from draftyard.stage_code import stage_code
from draftyard.work import KEY_FILE, areas, is_locked, read_finished, remove_area, stored

CARD = "models/verifier.json"
ARTIFACTS = {
    "prompts": "data/prompts",
    "generations": "data/generations",
    "hidden_states": "data/hidden_states",
    "vocab": "models/vocab",
    "draft": "models/draft",
}
SHOWN = 4
PRUNED = ("old", "stored")


@dataclass(frozen=True, kw_only=True)
class AreaState:
    """One resume area. age_seconds: since its newest file was written (0 where the clock says the future).

    state: running (a process works on it), finished (its result waits for DVC to store it), stored (DVC holds the result),
    current (a run now would go on with it), old (it would not; `differences` say why).
    """

    path: Path
    stage: str
    key: str
    num_bytes: int
    age_seconds: float
    state: Literal["running", "finished", "stored", "current", "old"]
    differences: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As `draftyard work --json` prints it."""
        return {**dataclasses.asdict(self), "path": str(self.path), "differences": list(self.differences)}


def list_areas(base: Path, root: Path) -> list[AreaState]:
    """Every resume area below `base`, held against the repository `root`. Raises ParamError for a params.yaml or runtime.yaml that is not valid."""
    found = list(areas(base))
    now = _Now.read(root) if found else None
    return [_look(path, root, now) for path in found if now is not None]


def prune(listed: list[AreaState]) -> list[AreaState]:
    """Remove the areas that no run will go on with. Returns those that are gone; one that a process has locked meanwhile stays."""
    return [area for area in listed if area.state in PRUNED and remove_area(area.path)]


def render(listed: list[AreaState], base: Path) -> str:
    """The list as people read it."""
    if not listed:
        return f"{base}: no unfinished work"
    lines = [f"{'stage':<14} {'key':<16} {'size':>9} {'age':>7}  state"]
    for area in listed:
        lines.append(f"{area.stage:<14} {area.key:<16} {human_bytes(area.num_bytes):>9} {format_seconds(area.age_seconds):>7}  {area.state}")
        lines += [f"{'':<16}{difference}" for difference in area.differences[:SHOWN]]
        if len(area.differences) > SHOWN:
            lines.append(f"{'':<16}and {len(area.differences) - SHOWN} more")
    old = [area for area in listed if area.state in PRUNED]
    if old:
        lines.append(f"{len(old)} of {len(listed)} can go ({human_bytes(sum(area.num_bytes for area in old))}): draftyard work --prune")
    return "\n".join(lines)


def _look(path: Path, root: Path, now: _Now) -> AreaState:
    try:
        described = read_json(path / KEY_FILE)
        differences = now.differences(described)
    except (ArtifactError, AttributeError, KeyError, TypeError):
        differences = [f"{KEY_FILE} is damaged: no run will find this area"]
    written = [file.lstat().st_mtime for file in path.rglob("*") if file.is_file()]
    state: Literal["running", "finished", "stored", "current", "old"] = "old" if differences else "current"
    if is_locked(path):
        state = "running"
    elif stored(path, root):
        state = "stored"
    elif read_finished(path) is not None and not differences:
        state = "finished"
    return AreaState(
        path=path,
        stage=path.parent.name,
        key=path.name,
        num_bytes=directory_bytes(path),
        age_seconds=max(0.0, time.time() - max(written, default=time.time())),
        state=state,
        differences=tuple(differences) if state in ("old", "running") else (),
    )


@dataclass(frozen=True)
class _Now:
    """What a key would be made of in the repository as it is. What only the machine decides (device, dtype) is not looked at."""

    root: Path
    params: dict[str, Any]
    runtime: Runtime
    digests: dict[str, str]

    @classmethod
    def read(cls, root: Path) -> _Now:
        digests = {}
        for kind, directory in ARTIFACTS.items():
            if (root / directory / FILE).exists():
                digests[kind] = read_lineage(root / directory, kind).digest
        if (root / CARD).exists():
            digests["verifier"] = read_card(root / CARD).digest
        return cls(root, dataclasses.asdict(load_file(root / "params.yaml")), load_runtime(root), digests)

    def differences(self, described: dict[str, Any]) -> list[str]:
        """A phrase for each part of the key `described` (as key.json holds it) that would be another one now."""
        material = described["material"]
        found = []
        for group, values in material["params"].items():
            present = _jsonable(self.params.get(group, {}))
            found += [f"{group}.{key} is now {present.get(key)!r}, was {value!r}" for key, value in values.items() if present.get(key) != value]
        for name, digest in material["inputs"].items():
            present_digest = self.digests.get(name)
            if present_digest is None and (self.root / name).is_file():
                present_digest = digest_file(self.root / name)
            if present_digest not in (None, digest):
                found.append(f"{name} has changed ({digest[:12]} -> {present_digest[:12]})")
        packages: dict[str, str] = material["packages"]
        installed = package_versions(*(name for name in packages if name != "unicode"))
        found += [f"{name} is now {installed[name]}, was {version}" for name, version in packages.items() if installed.get(name, version) != version]
        settings = {
            "engine": self.runtime.engine.batching(),
            "micro_batch_tokens": self.runtime.train.micro_batch_tokens,
            "threads": self.runtime.num_threads(),
        }
        found += [f"runtime.yaml: {name} has changed" for name, value in settings.items() if material.get(name, value) != value]
        try:
            code = stage_code(self.root, described["stage"])
        except DraftyardError:
            return [*found, f"dvc.yaml has no stage {described['stage']}"]
        found += [f"{name} has changed" for name in sorted(set(code) | set(described["code"])) if code.get(name) != described["code"].get(name)]
        if described["draftyard"] != __version__:
            found.append(f"draftyard is now {__version__}, was {described['draftyard']}")
        return found


def _jsonable(values: dict[str, Any]) -> dict[str, Any]:
    """With lists for tuples, as key.json has them."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
