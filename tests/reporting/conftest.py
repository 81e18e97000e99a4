"""A whole build's records (tests/reporting/build), copied so that a test can break one thing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BUILD = Path(__file__).parent / "build"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the recorded build."""
    return Path(shutil.copytree(BUILD, tmp_path / "build"))


@pytest.fixture
def edit(root: Path) -> Callable[[str, Callable[[Any], Any]], None]:
    """edit(path, change): rewrite a JSON file of the copy with what `change` makes of (or does to) its values."""

    def apply(path: str, change: Callable[[Any], Any]) -> None:
        values = json.loads((root / path).read_text())
        changed = change(values)
        (root / path).write_text(json.dumps(values if changed is None else changed))

    return apply
