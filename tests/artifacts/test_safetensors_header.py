"""Hostile and damaged checkpoint files: each ends in one sentence, at once, without allocating what it claims."""

from __future__ import annotations

import json
import os
import pickle
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from draftyard.artifacts.safetensors_header import INDEX_FILE, open_checkpoint, read_header, to_float32
from draftyard.artifacts.safetensors_writer import write_safetensors
from draftyard.draft.geometry import TensorSpec, expected_tensors
from draftyard.draft.layouts import read_draft_config
from draftyard.verification.checks import check_checkpoint

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 2,
    "intermediate_size": 6,
    "num_hidden_layers": 1,
    "vocab_size": 10,
    "draft_vocab_size": 5,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]},
}


def raw(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def checkpoint(directory: Path, content: bytes, config: Any = CONFIG) -> Path:
    (directory / "model.safetensors").write_bytes(content)
    (directory / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return directory


def assert_refused(path: Path, sentence: str, seconds: float = 1.0) -> None:
    """`check` ends in exit 2 with the sentence, within a second, in little memory."""
    tracemalloc.start()
    started = time.perf_counter()
    report = check_checkpoint(path)
    elapsed, (_, peak) = time.perf_counter() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.exit_code == 2
    assert report.error is not None
    assert sentence in report.error
    assert "\n" not in report.error
    assert len(report.error) < 1000
    assert elapsed < seconds * 5  # tracing costs about that factor
    assert peak < 100 << 20


GOOD = raw(json.dumps({"a": entry()}).encode(), bytes(8))

HEADERS: list[tuple[str, bytes, str]] = [
    ("empty file", b"", "too few"),
    ("four bytes", b"abcd", "too few"),
    ("truncated data", GOOD[:-3], "truncated: its tensors end"),
    ("truncated header", GOOD[:20], "claims"),
    ("header of 2^60 bytes", raw(b"{}", length=1 << 60), "claims 1152921504606846976 bytes"),
    ("header of 2^64-1 bytes", raw(b"{}", length=(1 << 64) - 1), "claims 18446744073709551615 bytes"),
    ("pickle", pickle.dumps({"a": np.ones(3)}, protocol=2) + bytes(100), "is a pickle"),
    ("zip of torch.save", b"PK\x03\x04" + bytes(200), "is a pickle"),
    ("not JSON", raw(b"{]"), "is not valid JSON"),
    ("not UTF-8", raw(b'{"\xff": 1}'), "is not valid JSON"),
    ("a list", raw(b"[]"), "expected an object"),
    ("deep JSON", raw(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "nested too deeply"),
    ("huge JSON", raw(b'{"a":"' + b"x" * (5 << 20) + b'"}'), "a header of"),
    ("number of 10000 digits", raw(b'{"a":{"dtype":"F32","shape":[' + b"9" * 10_000 + b'],"data_offsets":[0,8]}}', bytes(8)), "is not valid JSON"),
    (
        "duplicate keys",
        raw(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8)),
        "'a' is written twice",
    ),
    ("NaN in the header", raw(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', bytes(8)), "NaN is not a number"),
    ("overlap", raw(json.dumps({"a": entry(), "b": entry(offsets=(4, 12))}).encode(), bytes(12)), "tensor b overlaps tensor a"),
    ("same bytes twice", raw(json.dumps({"a": entry(), "b": entry()}).encode(), bytes(8)), "overlaps"),
    ("hole", raw(json.dumps({"a": entry(), "b": entry(offsets=(12, 20))}).encode(), bytes(20)), "belong to no tensor"),
    ("bytes after the end", GOOD + b"extra", "5 bytes after the last tensor"),
    ("offsets out of range", raw(json.dumps({"a": entry(shape=(1 << 40,), offsets=(0, 1 << 42))}).encode(), bytes(8)), "truncated"),
    ("offsets backwards", raw(json.dumps({"a": entry(offsets=(8, 0))}).encode(), bytes(8)), "say otherwise"),
    ("negative offsets", raw(json.dumps({"a": entry(offsets=(-8, 0))}).encode(), bytes(8)), "whole numbers"),
    ("shape and bytes differ", raw(json.dumps({"a": entry(shape=(3,))}).encode(), bytes(8)), "takes 12 bytes"),
    ("shape overflow", raw(json.dumps({"a": entry(shape=(1 << 61, 1 << 61, 1 << 61))}).encode(), bytes(8)), "say otherwise"),
    ("shape of booleans", raw(json.dumps({"a": entry(shape=(True, 2))}).encode(), bytes(8)), "whole numbers"),
    ("unknown dtype", raw(json.dumps({"a": entry(dtype="Q4")}).encode(), bytes(8)), "unknown dtype Q4"),
    ("missing keys", raw(b'{"a":{"dtype":"F32"}}', bytes(8)), "exactly dtype, shape and data_offsets"),
    ("control characters in a name", raw(json.dumps({"\x1b[31mred\n": entry(dtype="Q")}).encode(), bytes(8)), "\\x1b[31mred\\x0a"),
]


@pytest.mark.parametrize(("content", "sentence"), [row[1:] for row in HEADERS], ids=[row[0] for row in HEADERS])
def test_hostile_header(content: bytes, sentence: str, tmp_path: Path) -> None:
    assert_refused(checkpoint(tmp_path, content), sentence)


CONFIGS: list[tuple[str, str, str]] = [
    ("NaN", json.dumps({**CONFIG, "rms_norm_eps": float("nan")}), "NaN is not a number"),
    ("infinite by exponent", json.dumps(CONFIG).replace("1e-06", "1e999"), "rms_norm_eps=inf: must be a finite number"),
    ("duplicate keys", '{"hidden_size": 4, "hidden_size": 5}', "'hidden_size' is written twice"),
    ("deep", '{"a":' + "[" * 50_000 + "]" * 50_000 + "}", "nested too deeply"),
    ("huge", '{"a": "' + "x" * (5 << 20) + '"}', "more than the"),
    ("text for a number", json.dumps({**CONFIG, "hidden_size": "4"}), "hidden_size='4': must be a whole number"),
    ("2^60 layers", json.dumps({**CONFIG, "num_hidden_layers": 1 << 60}), "num_hidden_layers="),
    ("a million layers", json.dumps({**CONFIG, "num_hidden_layers": 1_000_000}), "at most 256 layers"),
    ("nested config is a list", json.dumps({**CONFIG, "transformer_layer_config": []}), "transformer_layer_config=[]: must be an object"),
    ("no JSON", "hello", "is not valid JSON"),
]


@pytest.mark.parametrize(("config", "sentence"), [row[1:] for row in CONFIGS], ids=[row[0] for row in CONFIGS])
def test_hostile_config(config: str, sentence: str, tmp_path: Path) -> None:
    assert_refused(checkpoint(tmp_path, GOOD, config), sentence)


def test_a_config_cannot_make_the_check_allocate(tmp_path: Path) -> None:
    tracemalloc.start()
    report = check_checkpoint(checkpoint(tmp_path, GOOD, {**CONFIG, "vocab_size": (1 << 31) - 1, "draft_vocab_size": (1 << 31) - 1, "hidden_size": 1 << 30}))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.exit_code == 1
    assert peak < 10 << 20


def test_no_config(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(GOOD)
    assert_refused(tmp_path, "config.json: no such file")


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    assert_refused(tmp_path, "only pickles (pytorch_model.bin)")
    assert_refused(tmp_path / "pytorch_model.bin", "is a pickle by its name")


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/stdin", "."])
def test_symlinks_to_devices_are_not_followed(target: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(target)
    assert_refused(tmp_path, "is not a regular file" if target != "/dev/stdin" else "model.safetensors")


def test_named_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    assert_refused(tmp_path, "is not a regular file")


def test_symlink_loop(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    assert_refused(tmp_path, "cannot be opened")


def test_symlink_to_a_file_is_followed(tmp_path: Path) -> None:  # a hub cache is made of such links
    (tmp_path / "blob").write_bytes(GOOD)
    (tmp_path / "model.safetensors").symlink_to("blob")
    assert list(read_header(tmp_path / "model.safetensors")) == ["a"]


def test_directory_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)  # root may read everything, so the refusal is put there
    assert_refused(tmp_path, "cannot be read (Permission denied)")


def test_missing_path_and_nul(tmp_path: Path) -> None:
    assert_refused(tmp_path / "nowhere", "no such file")
    assert_refused(Path("a\0b"), "cannot be")


def shards(directory: Path, **files: dict[str, Any]) -> dict[str, str]:
    weight_map: dict[str, str] = {}
    for file, tensors in files.items():
        save_file(tensors, directory / f"{file}.safetensors")
        weight_map |= dict.fromkeys(tensors, f"{file}.safetensors")
    return weight_map


def index(directory: Path, weight_map: Any) -> None:
    (directory / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))


A, B = {"a": np.ones(2, np.float32)}, {"b": np.ones(3, np.float32)}


def test_shards_are_read_through_the_index(tmp_path: Path) -> None:
    index(tmp_path, shards(tmp_path, one=A, two=B))
    opened = open_checkpoint(tmp_path)
    assert sorted(opened.tensors) == ["a", "b"]
    assert opened.index_problems == ()
    assert opened.vector("b").tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "file", ["../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..", "one.bin", "", "one.safetensors\0", ".hidden.safetensors", 3]
)
def test_index_cannot_leave_the_directory(file: object, tmp_path: Path) -> None:
    shards(tmp_path, one=A)
    index(tmp_path, {"a": file})
    assert_refused(tmp_path, "must be a plain *.safetensors name")


def test_index_names_a_missing_shard(tmp_path: Path) -> None:
    index(tmp_path, {**shards(tmp_path, one=A), "b": "two.safetensors"})
    assert_refused(tmp_path, "names two.safetensors, which is not there")


def test_shards_without_an_index(tmp_path: Path) -> None:
    shards(tmp_path, one=A, two=B)
    assert_refused(tmp_path, f"2 safetensors files (one.safetensors, two.safetensors, ...) without {INDEX_FILE}")


def stray_shard(directory: Path) -> None:
    weight_map = shards(directory, one=A)
    shards(directory, two=B)
    index(directory, weight_map)


def tensor_missing_from_shards(directory: Path) -> None:
    index(directory, {**shards(directory, one=A), "c": "one.safetensors"})


def tensor_missing_from_index(directory: Path) -> None:
    shards(directory, one={**A, **B})
    index(directory, {"a": "one.safetensors"})


def tensor_in_the_other_shard(directory: Path) -> None:
    weight_map = shards(directory, one=A, two=B)
    index(directory, {**weight_map, "a": "two.safetensors", "b": "one.safetensors"})


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (stray_shard, "two.safetensors is not in the index"),
        (tensor_missing_from_shards, "c is in the index but in no shard"),
        (tensor_missing_from_index, "b lies in one.safetensors but is not in the index"),
        (tensor_in_the_other_shard, "the index says two.safetensors"),
    ],
)
def test_index_that_contradicts_its_shards_fails(build: Callable[[Path], None], sentence: str, tmp_path: Path) -> None:
    build(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    report = check_checkpoint(tmp_path)
    assert report.exit_code == 1
    assert sentence in report.by_id("index").detail


def test_tensor_in_two_shards_fails(tmp_path: Path) -> None:
    shards(tmp_path, one=A, two={**A, **B})
    index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert "a" in check_checkpoint(tmp_path).by_id("tensors.duplicate").detail


# --- reading and writing --------------------------------------------------------------------------------------------


def test_rows_and_chunks_equal_the_library(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors: dict[str, Any] = {"m": rng.standard_normal((7, 5)).astype(np.float32), "h": rng.standard_normal((4, 3)).astype(np.float16), "i": np.arange(-3, 3)}
    save_file(tensors, tmp_path / "model.safetensors")
    opened = open_checkpoint(tmp_path)
    assert np.array_equal(opened.rows("m", 2, 3), tensors["m"][2:5])
    assert np.array_equal(opened.rows("h", 0, 4), tensors["h"].astype(np.float32))
    assert opened.vector("i").tolist() == tensors["i"].tolist()
    assert b"".join(opened.raw_chunks("m", chunk_bytes=11)) == tensors["m"].tobytes()


def test_bfloat16_by_hand() -> None:
    # 0x3F80 is 1, 0xC000 is -2, 0x7F80 is infinity (bfloat16 is the upper half of a float32)
    assert to_float32(bytes.fromhex("803f00c0807f"), "BF16").tolist() == [1.0, -2.0, float("inf")]


def test_written_files_are_the_librarys(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {"z": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.arange(4, dtype=np.int64), "m": np.array([True, False])}
    specs = {"z": TensorSpec("F32", (2, 3)), "a": TensorSpec("I64", (4,)), "m": TensorSpec("BOOL", (2,))}
    write_safetensors(tmp_path / "ours.safetensors", specs, lambda name: [tensors[name].tobytes()])
    back = load_file(tmp_path / "ours.safetensors")
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)
    assert {name: e.spec for name, e in read_header(tmp_path / "ours.safetensors").items()} == specs


# --- fuzzing --------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(["d2t", "t2d", "fc.weight", "norm.weight", "lm_head.weight", "midlayer.hidden_norm.weight", "layers.0.self_attn.q_proj.weight", "x"])
INNER_KEYS = st.sampled_from(
    ["rope_type", "type", "rope_theta", "full_attention", "eagle_aux_hidden_state_layer_ids", "verifier", "name_or_path", "norm_before_fc"]
)
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F16", "I64", "BOOL", "U8", "F8_E4M3", "Z"]),
        "shape": st.lists(st.integers(0, 12), max_size=3),
        "data_offsets": st.lists(st.integers(0, 64), min_size=2, max_size=2),
    }
)
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "50"))
"""Per test: some seconds in all; raise it for a long search."""
FUZZ = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def assert_answers(path: Path) -> None:
    """Whatever the files hold: a report, never an exception."""
    report = check_checkpoint(path)
    assert report.exit_code in (0, 1, 2)
    json.dumps(report.to_json())


@FUZZ
@given(content=st.binary(max_size=200), length=st.integers(0, (1 << 64) - 1) | st.none())
def test_fuzz_bytes(content: bytes, length: int | None, tmp_path: Path) -> None:
    assert_answers(checkpoint(tmp_path, raw(content, length=length)))


@FUZZ
@given(header=st.dictionaries(NAMES, ENTRY | JSON, max_size=4), data=st.binary(max_size=80))
def test_fuzz_header(header: dict[str, Any], data: bytes, tmp_path: Path) -> None:
    assert_answers(checkpoint(tmp_path, raw(json.dumps(header).encode(), data)))


@FUZZ
@given(
    tensors=st.dictionaries(NAMES, st.tuples(st.sampled_from(["F32", "BF16", "I64", "BOOL", "F8_E4M3"]), st.lists(st.integers(0, 12), max_size=3)), max_size=5),
    fill=st.integers(0, 255),
)
def test_fuzz_well_formed_files(tensors: dict[str, tuple[str, list[int]]], fill: int, tmp_path: Path) -> None:
    specs = {name: TensorSpec(dtype, tuple(shape)) for name, (dtype, shape) in tensors.items()}
    write_safetensors(tmp_path / "model.safetensors", specs, lambda name: [bytes([fill]) * specs[name].num_bytes])
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert check_checkpoint(tmp_path).exit_code == 1


@FUZZ
@given(
    changes=st.dictionaries(
        st.sampled_from(
            [
                *CONFIG,
                "transformer_layer_config",
                "rope_parameters",
                "rope_scaling",
                "layer_types",
                "sliding_window",
                "eagle_aux_hidden_state_layer_ids",
                "speculators_config",
                "kv_lora_rank",
                "norm_before_fc",
                "fc_norm",
                "dtype",
                "num_aux_hidden_states",
                "target_hidden_size",
                "speculators_model_type",
                "quantization_config",
            ]
        ),
        JSON | st.lists(st.integers(-2, 9), max_size=4) | st.dictionaries(INNER_KEYS, JSON, max_size=3),
        min_size=1,
        max_size=4,
    ),
    nested=st.booleans(),
)
def test_fuzz_config(changes: dict[str, Any], nested: bool, tmp_path: Path) -> None:
    specs = expected_tensors(read_draft_config(CONFIG, "config.json").geometry)
    if not (tmp_path / "model.safetensors").exists():
        rng = np.random.default_rng(0)
        write_safetensors(tmp_path / "model.safetensors", specs, lambda name: [rng.bytes(specs[name].num_bytes)])
    config = {"transformer_layer_config": {**CONFIG, **changes}, **changes} if nested else {**CONFIG, **changes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_answers(tmp_path)


@FUZZ
@given(value=JSON)
def test_fuzz_index(value: Any, tmp_path: Path) -> None:
    index(tmp_path, value)
    assert_answers(tmp_path)
