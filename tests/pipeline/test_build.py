"""The whole pipeline on a tiny random verifier: real DVC, real vLLM, real training."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from draftyard.artifacts.card import read_card
from draftyard.artifacts.files import digest_directory, digest_file
from draftyard.artifacts.generations import read_split as read_generations
from draftyard.artifacts.hidden_states import HiddenStates
from draftyard.artifacts.lineage import FILE, read_lineage
from draftyard.artifacts.prompts import read_split as read_prompts
from draftyard.artifacts.vocab import read_vocab
from tests.pipeline.conftest import TinyBuild
from tests.pipeline.tiny_repo import SECRETS, commit, environment, run, stages_run, write_runtime

pytestmark = [pytest.mark.slow, pytest.mark.engine]

ORDER = ["verifier", "prompts", "generate", "hidden_states", "vocab", "train", "verify", "report", "gate"]
ARTIFACTS = {
    "data/prompts": "prompts",
    "data/generations": "generations",
    "data/hidden_states": "hidden_states",
    "models/vocab": "vocab",
    "models/draft": "draft",
}
CLEAN = "Data and pipelines are up to date."


@pytest.fixture
def copied(tiny_build: TinyBuild, tmp_path: Path) -> Path:
    """A copy of the finished build, cache included, to change."""
    return shutil.copytree(tiny_build.root, tmp_path / "copy", symlinks=True)


def load(root: Path, name: str) -> Any:
    return json.loads((root / name).read_text(encoding="utf-8"))


def files_of(directory: Path) -> dict[str, str]:
    return {path.relative_to(directory).as_posix(): digest_file(path) for path in sorted(directory.rglob("*")) if path.is_file()}


def safetensors_header(path: Path) -> dict[str, Any]:
    """The header, read by hand: 8 bytes of length, then JSON."""
    content = path.read_bytes()
    header: dict[str, Any] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return header


# --- what one build leaves


def test_every_stage_ran_once(tiny_build: TinyBuild) -> None:
    assert sorted(stages_run(tiny_build.output)) == sorted(ORDER)


def test_every_declared_output_is_there(tiny_build: TinyBuild) -> None:
    for name, stage in yaml.safe_load((tiny_build.root / "dvc.yaml").read_text())["stages"].items():
        for field in ("outs", "metrics", "plots"):
            for entry in stage.get(field, []):
                path = tiny_build.root / (entry if isinstance(entry, str) else next(iter(entry)))
                assert path.exists(), f"{name}: {path}"


def test_prompts_and_answers_read_back(tiny_build: TinyBuild) -> None:
    root = tiny_build.root
    prompts = {split: read_prompts(root / "data/prompts", split) for split in ("train", "holdout")}
    assert {split: len(rows) for split, rows in prompts.items()} == {"train": 36, "holdout": 6}
    metrics = load(root, "reports/stages/generate.json")
    answers = {split: list(read_generations(root / "data/generations", split)) for split in prompts}
    answered = sum(len(rows) for rows in answers.values())
    skipped = sum(entry["count"] for reason, entry in metrics["skipped_reasons"].items() if reason != "later turn too long")
    assert answered + skipped == 42
    for split, rows in answers.items():
        assert {row.id for row in rows} <= {prompt.id for prompt in prompts[split]}
        for row in rows:
            assert all(0 < len(turn.output_token_ids) <= 12 for turn in row.turns)
            assert row.token_ids[: len(row.turns[0].prompt_token_ids)] == row.turns[0].prompt_token_ids
            last = row.turns[-1]
            assert row.token_ids == last.prompt_token_ids + last.output_token_ids


def test_hidden_states_read_back_one_row_per_token(tiny_build: TinyBuild) -> None:
    states = HiddenStates(tiny_build.root / "data/hidden_states")
    assert (states.aux_layer_ids, states.hidden_size, states.dtype) == ([2, 4, 5], 64, "float32")  # [2, n/2, n-3] of 8 layers
    for split in ("train", "holdout"):
        answers = list(read_generations(tiny_build.root / "data/generations", split))
        refs = states.refs(split)
        assert [(ref.id, ref.sample) for ref in refs] == [(answer.id, answer.sample) for answer in answers]
        for ref, answer in zip(refs, answers, strict=True):
            sample = states.load(ref)
            assert sample.token_ids.tolist() == answer.token_ids
            assert (tuple(sample.aux.shape), tuple(sample.last.shape)) == ((len(answer.token_ids), 192), (len(answer.token_ids), 64))
            own = [i for start, end in answer.loss_spans for i in range(start, end)]
            assert sample.loss_mask.nonzero()[:, 0].tolist() == own


def test_stored_states_are_those_of_an_independent_forward(tiny_build: TinyBuild) -> None:
    """transformers in float32: states 2, 4 and 5 as they are; the last through the final norm, because there transformers shows it after the norm."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(tiny_build.root / "verifiers/tiny", dtype=torch.float32).eval()
    states = HiddenStates(tiny_build.root / "data/hidden_states")
    sample = states.load(states.refs("holdout")[0])
    with torch.inference_mode():
        expected = model(sample.token_ids[None], output_hidden_states=True).hidden_states
        found = [*sample.aux.chunk(3, dim=1), model.model.norm(sample.last)]
    for layer, state in zip((2, 4, 5, 8), found, strict=True):
        torch.testing.assert_close(state, expected[layer][0], rtol=1e-3, atol=1e-3)


def test_vocabulary_and_draft_read_back(tiny_build: TinyBuild) -> None:
    root = tiny_build.root
    vocabulary = read_vocab(root / "models/vocab")
    assert (len(vocabulary.d2t), len(vocabulary.t2d), int(vocabulary.t2d.sum())) == (384, 512, 384)
    assert {0, 1, 2} <= set(vocabulary.target_ids.tolist())  # the special tokens
    tensors = safetensors_header(root / "models/draft/model.safetensors")
    shapes = {"q": [128, 128], "k": [64, 128], "v": [64, 128], "o": [64, 128]}  # 2 heads of 64, 1 KV head, inputs of 2 x 64
    assert {name: tensors[f"layers.0.self_attn.{name}_proj.weight"]["shape"] for name in shapes} == shapes
    assert (tensors["fc.weight"]["shape"], tensors["lm_head.weight"]["shape"], tensors["d2t"]["shape"]) == ([64, 192], [384, 64], [384])
    result = run(root, "draftyard", "check", "models/draft", "--verifier", "verifiers/tiny", "--json", check=False)
    checked = json.loads(result.stdout)
    assert (result.returncode, checked["status"]) == (0, "pass"), [check for check in checked["checks"] if check["status"] == "fail"]


def test_lineages_form_one_chain(tiny_build: TinyBuild) -> None:
    root = tiny_build.root
    lineage = {kind: read_lineage(root / directory, kind) for directory, kind in ARTIFACTS.items()}
    verifier = read_card(root / "models/verifier.json").digest
    for directory, kind in ARTIFACTS.items():
        assert lineage[kind].digest == digest_directory(root / directory, exclude=(FILE,)), directory
    digests = {kind: value.digest for kind, value in lineage.items()}
    assert lineage["generations"].inputs == {"prompts": digests["prompts"], "verifier": verifier}
    assert lineage["hidden_states"].inputs == lineage["vocab"].inputs == {"generations": digests["generations"], "verifier": verifier}
    assert lineage["draft"].inputs == {"hidden_states": digests["hidden_states"], "vocab": digests["vocab"], "verifier": verifier}


def test_simulated_rounds_are_the_served_ones(tiny_build: TinyBuild) -> None:
    simulated, served = (load(tiny_build.root, f"reports/verify/{name}.json") for name in ("simulation", "serving"))
    assert served["status"] == "measured", served.get("reason")
    assert simulated["rounds"] == served["overall"]["rounds"] > 0
    # Only a prompt's last round can run past the end of its text, where the engine still counts what it accepts.
    for known, counted in zip(simulated["accepted"], served["overall"]["accepted"], strict=True):
        assert known <= counted <= known + simulated["prompts"]


def test_outputs_are_those_of_plain_decoding(tiny_build: TinyBuild) -> None:
    """Equal by the build's own proof, and the metrics say so; the holdout answers came from another engine start and are the same again."""
    metrics = load(tiny_build.root, "reports/metrics.json")
    assert metrics["equal_outputs"] == 1.0
    assert metrics["serving_status"] == "measured"
    assert metrics["static"]["status"] == "pass"


def test_no_artifact_tells_where_it_was_made(tiny_build: TinyBuild) -> None:
    root = tiny_build.root
    forbidden = [str(root).encode(), str(root.parent).encode(), b"auto_map", str(Path.home()).encode() + b"/", b"/tmp/"]
    host = socket.gethostname().encode()
    if len(host) > 5 and host != b"localhost":
        forbidden.append(host)
    looked_at = [root / "dvc.lock"]
    for name in ("models", "data/prompts", "data/generations", "data/hidden_states", "reports"):
        looked_at += [path for path in (root / name).rglob("*") if path.is_file()]
    assert len(looked_at) > 25
    prompts = b"".join(path.read_bytes() for path in (root / "data/sources").rglob("*.jsonl"))
    for path in looked_at:
        content = path.read_bytes()
        found = [word for word in forbidden if word in content and word not in prompts]
        assert not found, f"{path.relative_to(root)} holds {found}"
    assert not [path for path in (root / "models/draft").iterdir() if path.suffix == ".py"]


def test_no_secret_of_the_environment_is_written(tiny_build: TinyBuild) -> None:
    """Not into an artifact, a report, a log, the lock, the work area or DVC's cache; nor shown."""
    root = tiny_build.root
    secrets = [value.encode() for value in SECRETS.values()]
    assert all(environment(root)[name] == value for name, value in SECRETS.items())  # they were there to be written
    looked_at = [path for path in root.rglob("*") if path.is_file() and ".git" not in path.relative_to(root).parts]
    assert (root / ".work/logs/generate-engine.log").stat().st_size > 1000
    assert {path.relative_to(root).parts[0] for path in looked_at} >= {".work", ".dvc", "data", "models", "reports", "dvc.lock"}
    for path in looked_at:
        content = path.read_bytes()
        assert not any(secret in content for secret in secrets), path.relative_to(root)
    assert not any(secret.decode() in tiny_build.output for secret in secrets)


def test_nobody_else_can_write_what_was_built(tiny_build: TinyBuild) -> None:
    for name in ("data", "models", "reports", ".work", ".dvc"):
        for path in (tiny_build.root / name).rglob("*"):
            if not path.is_symlink():
                mode = path.stat().st_mode
                assert not mode & 0o022, f"{path}: {mode:o}"
                assert path.is_dir() or not mode & 0o111, f"{path}: {mode:o}"


# --- building again, elsewhere, and with another parameter


def test_a_second_build_runs_nothing(tiny_build: TinyBuild) -> None:
    result = run(tiny_build.root, "dvc", "repro")
    assert stages_run(result.stdout) == []
    assert run(tiny_build.root, "git", "status", "--porcelain").stdout == ""


def test_push_clone_pull_and_nothing_runs(copied: Path, tmp_path: Path) -> None:
    run(copied, "dvc", "remote", "add", "-d", "store", str(tmp_path / "store"))
    commit(copied, "a remote")
    run(copied, "dvc", "push")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(copied), str(clone)], check=True, env=environment(copied))
    assert not (clone / "models/draft").exists()
    run(clone, "dvc", "pull")
    assert CLEAN in run(clone, "dvc", "status").stdout
    assert stages_run(run(clone, "dvc", "repro").stdout) == []
    for directory in ARTIFACTS:
        assert files_of(clone / directory) == files_of(copied / directory)


def test_another_head_dim_retrains_and_keeps_the_rest(copied: Path) -> None:
    before = {directory: files_of(copied / directory) for directory in ARTIFACTS}
    parameters = load(copied, "reports/stages/train.json")["parameters"]["total"]
    result = run(copied, "dvc", "exp", "run", "-S", "draft.head_dim=32")
    assert stages_run(result.stdout) == ["train", "verify", "report", "gate"]
    after = {directory: files_of(copied / directory) for directory in ARTIFACTS}
    assert [directory for directory in ARTIFACTS if before[directory] != after[directory]] == ["models/draft"]
    changed = json.loads(run(copied, "dvc", "params", "diff", "--json").stdout)
    assert changed["params.yaml"] == {"draft.head_dim": {"old": 64, "new": 32, "diff": -32}}
    metrics = json.loads(run(copied, "dvc", "metrics", "diff", "--json").stdout)
    metrics = metrics.get("diff", metrics)
    # q, k, v: rows from (2 + 1 + 1) x 64 to (2 + 1 + 1) x 32 of width 128; o: 64 rows, columns from 128 to 64
    difference = -(4 * 32 * 128 + 64 * 64)
    assert metrics["reports/stages/train.json"]["parameters.total"] == {"old": parameters, "new": parameters + difference, "diff": difference}


# --- determinism and resuming


def test_training_again_gives_the_same_bytes(copied: Path) -> None:
    before = files_of(copied / "models/draft")
    assert stages_run(run(copied, "dvc", "repro", "--force", "--single-item", "train").stdout) == ["train"]
    assert files_of(copied / "models/draft") == before


def test_an_experiment_in_a_copy_trains_only_and_leaves_its_logs_here(copied: Path) -> None:
    """As DVC's queue runs them: tracked files only, no .venv, and an interpreter whose `draftyard` is that of the original."""
    before = files_of(copied / "models/draft")
    log = copied / ".work/logs/train.log"
    log.unlink()
    result = run(copied, "dvc", "exp", "run", "--temp", "--name", "other-rate", "-S", "train.learning_rate=0.002", "train")
    assert stages_run(result.stdout) == ["train"]
    assert "100%" in log.read_text()
    assert files_of(copied / "models/draft") == before  # the work tree is as it was
    run(copied, "dvc", "exp", "apply", "other-rate")
    assert files_of(copied / "models/draft") != before


@pytest.mark.parametrize(
    ("stage", "file", "count", "out", "resumed"),
    [
        ("generate", "train-00002.jsonl", 1, "data/generations", "1 finished shards were resumed"),
        ("train", "step-*.json", 3, "models/draft", "resumed after step 4"),
    ],
)
def test_a_killed_stage_goes_on_and_ends_with_the_same_bytes(copied: Path, stage: str, file: str, count: int, out: str, resumed: str) -> None:
    """SIGKILL of dvc and the stage, in the middle of a write; of two finished shards one goes bad; then the same command again."""
    before = files_of(copied / out)
    command = ["dvc", "repro", "--force", "--single-item", stage]
    deadly = environment(copied)
    deadly.update(PYTHONPATH=f"{Path(__file__).parent / 'sabotage'}:{deadly['PYTHONPATH']}", KILL_AT_NAME=file, KILL_AT_COUNT=str(count))
    killed = subprocess.run(command, cwd=copied, env=deadly, capture_output=True, text=True, check=False, start_new_session=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert not (copied / out).exists()
    for shard in (copied / ".work" / stage).rglob("shards/train-00000.jsonl"):
        shard.write_bytes(shard.read_bytes().replace(b"1", b"2", 1))
    again = run(copied, *command)
    assert resumed in again.stderr + again.stdout
    assert ("train-00000.jsonl: damaged since it was written" in again.stderr + again.stdout) == (stage == "generate")
    assert files_of(copied / out) == before
    assert " stored" in run(copied, "draftyard", "work").stdout  # DVC holds the result: the next stage would remove the area


def test_chunked_prefill_loses_no_row(copied: Path) -> None:
    """Prompts of 100 tokens and more in chunks of 32: the same rows. What `runtime.yaml` says changes no result beyond the last bits of a float."""
    before = HiddenStates(copied / "data/hidden_states")
    expected = {(split, ref.id): before.load(ref) for split in ("train", "holdout") for ref in before.refs(split)}
    assert max(len(sample.token_ids) for sample in expected.values()) > 100
    write_runtime(copied, max_num_batched_tokens=32)
    assert stages_run(run(copied, "dvc", "repro", "--force", "--single-item", "hidden_states").stdout) == ["hidden_states"]
    after = HiddenStates(copied / "data/hidden_states")
    worst = 0.0
    for split in ("train", "holdout"):
        assert len(after.refs(split)) == sum(name[0] == split for name in expected)
        for ref in after.refs(split):
            found, sample = after.load(ref), expected[split, ref.id]
            assert found.token_ids.tolist() == sample.token_ids.tolist()
            for left, right in ((found.aux, sample.aux), (found.last, sample.last)):
                worst = max(worst, float(np.abs((left - right).numpy()).max() / np.abs(right.numpy()).max()))
    assert worst < 1e-5, worst
