"""dvc push and dvc pull over SSH and S3 against real servers on loopback, the feature store over both, and what a remote without the hidden states means."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from draftyard.artifacts.feature_store import FeatureStore, StoredShards
from draftyard.artifacts.hidden_states import HiddenStates, write_index, write_shard
from draftyard.errors import ArtifactError
from tests.artifacts.test_hidden_states import HIDDEN, SAMPLES
from tests.pipeline.servers import SSHD, S3Server, SshServer, s3_server, ssh_server
from tests.pipeline.tiny_repo import environment

pytestmark = pytest.mark.slow

needs_sshd = pytest.mark.skipif(SSHD is None, reason="no sshd here: apt install openssh-server")
FILES, FILE_BYTES = 3, 1 << 20
STATES, DRAFT = "data/hidden_states", "models/draft.txt"
MAKE_STATES = f"""
import pathlib, random
out = pathlib.Path("data/hidden_states")
out.mkdir(parents=True, exist_ok=True)
rows = random.Random(pathlib.Path("prompts.txt").read_text())
for number in range({FILES}):
    (out / f"train-{{number:05d}}.safetensors").write_bytes(rows.randbytes({FILE_BYTES}))
open("ran.txt", "a").write("hidden_states\\n")
"""
MAKE_DRAFT = """
import hashlib, pathlib
read = b"".join(path.read_bytes() for path in sorted(pathlib.Path("data/hidden_states").iterdir()))
pathlib.Path("models").mkdir(exist_ok=True)
pathlib.Path("models/draft.txt").write_text(hashlib.sha256(read + pathlib.Path("rate.txt").read_bytes()).hexdigest())
open("ran.txt", "a").write("train\\n")
"""


def run(root: Path, *command: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    machine = {name: value for name, value in environment(root).items() if not name.startswith(("AWS_", "SSH_"))}
    done = subprocess.run(command, cwd=root, env={**machine, **extra}, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}"
    return done


def ran(root: Path) -> list[str]:
    """The stages that ran since the last call."""
    path = root / "ran.txt"
    names = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return names


def states_of(root: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((root / STATES).iterdir())}


def make_build(root: Path, *, push_states: bool = True) -> Path:
    """A built and committed repository of two stages: hidden states of 3 MiB, and a draft made from them."""
    root.mkdir(parents=True)
    for name, text in {"prompts.txt": "a", "rate.txt": "1", "states.py": MAKE_STATES, "draft.py": MAKE_DRAFT, ".gitignore": "ran.txt\n"}.items():
        (root / name).write_text(text)
    stages = {
        "hidden_states": {"cmd": "python states.py", "deps": ["prompts.txt", "states.py"], "outs": [STATES if push_states else {STATES: {"push": False}}]},
        "train": {"cmd": "python draft.py", "deps": [STATES, "rate.txt", "draft.py"], "outs": [DRAFT]},
    }
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    run(root, "git", "init", "-q", "-b", "main")
    run(root, "dvc", "init", "-q")
    run(root, "dvc", "repro", "-q")
    assert ran(root) == ["hidden_states", "train"]
    run(root, "git", "add", "-A")
    run(root, "git", "commit", "-q", "-m", "built")
    return root


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_build(tmp_path_factory.mktemp("built") / "build")


@pytest.fixture
def build(built: Path, tmp_path: Path) -> Path:
    """A copy of the build, to share and to change."""
    return shutil.copytree(built, tmp_path / "build", symlinks=True)


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with ssh_server(tmp_path_factory.mktemp("ssh") / "server") as server:
        yield server


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "server") as server:
        yield server


def share(root: Path, clone: Path, url: str, *settings: tuple[str, str], **env: str) -> None:
    """The two commands of docs/remotes.md on one side, a fresh clone and `dvc pull` on the other."""
    run(root, "dvc", "remote", "add", "-q", "-d", "origin", url)
    for key, value in settings:
        run(root, "dvc", "remote", "modify", "-q", "origin", key, value)
    run(root, "git", "commit", "-q", "-am", "remote")
    assert "5 files pushed" in run(root, "dvc", "push", **env).stdout
    assert "Everything is up to date" in run(root, "dvc", "push", **env).stdout
    run(clone.parent, "git", "clone", "-q", str(root), str(clone))
    run(clone, "dvc", "pull", **env)
    assert states_of(clone) == states_of(root)
    assert len(states_of(clone)) == FILES
    assert (clone / DRAFT).read_text() == (root / DRAFT).read_text()
    run(clone, "dvc", "repro", **env)
    assert ran(clone) == []


@needs_sshd
def test_push_and_pull_over_ssh(ssh: SshServer, build: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    url = f"ssh://127.0.0.1:{ssh.port}{shared}"
    share(build, tmp_path / "clone", url, ("keyfile", str(ssh.key)), **ssh.environment)
    assert sum(path.stat().st_size for path in shared.rglob("*") if path.is_file()) > FILES * FILE_BYTES
    key = ssh.home / "other_key"  # a key that the server does not know is refused: the server did check
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    run(build, "dvc", "remote", "modify", "-q", "origin", "keyfile", str(key))
    refused = run(build, "dvc", "push", check=False, **ssh.environment)
    assert refused.returncode != 0
    assert "ermission denied" in refused.stderr


def test_push_and_pull_over_s3(s3: S3Server, build: Path, tmp_path: Path) -> None:
    url = f"s3://{s3.bucket}/dvc"
    credentials = {name: value for name, value in s3.environment.items() if name != "AWS_ENDPOINT_URL"}
    share(build, tmp_path / "clone", url, ("endpointurl", s3.endpoint), **credentials)
    wrong = {**credentials, "AWS_SECRET_ACCESS_KEY": "wrong"}
    (build / "prompts.txt").write_text("b")
    run(build, "dvc", "repro", "-q")
    refused = run(build, "dvc", "push", check=False, **wrong)
    assert refused.returncode != 0


def store_and_read(url: str, root: Path) -> None:
    """Write a shard to the store, read it from another machine's cache, lose it."""
    with StoredShards(FeatureStore(url, root / "here", 1 << 30), "key") as kept:
        entry = write_shard(root / "shards/train-00000.safetensors", SAMPLES, "bfloat16")
        kept.keep(root / "shards/train-00000.safetensors", entry)
    write_index(root, aux_layer_ids=(1, 2, 3), hidden_size=HIDDEN, dtype="bfloat16", splits={"train": [entry]}, storage="store")
    store = FeatureStore(url, root / "there", 1 << 30)
    data = HiddenStates(root, store)
    for written, ref in zip(SAMPLES, data.refs("train"), strict=True):
        assert torch.equal(data.load(ref).aux, written.aux.to(torch.bfloat16))
    with StoredShards(store, "key") as kept:
        assert kept.find(root / "shards/train-00000.safetensors") == entry
        assert kept.find(root / "shards/train-00001.safetensors") is None
        store.remove(entry["sha256"])
        assert kept.find(root / "shards/train-00000.safetensors") is None
    with pytest.raises(ArtifactError, match="is missing"):
        HiddenStates(root, FeatureStore(url, root / "elsewhere", 1 << 30)).load(data.refs("train")[0])


def test_the_feature_store_over_s3(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    store_and_read(f"s3://{s3.bucket}/features", tmp_path)


@needs_sshd
def test_the_feature_store_over_ssh(ssh: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ssh.environment.items():
        monkeypatch.setenv(name, value)
    store_and_read(f"ssh://127.0.0.1:{ssh.port}{tmp_path / 'remote'}", tmp_path)


def test_hidden_states_kept_out_of_the_remote(tmp_path: Path) -> None:
    """docs/scaling.md: what `push: false` on data/hidden_states means for whoever clones."""
    root, clone = make_build(tmp_path / "build", push_states=False), tmp_path / "clone"
    remote = tmp_path / "remote"
    run(root, "dvc", "remote", "add", "-q", "-d", "origin", str(remote))
    run(root, "git", "commit", "-q", "-am", "remote")
    assert "1 file pushed" in run(root, "dvc", "push", "--no-run-cache").stdout
    assert sum(path.stat().st_size for path in remote.rglob("*") if path.is_file()) < 1000
    run(tmp_path, "git", "clone", "-q", str(root), str(clone))

    # A clone gets the draft, and nothing has to run for it.
    run(clone, "dvc", "pull", "--allow-missing")
    assert (clone / DRAFT).read_text() == (root / DRAFT).read_text()
    assert not (clone / STATES).exists()
    run(clone, "dvc", "repro", "--pull", "--allow-missing")
    assert ran(clone) == []

    refused = run(clone, "dvc", "pull", check=False)
    assert refused.returncode != 0
    assert STATES in refused.stderr

    # A change downstream needs them: --allow-missing takes them for there, and fails; without it they are made again.
    (clone / "rate.txt").write_text("2")
    refused = run(clone, "dvc", "repro", "--pull", "--allow-missing", check=False)
    assert refused.returncode != 0
    assert STATES in refused.stderr
    assert ran(clone) == []
    run(clone, "dvc", "repro")
    assert ran(clone) == ["hidden_states", "train"]
    assert states_of(clone) == states_of(root)
