"""What a build must refuse: by the stage script itself, in a sentence with the key or file, and before vLLM starts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from draftyard.artifacts import generations as generations_format
from draftyard.artifacts import hidden_states as hidden_states_format
from draftyard.artifacts.card import write_card
from draftyard.artifacts.generations import Generation, Turn
from draftyard.artifacts.lineage import write_lineage
from draftyard.cli import main
from draftyard.params.base import build
from draftyard.params.verifier import VerifierParams
from draftyard.verifiers import resolve
from tests.pipeline.tiny_repo import ROOT, VERIFIER, environment, save_verifier, tiny_params, write_params, write_runtime

SABOTAGE = Path(__file__).parent / "sabotage"


def generation(number: int) -> Generation:
    prompt, answer = [1, 40 + number, 41, 42, 2], [50, 51, 52 + number, 53]
    turn = Turn(prompt_token_ids=prompt, output_token_ids=answer, text="x", finish_reason="length")
    return Generation(id=f"p-{number}", category="chat", sample=0, turns=[turn], token_ids=prompt + answer, loss_spans=[(5, 9)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the tiny verifier, its card, and generations, hidden states and vocabulary as the stages leave them (made up, no engine)."""
    import torch

    root = tmp_path_factory.mktemp("bad") / "repository"
    root.mkdir()
    for name in ("dvc.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, root)
    (root / ".dvc").mkdir()
    (root / ".dvc/config").write_text("[core]\n    no_scm = true\n    analytics = false\n    check_update = false\n")
    save_verifier(root / VERIFIER)
    write_runtime(root)
    write_params(root)
    params = tiny_params()["verifier"]
    card, _ = resolve(build(VerifierParams, "verifier", {**params, "name": str(root / VERIFIER)}), root / ".work")
    write_card(root / "models/verifier.json", card)
    inputs = {"prompts": "0" * 64, "verifier": card.digest}
    rows = [generation(number) for number in range(6)]
    directory = root / "data/generations"
    generations_format.write_shard(directory / "train-00000.jsonl", rows[:4])
    generations_format.write_shard(directory / "holdout-00000.jsonl", rows[4:])
    answers = write_lineage(directory, generations_format.ARTIFACT, inputs=inputs, params={}, packages={})
    samples = [
        hidden_states_format.Sample(
            id=row.id, category=row.category, sample=0, aux=torch.zeros(9, 192), last=torch.zeros(9, 64), token_ids=torch.tensor(row.token_ids),
            loss_mask=torch.tensor([False] * 5 + [True] * 4),
        )
        for row in rows
    ]  # fmt: skip
    states = root / "data/hidden_states"
    states.mkdir()
    entries = {
        split: [hidden_states_format.write_shard(states / f"{split}-00000.safetensors", part, "float32")]
        for split, part in (("train", samples[:4]), ("holdout", samples[4:]))
    }
    hidden_states_format.write_index(states, aux_layer_ids=[2, 4, 5], hidden_size=64, dtype="float32", splits=entries)
    made_from = {"generations": answers.digest, "verifier": card.digest}
    write_lineage(states, hidden_states_format.ARTIFACT, inputs=made_from, params={}, packages={})
    (root / "models/vocab").mkdir()
    write_lineage(root / "models/vocab", "vocab", inputs=made_from, params={}, packages={})
    return root


@pytest.fixture
def root(finished: Path, tmp_path: Path) -> Path:
    """A copy to spoil, with the stage scripts, whose text is part of a work area's key."""
    copy = shutil.copytree(finished, tmp_path / "repository")
    return shutil.copytree(ROOT / "stages", copy / "stages", dirs_exist_ok=True).parent


def refused(root: Path, stage: str, **variables: str) -> str:
    """Run the stage script as DVC does. It must fail with one sentence, no traceback, and no vLLM. Returns what it said."""
    env = environment(ROOT)
    env.update(variables, PYTHONPATH=f"{SABOTAGE}:{env['PYTHONPATH']}")
    result = subprocess.run([sys.executable, str(ROOT / f"stages/{stage}.py")], cwd=root, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stderr[-3000:]
    assert "Traceback" not in result.stderr, result.stderr[-3000:]
    assert "vllm imported: False" in result.stderr
    message = result.stderr.split(f"{stage} failed: ")
    assert len(message) == 2, result.stderr[-3000:]
    return message[1].split("vllm imported:")[0].strip()


def sources(root: Path, lines: list[str]) -> None:
    """Make `lines` the only source of prompts."""
    (root / "data/sources").mkdir(parents=True)
    (root / "data/sources/mine.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")


MINE: dict[str, Any] = {"sources": [{"kind": "jsonl", "path": "data/sources/mine.jsonl"}], "holdout_prompts": 2, "max_prompts": None}
WORDS = ("one", "two", "three", "four", "five", "six")
GOOD = [json.dumps({"prompt": f"{word} is word number {number} of this list; what comes after it?"}) for number, word in enumerate(WORDS)]


# --- by the stage scripts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "text", "rule"),
    [
        ("prompts", "prompts: [1, 2\nverifier: {", "params.yaml.*"),
        ("prompts", "prompts:\n  seed: 1\n", "prompts.sources: missing; every key is written out, none has a default"),
        ("prompts", "verifier: {}\n", "prompts.*"),
        ("gate", "gate: 3\n", "gate=3: must be a mapping of keys to values"),
    ],
    ids=["no YAML", "missing key", "missing group", "no mapping"],
)
def test_malformed_params(root: Path, stage: str, text: str, rule: str) -> None:
    (root / "params.yaml").write_text(text)
    assert re.match(rule, refused(root, stage))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "group", "changes", "message"),
    [
        ("verifier", "verifier", {"branch": "main"}, "verifier.branch='main': unknown key; known keys: source, name, revision"),
        (
            "generate",
            "generate",
            {"temprature": 0.5},
            "generate.temprature=0.5: unknown key (is temperature meant?); known keys: engine, endpoint_model, max_new_tokens",
        ),
        ("train", "train", {"learning_rate": "fast"}, "train.learning_rate='fast': must be a number"),
    ],
)
def test_unknown_keys_and_wrong_types(root: Path, stage: str, group: str, changes: dict[str, Any], message: str) -> None:
    write_params(root, **{group: changes})
    assert refused(root, stage).startswith(message)


def no_config(directory: Path) -> None:
    (directory / "config.json").unlink()


def no_directory(directory: Path) -> None:
    shutil.rmtree(directory)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_directory, "there is no such directory"),
        (no_config, "is not a model: no config.json; verifier.name='verifiers/tiny' must lead"),
    ],
)
def test_a_verifier_path_that_is_no_model(root: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(root / VERIFIER)
    assert message in refused(root, "verifier")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([2, 5, 9], "hidden_states.aux_layer_ids=[2, 5, 9]: the verifier has 8 layers: ids lie in 0..8"),
        ([-1, 2, 5], "hidden_states.aux_layer_ids=[-1, 2, 5]: ids start at 0 (the embedding output)"),
        ([2, 5], "hidden_states.aux_layer_ids=[2, 5]: vLLM's EAGLE-3 takes exactly 3 aux layers: give 3 ids"),
    ],
)
def test_layer_ids_that_the_engine_cannot_serve(root: Path, ids: list[int], message: str) -> None:
    write_params(root, hidden_states={"aux_layer_ids": ids})
    assert refused(root, "hidden_states") == message


@pytest.mark.slow
def test_a_disk_too_small_for_the_hidden_states(root: Path) -> None:
    """6 samples of 9 tokens, 4 states of 64 floats: 54 x 1024 bytes."""
    said = refused(root, "hidden_states", FREE_BYTES="50000")
    assert "hidden states takes 55.3 kB, 50.0 kB are free there; lower prompts.max_prompts" in said
    assert not (root / "reports/stages/hidden_states.json").exists()


@pytest.mark.slow
def test_broken_lines_beyond_the_bound(root: Path) -> None:
    sources(root, [*GOOD, "{broken", '{"prompt": 3}'])
    write_params(root, prompts={**MINE, "max_reject_fraction": 0.1})
    said = refused(root, "prompts")
    assert said.startswith("source data/sources/mine.jsonl: 2 of 8 lines are rejected, more than prompts.max_reject_fraction=0.1 allows")
    assert "data/sources/mine.jsonl:7: is not JSON" in said
    assert "data/sources/mine.jsonl:8: " in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "message"), [([], "holds no line"), ([GOOD[0]] * 5, "no prompt is left to train on: 5 lines read, 0 rejected, 4 duplicates, 1 distinct prompts")]
)
def test_zero_prompts_left(root: Path, lines: list[str], message: str) -> None:
    sources(root, lines)
    write_params(root, prompts=MINE)
    assert message in refused(root, "prompts")


@pytest.mark.slow
def test_a_draft_vocabulary_larger_than_the_verifiers(root: Path) -> None:
    write_params(root, draft={"vocab_size": 513})
    assert refused(root, "vocab") == "draft.vocab_size=513: is larger than the verifier's vocabulary of 512 tokens"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "draft.num_attention_heads=3: is not divisible by draft.num_key_value_heads=2"),
        ({"head_dim": 33}, "draft.head_dim=33: must be even: RoPE turns pairs"),
        ({"hidden_size": 128}, "draft.hidden_size=128: must be the verifier's hidden_size=64"),
    ],
)
def test_head_geometry_that_cannot_work(root: Path, draft: dict[str, Any], message: str) -> None:
    write_params(root, draft=draft)
    assert message in refused(root, "train")


# --- by the plan, before anything runs


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("draft.num_key_value_heads=4", "draft.num_attention_heads=2: is not divisible by draft.num_key_value_heads=4"),
        ("draft.head_dim=33", "draft.head_dim=33: must be even"),
        ("draft.vocab_size=513", "draft.vocab_size=513: is larger than the verifier's vocabulary of 512 tokens"),
        ("hidden_states.aux_layer_ids=[2, 5, 9]", "hidden_states.aux_layer_ids=[2, 5, 9]: the verifier has 8 layers"),
        ("hidden_states.aux_layer_ids=[5]", "vLLM's EAGLE-3 takes exactly 3 aux layers"),
        ("draft.heads=2", "draft.heads='2': override names no key"),
        ("train.learning_rate=fast", "train.learning_rate='fast': must be a number"),
        ("prompts.holdout_prompts=0", "prompts.holdout_prompts=0: must be at least 1"),
    ],
)
def test_the_plan_says_it_first(finished: Path, monkeypatch: pytest.MonkeyPatch, override: str, message: str) -> None:
    monkeypatch.chdir(finished)
    result = CliRunner().invoke(main, ["plan", "--set", override])
    assert result.exit_code == 1
    assert message in result.output
    assert len(result.output.splitlines()) == 1


def test_the_plan_of_a_verifier_that_is_no_model(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    no_config(root / VERIFIER)
    result = CliRunner().invoke(main, ["plan"])
    assert result.exit_code == 1
    assert "verifiers/tiny/config.json" in result.output


def test_the_plan_warns_of_a_small_disk(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished)
    monkeypatch.setattr("draftyard.planning.free_bytes", lambda path: 1000)
    result = CliRunner().invoke(main, ["plan", "--json"])
    assert "1.0 kB are free; lower prompts.max_prompts" in " ".join(json.loads(result.output)["warnings"])
