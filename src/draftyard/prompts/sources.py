"""Where prompts come from: jsonl files below data/sources (the embedded ones and the user's), and data sets of the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftyard.artifacts.files import digest_file
from draftyard.artifacts.lines import Line, bounded_lines, parse_line
from draftyard.errors import ArtifactError, DraftyardError, ParamError
from draftyard.params.prompts import SOURCES_DIR
from draftyard.prompts.shapes import Row, RowError, clean_category, parse_row

DEFAULT_CATEGORY = "prompts"


@dataclass(frozen=True)
class Read:
    """One line of a source: `row` when it gives a prompt, otherwise `reason` says why not. place: "file:line"."""

    place: str
    category: str
    row: Row | None
    reason: str | None


@dataclass(frozen=True)
class FilesSource:
    """jsonl files. category: given to every row; None: the row's own, or the file's name."""

    label: str
    root: Path
    files: tuple[Path, ...]
    category: str | None

    def inputs(self) -> dict[str, str]:
        """Path below the repository -> SHA-256 of each file."""
        return {self._name(path): digest_file(path) for path in self.files}

    def read(self) -> Iterator[Read]:
        """Every line that is not blank, in order."""
        for path in self.files:
            default = self.category or clean_category(path.stem) or DEFAULT_CATEGORY
            with path.open("rb") as file:
                for line in bounded_lines(file):
                    if line.number == 1:
                        self._refuse_array(path, line)
                    yield self._line(f"{self._name(path)}:{line.number}", line, default)

    def _line(self, place: str, line: Line, default: str) -> Read:
        try:
            value = parse_line(line)
        except ValueError as error:
            return Read(place, default, None, str(error))
        return _read(place, value, self.category, default)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _refuse_array(self, path: Path, line: Line) -> None:
        if line.raw is not None and re.match(rb"\[\s*(\{|$)", line.raw):
            raise ArtifactError(
                f"{self._name(path)}:1: is one JSON array, expected one JSON object per line; convert it with: jq -c '.[]' {path.name} > {path.stem}.jsonl"
            )


@dataclass(frozen=True)
class HubSource:
    """A data set of the Hugging Face hub at a pinned revision."""

    label: str
    name: str
    revision: str
    split: str
    config: str | None
    category: str | None

    def inputs(self) -> dict[str, str]:
        """The data set's name -> its commit: what pins its content."""
        return {f"{self.name}[{self.config or 'default'},{self.split}]": self.revision}

    def read(self) -> Iterator[Read]:
        """Every row, in order; its number counts from 1."""
        default = self.category or clean_category(self.name.rpartition("/")[2]) or DEFAULT_CATEGORY
        for number, row in enumerate(self._load(), 1):
            yield _read(f"{self.label}:{number}", row, self.category, default)

    def _load(self) -> Iterator[Any]:
        try:
            import datasets
        except ImportError:
            raise DraftyardError(
                f"source {self.label}: needs the package datasets, which is not installed; pip install datasets, or use a jsonl file below {SOURCES_DIR}/"
            ) from None
        if Path(self.name).exists():
            raise DraftyardError(
                f"source {self.label}: {self.name} is also a local directory, which would be read instead of the hub; rename it, or use kind jsonl"
            )
        try:
            yield from datasets.load_dataset(self.name, self.config, split=self.split, revision=self.revision)
        except Exception as error:  # whatever the network, the hub or the data set's files do
            reason = " ".join(str(error).split())[:300]
            raise DraftyardError(
                f"source {self.label}: the data set cannot be loaded ({type(error).__name__}: {reason}); check name, config, split and revision, "
                f"and that the hub or its cache (HF_HOME) can be reached; without a network, put the rows in a jsonl file below {SOURCES_DIR}/"
            ) from None


Source = FilesSource | HubSource


def open_sources(sources: tuple[dict[str, Any], ...], root: Path) -> list[Source]:
    """The sources of params `prompts.sources` in the repository `root`; files are looked for now, rows are read later.

    Raises:
        ArtifactError: a path that is missing, holds no jsonl file, or leads out of data/sources.
    """
    opened: list[Source] = []
    labels: set[str] = set()
    for number, values in enumerate(sources):
        try:
            category = clean_category(values.get("category"))
        except RowError as error:
            raise ParamError(f"prompts.sources[{number}].category", values["category"], str(error)) from None
        if values["kind"] == "hf":
            revision, split = values["revision"], values.get("split") or "train"
            opened.append(HubSource(f"{values['name']}@{revision[:12]}[{split}]", values["name"], revision, split, values.get("config"), category))
        else:
            opened.append(FilesSource(values["path"], root, _files(root, values["path"], f"prompts.sources[{number}].path"), category))
        if opened[-1].label in labels:
            raise ParamError(f"prompts.sources[{number}]", opened[-1].label, "is listed twice")
        labels.add(opened[-1].label)
    return opened


def _files(root: Path, path: str, key: str) -> tuple[Path, ...]:
    """The jsonl file `path`, or all *.jsonl of the directory `path`, sorted by name."""
    start = root / path
    files = tuple(sorted(start.glob("*.jsonl"))) if start.is_dir() else (start,)
    if not files:
        raise ArtifactError(f"{key}={path!r}: the directory holds no .jsonl file")
    inside = (root / SOURCES_DIR).resolve()
    for file in files:
        name = file.relative_to(root).as_posix()
        if not file.exists():
            raise ArtifactError(f"{key}={path!r}: {name}: no such file; put it there, or correct the path")
        if not file.is_file():
            raise ArtifactError(f"{key}={path!r}: {name}: is not a regular file")
        if not file.resolve().is_relative_to(inside):
            raise ArtifactError(f"{key}={path!r}: {name}: leads out of {SOURCES_DIR}/, where the build would not notice a change; copy the file there")
        try:
            file.open("rb").close()
        except OSError as error:
            raise ArtifactError(f"{key}={path!r}: {name}: cannot be read ({error.strerror})") from None
    return files


def _read(place: str, value: object, category: str | None, default: str) -> Read:
    try:
        row = parse_row(value)
    except RowError as error:
        return Read(place, category or _own_category(value) or default, None, str(error))
    return Read(place, category or row.category or default, row, None)


def _own_category(value: object) -> str | None:
    """The category that a rejected row still names."""
    try:
        return clean_category(value.get("category")) if isinstance(value, Mapping) else None
    except RowError:
        return None
