"""Full disks, read-only outputs, damaged files, two builds at once: a clear error or a clean recovery, and nothing half-written taken for whole."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from draftyard.artifacts import generations as generations_format
from draftyard.artifacts import hidden_states as hidden_states_format
from draftyard.artifacts.files import digest_directory, write_json
from draftyard.artifacts.hidden_states import HiddenStates
from draftyard.artifacts.lineage import write_lineage
from draftyard.artifacts.prompts import Prompt, write_prompts
from draftyard.artifacts.prompts import read_split as read_prompts
from draftyard.artifacts.shards import drop_damaged, write_entry
from draftyard.artifacts.vocab import read_vocab
from draftyard.errors import ArtifactError, DraftyardError, sentence
from draftyard.verification.draft_reader import load_draft
from draftyard.work import WorkArea
from tests.pipeline.made_up import generation, make_training_repository, sample

ROOT = Path(__file__).parents[2]
DISK_BYTES = 512 << 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)], capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Leave `leave` bytes free."""
    path = disk / "filler"
    path.write_bytes(b"\0" * max(0, shutil.disk_usage(disk).free - leave))
    return path


def files(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


# --- a full disk


def write_states(directory: Path, number: int) -> None:
    path = directory / f"train-{number:05d}.safetensors"
    write_entry(path, hidden_states_format.write_shard(path, [sample(generation(number * 4 + row)) for row in range(4)], "float32"))


def write_answers(directory: Path, number: int) -> None:
    generations_format.write_shard(directory / f"train-{number:05d}.jsonl", [generation(number * 400 + row) for row in range(400)])


@pytest.mark.parametrize(("write", "suffix"), [(write_states, "safetensors"), (write_answers, "jsonl")])
def test_a_disk_that_fills_while_a_shard_is_written(write: Callable[[Path, int], None], suffix: str, disk: Path, tmp_path: Path) -> None:
    shards = disk / "shards"
    write(shards, 0)
    before = digest_directory(shards)
    filler = fill(disk, 40_000)
    with pytest.raises(OSError) as raised:
        write(shards, 1)
    assert raised.value.errno == errno.ENOSPC
    told = sentence(raised.value)
    assert told is not None
    assert f"train-00001.{suffix}: No space left on device; " in told
    assert digest_directory(shards) == before  # nothing half-written, no temporary file that eats the rest of the disk
    filler.unlink()
    write(shards, 1)
    assert drop_damaged(shards, suffix) == []
    write(tmp_path / "elsewhere", 1)
    name = f"train-00001.{suffix}"
    assert (shards / name).read_bytes() == (tmp_path / "elsewhere" / name).read_bytes()


def test_a_disk_that_fills_while_a_resume_point_is_written(disk: Path) -> None:
    import torch

    from draftyard.training import resume

    weights = {"a.weight": torch.nn.Parameter(torch.zeros(40_000))}
    resume.save(disk / "resume", resume.Position(step=2), weights, {}, [])
    kept = files(disk)
    filler = fill(disk, 60_000)
    with torch.no_grad():
        weights["a.weight"].fill_(1.0)
    with pytest.raises(OSError) as raised:
        resume.save(disk / "resume", resume.Position(step=4), weights, {}, [])
    assert raised.value.errno == errno.ENOSPC
    assert files(disk) == sorted([*kept, "filler"])
    filler.unlink()
    restored = resume.load(disk / "resume", weights, [])
    assert restored is not None
    assert restored[0].step == 2
    assert float(weights["a.weight"].detach().sum()) == 0.0


def finished(work: Path, root: Path, size: int = 200_000) -> WorkArea:
    """An area that finishes an artifact of `size` bytes for the repository `root`."""
    with WorkArea(work, "make", {}, {}) as area:
        if not area.publish_finished(root):
            out = area.new_out("data/out")
            out.mkdir()
            (out / "shard").write_bytes(b"s" * size)
            write_lineage(out, "made", inputs={}, params={}, packages={})
            write_json(area.new_out("reports/out.json"), {"made": size})
            area.finish(root, ("data/out", "reports/out.json"))
    return area


def test_a_disk_that_fills_in_the_final_copy(disk: Path, tmp_path: Path) -> None:
    """The work area on another disk, the repository's full: the old output stays until there is room."""
    root = disk / "repository"
    (root / "data/out").mkdir(parents=True)
    (root / "data/out/old").write_text("old")
    filler = fill(disk, 50_000)
    with pytest.raises(DraftyardError, match=r"data/out: cannot be written \(No space left on device\); the finished result is kept in .*work/make/"):
        finished(tmp_path / "work", root)
    assert files(root) == ["data/out/old"]
    filler.unlink()
    area = finished(tmp_path / "work", root)
    assert digest_directory(root / "data/out", exclude=()) == digest_directory(area.outs / "data/out", exclude=())
    assert files(root) == ["data/out/lineage.json", "data/out/shard", "reports/out.json"]


def test_publishing_on_the_same_disk_needs_no_room(disk: Path) -> None:
    finished(disk / "work", disk / "repository", size=400_000)  # of 512 KiB
    assert (disk / "repository/data/out/shard").stat().st_size == 400_000


def test_a_read_only_output(disk: Path, tmp_path: Path) -> None:
    (disk / "repository/data").mkdir(parents=True)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(DraftyardError, match=r"data/out: cannot be written \(Read-only file system\); the finished result is kept in"):
        finished(tmp_path / "work", disk / "repository")
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    area = finished(tmp_path / "work", disk / "repository")
    assert files(disk / "repository/data/out") == files(area.outs / "data/out")


# --- damaged files in data/ and models/


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 4
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def remove(path: Path) -> None:
    path.unlink()


def read_states(root: Path) -> None:
    data = HiddenStates(root / "data/hidden_states")
    for split in ("train", "holdout"):
        for ref in data.refs(split):
            data.load(ref)


READERS: dict[str, Callable[[Path], object]] = {
    "data/prompts/train.jsonl": lambda root: read_prompts(root / "data/prompts", "train"),
    "data/generations/train-00000.jsonl": lambda root: list(generations_format.read_split(root / "data/generations", "train")),
    "data/generations/holdout-00000.jsonl": lambda root: list(generations_format.read_split(root / "data/generations", "holdout")),
    "data/hidden_states/train-00000.safetensors": read_states,
    "data/hidden_states/index.json": read_states,
    "models/vocab/vocab.safetensors": lambda root: read_vocab(root / "models/vocab"),
    "models/draft/model.safetensors": lambda root: load_draft(root / "models/draft"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_training_repository(tmp_path_factory.mktemp("faults") / "repository")
    write_prompts(root / "data/prompts/train.jsonl", [Prompt(id="a", category="chat", system=None, turns=("one",))])
    write_lineage(root / "data/prompts", "prompts", inputs={}, params={}, packages={})
    (root / "models/draft").mkdir()
    (root / "models/draft/model.safetensors").write_bytes(b"weights")
    (root / "models/draft/config.json").write_text("{}")
    write_lineage(root / "models/draft", "draft", inputs={}, params={}, packages={})
    return root


@pytest.mark.parametrize("damage", [flip, cut, remove])
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_named_with_what_to_do(name: str, damage: Callable[[Path], None], made: Path, tmp_path: Path) -> None:
    root = shutil.copytree(made, tmp_path / "repository")
    damage(root / name)
    with pytest.raises(ArtifactError) as raised:
        READERS[name](root)
    told = str(raised.value)
    assert str(root / name) in told
    assert "draftyard lineage" in told or "dvc pull" in told
    assert "damaged" in told or "missing" in told or "no such file" in told


# --- damaged files in DVC's cache, and two builds at once


STAGE = """
import sys, time
from pathlib import Path
from draftyard.artifacts.lineage import write_lineage
from draftyard.artifacts.prompts import Prompt, write_prompts
from draftyard.work import WorkArea

root = Path.cwd()
with WorkArea(root / ".work", "prompts", {}, {}) as area:
    if not area.publish_finished(root):
        time.sleep(float(Path("seconds").read_text()))
        out = area.new_out("data/prompts")
        for split in ("train", "holdout"):
            write_prompts(out / f"{split}.jsonl", [Prompt(id=split, category="chat", system=None, turns=("one",))])
        write_lineage(out, "prompts", inputs={}, params={}, packages={})
        area.finish(root, ("data/prompts",))
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A DVC repository, configured as this one, with the one stage `prompts`."""
    root = tmp_path / "repository"
    (root / ".dvc").mkdir(parents=True)
    (root / ".dvc/config").write_text((ROOT / ".dvc/config").read_text().replace("[core]", "[core]\n    no_scm = true", 1))
    (root / "dvc.yaml").write_text("stages:\n  prompts:\n    cmd: python prompts.py\n    outs: [data/prompts]\n")
    (root / "prompts.py").write_text(STAGE)
    (root / "seconds").write_text("0")
    return root


def variables() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "DRAFTYARD_"))}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}"}


def run(root: Path, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, shell=True, cwd=root, env=variables(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["cache", "work tree"])
def test_the_remedy_for_a_damaged_copy_mends_it(where: str, repository: Path) -> None:
    """DVC trusts a read-only file in its cache: without the remedy it links the damaged bytes into the work tree again, even after a re-run."""
    assert run(repository, "dvc repro").returncode == 0
    out = repository / "data/prompts"
    before = digest_directory(out, exclude=())
    path = out / "train.jsonl"
    if where == "work tree":  # a copy of its own, as after `dvc unprotect`
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    path.chmod(0o644)
    flip(path)
    path.chmod(0o444)
    with pytest.raises(ArtifactError, match=r"train\.jsonl: SHA-256 .* draftyard lineage data/prompts --files"):
        read_prompts(out, "train")
    said = run(repository, "draftyard lineage data/prompts --files")
    assert said.returncode == 1
    assert ("in DVC's cache, the copy of data/prompts/train.jsonl, is damaged" in said.stdout) == (where == "cache"), said.stdout
    remedies = [line.split("Mend: ")[1] for line in said.stdout.splitlines() if "Mend: " in line]
    assert len(remedies) == 1
    remedy = remedies[0].replace("dvc pull data/prompts, or, where no remote has it, ", "")
    mended = run(repository, remedy)
    assert mended.returncode == 0, mended.stdout
    assert digest_directory(out, exclude=()) == before
    assert run(repository, "draftyard lineage data/prompts --files").stdout.splitlines()[-1] == "all 1 fit"
    assert "up to date" in run(repository, "dvc status").stdout


@pytest.mark.slow
def test_two_builds_at_once(repository: Path) -> None:
    """DVC lets one of them in; whichever way the other ends, it says why, and the result is whole."""
    (repository / "seconds").write_text("3")
    command = ["dvc", "repro"]
    builds = []
    for _ in range(2):
        builds.append(subprocess.Popen(command, cwd=repository, env=variables(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        time.sleep(0.5)
    outputs = [build.communicate(timeout=900)[0] for build in builds]
    codes = [build.returncode for build in builds]
    assert 0 in codes, outputs
    for code, output in zip(codes, outputs, strict=True):
        assert code == 0 or "busy" in output or "another process" in output or "lock" in output, output
    assert "up to date" in run(repository, "dvc repro").stdout
    assert len(read_prompts(repository / "data/prompts", "train")) == 1
