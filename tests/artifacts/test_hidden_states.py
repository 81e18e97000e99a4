"""Shards of hidden states: what was written comes back row for row, and what is damaged, missing or of another kind is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftyard.artifacts.files import digest_file, read_json, write_json
from draftyard.artifacts.hidden_states import HiddenStates, Sample, write_index, write_shard
from draftyard.errors import ArtifactError

HIDDEN, AUX = 4, 3


def sample(name: str, length: int, seed: int, scale: float = 1.0) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    return Sample(
        id=name,
        category=f"c{seed % 2}",
        sample=seed,
        aux=torch.randn(length, AUX * HIDDEN, generator=generator) * scale,
        last=torch.randn(length, HIDDEN, generator=generator) * scale,
        token_ids=torch.randint(0, 200_000, (length,), generator=generator),
        loss_mask=torch.rand(length, generator=generator) < 0.5,
    )


SAMPLES = [sample("a", 5, 0), sample("b", 3, 1), sample("c", 7, 2)]


def write(directory: Path, dtype: str = "bfloat16") -> Path:
    entries = [write_shard(directory / "train-00000.safetensors", SAMPLES[:2], dtype), write_shard(directory / "train-00001.safetensors", SAMPLES[2:], dtype)]
    write_index(directory, aux_layer_ids=(1, 2, 3), hidden_size=HIDDEN, dtype=dtype, splits={"train": entries, "holdout": []})
    return directory


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_samples_come_back_in_the_stored_dtype(dtype: str, tmp_path: Path) -> None:
    data = HiddenStates(write(tmp_path, dtype))
    assert (data.aux_layer_ids, data.hidden_size, data.dtype) == ([1, 2, 3], HIDDEN, dtype)
    refs = data.refs("train")
    assert [(r.id, r.category, r.sample, r.file, r.start, r.length) for r in refs] == [
        ("a", "c0", 0, "train-00000.safetensors", 0, 5),
        ("b", "c1", 1, "train-00000.safetensors", 5, 3),
        ("c", "c0", 2, "train-00001.safetensors", 0, 7),
    ]
    assert data.refs("holdout") == []
    stored = getattr(torch, dtype)
    for written, ref in reversed(list(zip(SAMPLES, refs, strict=True))):
        read = data.load(ref)
        assert torch.equal(read.aux, written.aux.to(stored))
        assert torch.equal(read.last, written.last.to(stored))
        assert torch.equal(read.token_ids, written.token_ids)
        assert torch.equal(read.loss_mask, written.loss_mask)
        assert torch.equal(data.loss_mask(ref), written.loss_mask)
        assert (read.token_ids.dtype, read.loss_mask.dtype) == (torch.int64, torch.bool)
        assert (read.id, read.category, read.sample) == (written.id, written.category, written.sample)


def test_float8_comes_back_as_bfloat16_within_its_precision_at_half_the_bytes(tmp_path: Path) -> None:
    data = HiddenStates(write(tmp_path / "fp8", "float8_e4m3"))
    for written, ref in zip(SAMPLES, data.refs("train"), strict=True):
        read = data.load(ref)
        assert read.aux.dtype == read.last.dtype == torch.bfloat16
        for got, expected in ((read.aux, written.aux), (read.last, written.last)):
            largest = expected.view(*expected.shape[:1], -1, HIDDEN).abs().amax(-1, keepdim=True).expand(-1, -1, HIDDEN).flatten(1)
            assert ((got.float() - expected).abs() <= torch.maximum(expected.abs() / 16, largest * 2**-17)).all()
        assert torch.equal(read.token_ids, written.token_ids)
        assert torch.equal(read.loss_mask, written.loss_mask)
    # (3 + 1) states of 4 one-byte values and a 4-byte scale, against two bytes a value; 5 bytes of token id and mask in both
    wide = [sample("wide", 400, 9)]
    entries = {dtype: write_shard(tmp_path / dtype, wide, dtype)["bytes"] for dtype in ("float8_e4m3", "bfloat16")}
    assert 400 * (4 * (4 + 4) + 5) <= entries["float8_e4m3"] <= 400 * (4 * (4 + 4) + 5) + 600
    assert 400 * (4 * 4 * 2 + 5) <= entries["bfloat16"] <= 400 * (4 * 4 * 2 + 5) + 600
    assert load_file(tmp_path / "float8_e4m3")["scales"].shape == (400, 4)


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = write_shard(tmp_path / "x", SAMPLES, "bfloat16"), write_shard(tmp_path / "y", SAMPLES, "bfloat16")
    assert first["sha256"] == second["sha256"] == digest_file(tmp_path / "x")
    assert first["tokens"] == 15
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["x", "y"]


def test_states_that_do_not_fit_into_float16_are_refused_by_name(tmp_path: Path) -> None:
    large = sample("large", 4, 3)
    large.last[2, 1] = 70_000.0
    with pytest.raises(ArtifactError, match="last_hidden_states of sample large/3 are not finite in float16; set hidden_states.dtype to bfloat16"):
        write_shard(tmp_path / "x.safetensors", [*SAMPLES, large, SAMPLES[0]], "float16")
    assert list(tmp_path.iterdir()) == []
    write_shard(tmp_path / "x.safetensors", [*SAMPLES, large], "bfloat16")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    data = HiddenStates(write(tmp_path))
    (tmp_path / "train-00001.safetensors").unlink()
    data.load(data.refs("train")[0])
    with pytest.raises(ArtifactError, match=r"train-00001\.safetensors: shard is missing; fetch it with dvc pull"):
        data.load(data.refs("train")[2])


@pytest.mark.parametrize("position", [100, -1])
def test_a_damaged_shard_is_refused_before_a_row_is_read(position: int, tmp_path: Path) -> None:
    data = HiddenStates(write(tmp_path))
    path = tmp_path / "train-00000.safetensors"
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"train-00000\.safetensors: digest [0-9a-f]{64}, index\.json says [0-9a-f]{64}: the shard is damaged"):
        data.loss_mask(data.refs("train")[1])


def test_a_truncated_shard_and_a_swapped_one_are_refused(tmp_path: Path) -> None:
    data = HiddenStates(write(tmp_path))
    path = tmp_path / "train-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    (tmp_path / "train-00001.safetensors").write_bytes(path.read_bytes())
    for ref in data.refs("train"):
        with pytest.raises(ArtifactError, match="is damaged"):
            data.load(ref)


def test_a_shard_of_another_verifier_is_refused_even_with_a_fitting_digest(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "train-00001.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "aux_hidden_states": tensors["aux_hidden_states"][:, :-1].contiguous()}, path)
    index = read_json(tmp_path / "index.json")
    index["splits"]["train"][1]["sha256"] = digest_file(path)
    write_json(tmp_path / "index.json", index)
    data = HiddenStates(tmp_path)
    with pytest.raises(ArtifactError, match=r"aux_hidden_states has shape \[7, 11\], index\.json says \[7, 12\]"):
        data.load(data.refs("train")[2])


def test_a_file_name_in_the_index_cannot_leave_the_directory(tmp_path: Path) -> None:
    write(tmp_path / "in")
    (tmp_path / "in/train-00000.safetensors").rename(tmp_path / "out.safetensors")
    index = read_json(tmp_path / "in/index.json")
    index["splits"]["train"][0]["file"] = "../out.safetensors"
    write_json(tmp_path / "in/index.json", index)
    data = HiddenStates(tmp_path / "in")
    with pytest.raises(ArtifactError, match="shard is missing"):
        data.load(data.refs("train")[0])


ENTRY = {"file": "x", "sha256": "", "tokens": 8, "ids": ["a", "b"], "categories": ["c"], "category": [0, 0], "sample": [0, 1], "length": [5, 3]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, "format 1, expected 2"),
        ({"aux_layer_convention": "0 is the output of layer 0"}, "aux_layer_convention is '0 is the output of layer 0', expected 'vllm: 0 is the embedding"),
        ({"last_hidden_states": "after the final norm"}, "last_hidden_states is 'after the final norm', expected 'output of the last layer before"),
        ({"splits": ["train"]}, "is not an index"),
        ({"splits": {"train": [{"file": "x"}]}}, "is not an index"),
        ({"splits": {"train": [{**ENTRY, "sample": [0]}]}}, "is not an index"),
        ({"splits": {"train": [{**ENTRY, "category": [0, 2]}]}}, "is not an index"),
        ({"splits": {"train": [{**ENTRY, "tokens": 9}]}}, "the samples of x have 8 tokens, not 9"),
        ({"dtype": "int8"}, "dtype 'int8' in storage 'outs' is not known"),
        ({"storage": "cloud"}, "storage 'cloud' is not known"),
        ({"storage": "store"}, r"its shards lie in a feature store; name it in runtime.yaml .store.url."),
        ({"hidden_size": ...}, "is not an index .KeyError: 'hidden_size'"),
    ],
)
def test_an_index_of_another_kind_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path)
    values = {**read_json(tmp_path / "index.json"), **change}
    write_json(tmp_path / "index.json", {key: value for key, value in values.items() if value is not ...})
    with pytest.raises(ArtifactError, match=message):
        HiddenStates(tmp_path)


def test_no_index(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"index\.json: no such file"):
        HiddenStates(tmp_path)
    write_json(tmp_path / "index.json", [])
    with pytest.raises(ArtifactError, match="format None, expected 2"):
        HiddenStates(tmp_path)
