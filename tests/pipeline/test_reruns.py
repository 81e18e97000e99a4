"""Which stages re-run after which change: the real dvc.yaml under a real DVC, with stand-ins for the stages' commands.

A stand-in's outputs depend on everything that the stage declares, so a set here is the most that a change can re-run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
DVC_YAML: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
PARAMS: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))

ALL = {"verifier", "prompts", "generate", "hidden_states", "vocab", "train", "verify", "report", "gate"}
FROM_TRAIN = {"train", "verify", "report", "gate"}
READS: dict[str, set[str]] = {
    "verifier": {"verifier"},
    "prompts": {"prompts"},
    "generate": {"generate"},
    "hidden_states": {"hidden_states"},
    "draft": {"train"},
    "draft.vocab_size": {"vocab", "train"},
    "train": {"train"},
    "verify": {"verify"},
    "report": {"report", "gate"},
    "gate": {"gate"},
}
"""Params group, or a key that differs from its group -> the stages that a change concerns at once."""
KEYS = [f"{group}.{key}" for group, values in PARAMS.items() for key in values]
CHANGES: dict[str, set[str]] = {
    "verifier.revision": ALL - {"prompts"},
    "prompts.seed": ALL - {"verifier"},
    "generate.temperature": ALL - {"verifier", "prompts"},
    "hidden_states.aux_layer_ids": {"hidden_states", *FROM_TRAIN},
    "draft.vocab_size": {"vocab", *FROM_TRAIN},
    "draft.head_dim": FROM_TRAIN,
    "train.learning_rate": FROM_TRAIN,
    "verify.num_speculative_tokens": {"verify", "report", "gate"},
    "report.title": {"report", "gate"},
    "gate.min_acceptance_length": {"gate"},
    "runtime.yaml": set(),
    "README.md": set(),
    "docs/how-it-works.md": set(),
    "tests/test_x.py": set(),
    "src/draftyard/cli.py": set(),
    "data/sources/mine.jsonl": ALL - {"verifier"},
    "stages/generate.py": ALL - {"verifier", "prompts"},
    "stages/hidden_states.py": {"hidden_states", *FROM_TRAIN},
    "stages/vocab.py": {"vocab", *FROM_TRAIN},
    "stages/train.py": FROM_TRAIN,
    "stages/verify.py": {"verify", "report", "gate"},
    "stages/report.py": {"report", "gate"},
    "stages/gate.py": {"gate"},
    "src/draftyard/engines/connector.py": {"hidden_states", *FROM_TRAIN},
    "src/draftyard/training/loop.py": FROM_TRAIN,
    "src/draftyard/reporting/html.py": {"gate"},
    "src/draftyard/reporting/metrics.py": {"report", "gate"},
    "src/draftyard/gate.py": {"gate"},
    "data/baselines/earlier.json": {"report", "gate"},
    "data/references/other.json": {"verify", "report", "gate"},
}
"""A params key, one of each kind, or a file -> the stages that a change re-runs."""


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return [*value, {"kind": "jsonl", "path": "data/sources/more.jsonl"}]
    if isinstance(value, dict):
        return {**value, "added": 1}
    return 1


def paths(stage: dict[str, Any], field: str) -> list[str]:
    return [next(iter(entry)) if isinstance(entry, dict) else entry for entry in stage.get(field, [])]


def write_stub_repository(root: Path) -> None:
    """dvc.yaml with the stand-in for each command, every dep that no stage makes, params.yaml as JSON (which is YAML), git and DVC."""
    stages = {name: {**stage, "cmd": f"{sys.executable} -I -S stub_stage.py {name}"} for name, stage in DVC_YAML["stages"].items()}
    graph = {}
    for name, stage in stages.items():
        outs = paths(stage, "outs")
        files = [path for path in outs if Path(path).suffix] + paths(stage, "metrics") + paths(stage, "plots")
        graph[name] = {"deps": stage["deps"], "params": stage["params"], "outs": [path for path in outs if not Path(path).suffix], "files": files}
    made = {path for stage in graph.values() for path in stage["outs"] + stage["files"]}
    for stage in graph.values():
        for dep in stage["deps"]:
            if dep in ("data/sources", "data/references", "data/baselines"):
                (root / dep).mkdir(parents=True, exist_ok=True)
                (root / dep / "chat.jsonl").write_text("{}")
            elif not any(Path(dep).is_relative_to(path) for path in made):
                (root / dep).parent.mkdir(parents=True, exist_ok=True)
                (root / dep).write_text(f"# {dep}\n")
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    (root / "params.yaml").write_text(json.dumps(PARAMS))
    (root / "graph.json").write_text(json.dumps(graph))
    (root / "stub_stage.py").write_text((HERE / "stub_stage.py").read_text(encoding="utf-8"))
    (root / ".dvcignore").write_text((ROOT / ".dvcignore").read_text(encoding="utf-8"))
    (root / ".dvc").mkdir()
    (root / ".dvc/config").write_text("[core]\n    analytics = false\n    check_update = false\n")
    subprocess.run(["git", "init", "-q", str(root)], check=True)


def edits() -> list[dict[str, str]]:
    """A build of everything, one of nothing; then DVC's word on each key changed alone; then builds, each change on top of those before it."""
    text = json.dumps(PARAMS)
    steps = [{"name": name, "how": "repro", "path": "params.yaml", "text": text} for name in ("first build", "second build")]

    def with_key(base: str, name: str) -> str:
        params = json.loads(base)
        group, key = name.split(".")
        params[group][key] = changed(params[group][key])
        return json.dumps(params)

    steps += [{"name": f"status {name}", "how": "status", "path": "params.yaml", "text": with_key(text, name)} for name in KEYS]
    for name in CHANGES:
        if name in KEYS:
            text = with_key(text, name)
            steps.append({"name": name, "how": "repro", "path": "params.yaml", "text": text})
        else:
            steps.append({"name": name, "how": "repro", "path": name, "text": "# changed\n"})
    return steps


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Edit -> the stages that ran (or, for a status, that read the key): 28 builds of stand-ins, under a minute."""
    base = tmp_path_factory.mktemp("reruns")
    root = base / "repository"
    root.mkdir()
    write_stub_repository(root)
    (base / "edits.json").write_text(json.dumps(edits()))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "GIT_"))}
    result = subprocess.run(
        [sys.executable, str(HERE / "repro_driver.py"), str(base / "edits.json")], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    built: dict[str, list[str]] = json.loads(result.stdout.splitlines()[-1])
    assert not [name for name, stages in built.items() if len(stages) != len(set(stages))]
    return {name: set(stages) for name, stages in built.items()}


def test_the_tables_speak_of_every_group() -> None:
    assert {name.split(".")[0] for name in READS} == set(PARAMS) == {name.split(".")[0] for name in CHANGES if name in KEYS}
    assert len(KEYS) > 60


@pytest.mark.slow
def test_a_first_build_runs_everything_and_a_second_nothing(ran: dict[str, set[str]]) -> None:
    assert ran["first build"] == ALL
    assert ran["second build"] == set()


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_a_key_concerns_these_stages_and_no_others(ran: dict[str, set[str]], key: str) -> None:
    """With the builds below, which prove what follows from each of these stages: what each key re-runs."""
    expected = READS.get(key, READS[key.split(".")[0]])
    assert ran[f"status {key}"] == expected


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_reruns_these_stages_and_no_others(ran: dict[str, set[str]], change: str) -> None:
    assert ran[change] == CHANGES[change], f"{change}: ran {sorted(ran[change])}, expected {sorted(CHANGES[change])}"
