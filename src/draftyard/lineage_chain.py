"""`draftyard lineage`: the chain from the sources of the prompts to an artifact, with digests, and where two links do not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftyard.artifacts.card import read_card
from draftyard.artifacts.files import digest_file, read_json
from draftyard.artifacts.lineage import FILE, read_lineage
from draftyard.dvc_state import DvcState, md5_file
from draftyard.errors import ArtifactError, DraftyardError

SHORT = 12
STATIC = "static.json"


@dataclass(frozen=True)
class Kind:
    """An artifact of the build: where it lies, which stage makes it, which kinds it is made from."""

    path: str
    stage: str
    inputs: tuple[str, ...]


KINDS = {
    "prompts": Kind("data/prompts", "prompts", ()),
    "verifier": Kind("models/verifier.json", "verifier", ()),
    "generations": Kind("data/generations", "generate", ("prompts", "verifier")),
    "hidden_states": Kind("data/hidden_states", "hidden_states", ("generations", "verifier")),
    "vocab": Kind("models/vocab", "vocab", ("generations", "verifier")),
    "draft": Kind("models/draft", "train", ("hidden_states", "vocab", "verifier")),
    "verify": Kind("reports/verify", "verify", ("draft", "hidden_states", "vocab", "verifier")),
    "report": Kind("reports/metrics.json", "report", ("verify",)),
}
"""In the order of the build."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """One artifact of a chain. digest: of what is here, None when it is not. inputs: name -> digest it was made from. problems: what does not fit."""

    kind: str
    path: str
    digest: str | None
    inputs: dict[str, str]
    problems: tuple[str, ...]


def chain(root: Path, artifact: str, *, files: bool = False) -> list[Link]:
    """The links from the sources to `artifact` (a kind, or a path in the repository), in the order of the build.

    files: read every file, in the work tree and in DVC's cache, and hold it against its digest.
    Raises DraftyardError for an artifact that the build does not know.
    """
    wanted = _kind(artifact)
    needed = {wanted}
    for kind in reversed(KINDS):
        if kind in needed:
            needed.update(KINDS[kind].inputs)
    found: dict[str, tuple[str | None, dict[str, str], list[str]]] = {kind: _read(root, kind) for kind in KINDS if kind in needed}
    state = DvcState.read(root)
    links = []
    for kind, (digest, inputs, problems) in found.items():
        problems = problems + list(_misfits(root, kind, inputs, {name: value[0] for name, value in found.items()}))
        if files and digest is not None:
            problems += list(_damage(root, kind, state))
        links.append(Link(kind=kind, path=KINDS[kind].path, digest=digest, inputs=inputs, problems=tuple(problems)))
    return links


def render(links: list[Link]) -> str:
    """The chain as people read it: each artifact with its digest, below it what it was made from."""
    lines = []
    for link in links:
        lines.append(f"{link.path:<24} {link.digest[:SHORT] if link.digest else 'not here'}")
        lines += [f"    from {name} {digest[:SHORT]}" for name, digest in sorted(link.inputs.items())]
        lines += [f"  ! {problem}" for problem in link.problems]
    broken = sum(len(link.problems) for link in links)
    lines.append(f"{broken} do not fit" if broken else f"all {len(links)} fit")
    return "\n".join(lines)


def to_json(links: list[Link]) -> dict[str, Any]:
    """As `draftyard lineage --json` prints it."""
    return {"status": "fail" if any(link.problems for link in links) else "pass", "links": [dataclasses.asdict(link) for link in links]}


def _kind(artifact: str) -> str:
    path = artifact.rstrip("/")
    for name, kind in KINDS.items():
        if path == name or path == kind.path or Path(path).is_relative_to(kind.path):
            return name
    if Path(path).parts[:1] == ("reports",):
        return "report"
    raise DraftyardError(f"{artifact}: is no artifact of this build; known: {', '.join(kind.path for kind in KINDS.values())}")


def _read(root: Path, kind: str) -> tuple[str | None, dict[str, str], list[str]]:
    """Digest, inputs and problems of what lies at the place of `kind`."""
    path = root / KINDS[kind].path
    try:
        if kind == "verifier":
            return read_card(path).digest, {}, []
        if kind == "verify":
            return digest_file(path / STATIC), dict(read_json(path / STATIC)["made_from"]), []
        if kind == "report":
            return digest_file(path), {}, []
        lineage = read_lineage(path, kind)
        return lineage.digest, lineage.inputs, []
    except FileNotFoundError:
        return None, {}, [f"is not here: run dvc repro {KINDS[kind].stage}, or dvc pull"]
    except (ArtifactError, KeyError, TypeError) as error:
        return None, {}, [str(error) if isinstance(error, ArtifactError) else f"{path}: does not say what it was made from; run dvc repro {KINDS[kind].stage}"]


def _misfits(root: Path, kind: str, inputs: dict[str, str], digests: dict[str, str | None]) -> Iterator[str]:
    """A sentence for each input that is another one here than the artifact was made from."""
    stage = KINDS[kind].stage
    for name, used in sorted(inputs.items()):
        present = digests.get(name)
        if name not in KINDS and (root / name).is_file():
            present = digest_file(root / name)
        if present is not None and present != used:
            where = KINDS[name].path if name in KINDS else name
            yield f"was made from {name} {used}, but {where} is {present}: run dvc repro {stage}"
    if kind == "report":
        recorded = DvcState.read(root).deps.get(stage, {})
        for name, used in sorted(recorded.items()):
            if name.startswith(KINDS["verify"].path) and (root / name).is_file() and md5_file(root / name) != used:
                yield f"was made from {name} with MD5 {used}, here it has {md5_file(root / name)}: run dvc repro {stage}"


def _damage(root: Path, kind: str, state: DvcState) -> Iterator[str]:
    """A sentence with the remedy for each file, here or in DVC's cache, that is not what its digest says."""
    directory, out, stage = root / KINDS[kind].path, KINDS[kind].path, KINDS[kind].stage
    listed = read_lineage(directory, kind).files if (directory / FILE).exists() else {}
    cached = state.listing(out)
    for name in sorted({*listed, *cached} - {FILE}):
        path, expected = directory / name, listed.get(name)
        here = digest_file(path) if path.is_file() else None
        object_path = state.object_path(cached[name]) if name in cached else None
        in_cache = md5_file(object_path) if object_path is not None and object_path.is_file() else None
        again = f"rm -rf {out}; dvc pull {out}, or, where no remote has it, dvc repro --force --single-item {stage}"
        if in_cache is not None and in_cache != cached[name]:
            # DVC would link this object into the work tree again, also after the stage has made the right bytes anew.
            yield f"{object_path} in DVC's cache, the copy of {out}/{name}, is damaged. Mend: rm -f {object_path}; {again}"
        elif here != expected and in_cache is not None:
            yield f"{out}/{name} is {'damaged' if here else 'missing'}, DVC's cache has it whole. Mend: rm -f {out}/{name}; dvc checkout {out}"
        elif here != expected:
            yield f"{out}/{name} is {'damaged' if here else 'missing'}, DVC's cache has no copy. Mend: {again}"
