"""Prompts on disk while they are sorted out, so that memory does not grow with their text."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from draftyard.artifacts.files import canonical_json
from draftyard.artifacts.prompts import Prompt, prompt_from_row, prompt_to_row


class PromptSpool(Sequence[Prompt]):
    """An append-only sequence of prompts in the temporary file `path`, which closing removes. Costs 8 bytes of memory per prompt."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w+b")
        self._ends = array("Q", [0])

    def append(self, prompt: Prompt) -> None:
        """Add a prompt at the end."""
        self._file.seek(self._ends[-1])
        self._ends.append(self._ends[-1] + self._file.write(canonical_json(prompt_to_row(prompt))))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        start, end = self._ends[index % len(self)], self._ends[index % len(self) + 1]
        self._file.seek(start)
        return prompt_from_row(json.loads(self._file.read(end - start)))

    def __enter__(self) -> PromptSpool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)
