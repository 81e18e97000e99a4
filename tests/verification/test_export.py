"""Export between the layouts: every tensor byte for byte, config included, and the result passes check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from draftyard.artifacts.safetensors_header import open_checkpoint
from draftyard.artifacts.untrusted import read_untrusted_json
from draftyard.draft.export import export_checkpoint
from draftyard.draft.layouts import read_draft_config
from draftyard.errors import ArtifactError
from draftyard.verification.checks import check_checkpoint
from tests.verification.checkpoints import Config, Tensors, build_draft, read, variant


def raw_tensors(directory: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    opened = open_checkpoint(directory)
    return {name: (entry.spec.dtype, entry.spec.shape, b"".join(opened.raw_chunks(name))) for name, entry in opened.tensors.items()}


def geometry(directory: Path) -> Any:
    return read_draft_config(read_untrusted_json(directory / "config.json"), "config.json").geometry


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "bfloat16"},
        {"qwen3": True},
        {"layers": 2, "norm_before_fc": True},
        {"fc_norm": True, "norm_before_residual": True, "norm_output": True},
        {"full": True},
    ],
    ids=str,
)
def test_round_trip_keeps_every_byte_and_the_config(options: dict[str, Any], tmp_path: Path, verifier_dir: Path) -> None:
    source = build_draft(tmp_path / "source", verifier_dir, **options)
    export_checkpoint(source, tmp_path / "mid", "midlayer")
    export_checkpoint(tmp_path / "mid", tmp_path / "back", "speculators")
    names = set(raw_tensors(tmp_path / "mid"))
    assert any(name.startswith("midlayer.") for name in names)
    assert not any(name.startswith("layers.0.") for name in names)
    assert raw_tensors(tmp_path / "back") == raw_tensors(source)
    assert geometry(tmp_path / "mid") == geometry(tmp_path / "back") == geometry(source)
    before, after = (json.loads((path / "config.json").read_text()) for path in (source, tmp_path / "back"))
    assert after["speculators_config"] == before["speculators_config"]
    for path, layout in (("mid", "midlayer"), ("back", "speculators")):
        report = check_checkpoint(tmp_path / path, verifier_dir=verifier_dir)
        assert (report.exit_code, report.layout) == (0, layout)
        assert [check for check in report.checks if check.status == "warn"] == []


def test_round_trip_from_midlayer(tmp_path: Path, midlayer_dir: Path, verifier_dir: Path) -> None:
    export_checkpoint(midlayer_dir, tmp_path / "spec", "speculators")
    export_checkpoint(tmp_path / "spec", tmp_path / "back", "midlayer")
    assert raw_tensors(tmp_path / "back") == raw_tensors(midlayer_dir)
    assert geometry(tmp_path / "spec") == geometry(midlayer_dir)
    assert check_checkpoint(tmp_path / "spec", verifier_dir=verifier_dir).exit_code == 0


def test_speculators_reads_the_exported_config(tmp_path: Path, midlayer_dir: Path) -> None:
    from speculators.models.eagle3 import Eagle3SpeculatorConfig

    export_checkpoint(midlayer_dir, tmp_path / "spec", "speculators")
    config = Eagle3SpeculatorConfig.from_pretrained(tmp_path / "spec")
    assert config.transformer_layer_config.head_dim == 12
    assert config.eagle_aux_hidden_state_layer_ids == [2, 4, 5]
    assert config.norm_before_residual is False


def test_embeddings_are_dropped_by_flag(tmp_path: Path, draft_dir: Path, midlayer_dir: Path) -> None:
    export_checkpoint(draft_dir, tmp_path / "mid", "midlayer", embed_tokens=False)
    assert raw_tensors(tmp_path / "mid") == raw_tensors(midlayer_dir)  # the layout that AQ-MedAI publishes
    with pytest.raises(ArtifactError, match=r"has no embed_tokens\.weight to keep"):
        export_checkpoint(tmp_path / "mid", tmp_path / "spec", "speculators", embed_tokens=True)
    assert not (tmp_path / "spec").exists()


def test_embeddings_of_another_width_cannot_be_dropped(tmp_path: Path, verifier_dir: Path) -> None:
    def narrower(tensors: Tensors, config: Config) -> None:
        config["target_hidden_size"] = 32
        tensors["fc.weight"] = np.ones((24, 96), np.float32)

    base = variant(tmp_path / "narrow", build_draft(tmp_path / "base", verifier_dir, hidden_size=24), narrower)
    with pytest.raises(ArtifactError, match="cannot be dropped: hidden_size 24 differs from the verifier's 32"):
        export_checkpoint(base, tmp_path / "out", "midlayer", embed_tokens=False)


def test_shards_become_one_file(tmp_path: Path, draft_dir: Path) -> None:
    tensors, config = read(draft_dir)
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/config.json").write_text(config)
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, tmp_path / "shards" / file)
    (tmp_path / "shards/model.safetensors.index.json").write_text(json.dumps({"weight_map": {name: file for file, part in parts.items() for name in part}}))
    assert check_checkpoint(tmp_path / "shards").by_id("index").detail == "2 shards, as the index says"
    export_checkpoint(tmp_path / "shards", tmp_path / "one", "speculators")
    assert {name: tensor.tobytes() for name, tensor in load_file(tmp_path / "one/model.safetensors").items()} == {n: t.tobytes() for n, t in tensors.items()}


def test_local_paths_do_not_travel(tmp_path: Path, draft_dir: Path) -> None:
    def local(tensors: Tensors, config: Config) -> None:
        config["speculators_config"]["verifier"]["name_or_path"] = "/somewhere/on/this/machine/verifier"

    source = variant(tmp_path / "d", draft_dir, local)
    assert "the verifier's local path" in check_checkpoint(source).by_id("config.engine").detail
    for layout in ("midlayer", "speculators"):
        export_checkpoint(source, tmp_path / layout, layout)
        text = (tmp_path / layout / "config.json").read_text()
        assert "/somewhere" not in text
        assert "auto_map" not in text


def test_refuses_what_it_cannot_do(tmp_path: Path, draft_dir: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(ArtifactError, match="exists and is not empty"):
        export_checkpoint(draft_dir, tmp_path / "full", "midlayer")

    def to_mla(tensors: Tensors, config: Config) -> None:
        config["transformer_layer_config"]["kv_lora_rank"] = 16

    with pytest.raises(ArtifactError, match="family mla has one layout only"):
        export_checkpoint(variant(tmp_path / "mla", draft_dir, to_mla), tmp_path / "out", "midlayer")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "no left-overs"
