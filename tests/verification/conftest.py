"""Checkpoints shared by the tests of check and export; built once per session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verification.checkpoints import build_draft, build_midlayer, build_verifier


@pytest.fixture(scope="session")
def verifier_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_verifier(tmp_path_factory.mktemp("verifier"))


@pytest.fixture(scope="session")
def draft_dir(tmp_path_factory: pytest.TempPathFactory, verifier_dir: Path) -> Path:
    return build_draft(tmp_path_factory.mktemp("draft"), verifier_dir)


@pytest.fixture(scope="session")
def midlayer_dir(tmp_path_factory: pytest.TempPathFactory, draft_dir: Path) -> Path:
    return build_midlayer(tmp_path_factory.mktemp("midlayer"), draft_dir)
