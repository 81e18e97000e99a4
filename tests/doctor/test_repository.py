"""git, DVC, and remotes that answer, are empty, are gone, or hang."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from draftyard.doctor import repository


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A DVC repository with three remotes: a directory with something in it, one that dvc push would make, and one on a disk that is not mounted."""
    root = tmp_path / "repository"
    (root / ".dvc").mkdir(parents=True)
    (tmp_path / "full/files/md5").mkdir(parents=True)
    urls = {"full": tmp_path / "full", "new": tmp_path / "new", "gone": tmp_path / "no/such/disk"}
    text = "[core]\n    no_scm = true\n    analytics = false\n"
    (root / ".dvc/config").write_text(text + "".join(f"['remote \"{name}\"']\n    url = {url}\n" for name, url in urls.items()))
    return root


def test_outside_of_git_and_dvc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    check = repository.check_git(tmp_path)
    assert check.status == "fail"
    assert "not a git repository" in check.detail
    assert "no .dvc folder" in repository.check_dvc(tmp_path).detail
    monkeypatch.setenv("PATH", str(tmp_path))
    assert repository.check_git(tmp_path).detail == "not found"


def test_no_remote_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    no_scm = true\n")
    (check,) = repository.check_remotes(tmp_path)
    assert check.status == "ok"
    assert check.detail.startswith("none; outputs stay")


@pytest.mark.slow
def test_remotes_are_asked(root: Path) -> None:
    checks = {check.id: check for check in repository.check_remotes(root, seconds=900.0)}
    assert list(checks) == ["dvc remote full", "dvc remote new", "dvc remote gone"]
    assert checks["dvc remote full"].status == checks["dvc remote new"].status == "ok"
    assert checks["dvc remote full"].detail.endswith("full: reachable")
    assert checks["dvc remote new"].detail.endswith("the first dvc push fills it")
    gone = checks["dvc remote gone"]
    assert gone.status == "warn"
    assert "is it mounted?" in gone.detail
    assert "a build does not" in gone.remedy


def test_a_remote_that_hangs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], timeout: float, **options: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    check = repository.check_remote(root, "far", "s3://bucket/x", 5.0)
    assert (check.status, check.detail) == ("warn", "s3://bucket/x does not answer within 5 s")
