"""The GGUF reader against the gguf package's own writer, and against damage."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest

from draftyard.artifacts.gguf import open_gguf
from draftyard.errors import ArtifactError


@pytest.fixture
def small(tmp_path):
    """One field of each shape, tensors of four element types."""
    import gguf

    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_uint32("a.number", 7)
    writer.add_float32("a.float", 0.25)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "naïve")
    writer.add_array("a.words", ["x", "", "Ġy"])
    writer.add_array("a.numbers", [3, -1, 2])
    values = np.random.default_rng(0).standard_normal((3, 64), dtype=np.float32)
    writer.add_tensor("f32", values)
    writer.add_tensor("f16", values.astype(np.float16))
    for kind in (gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0):
        writer.add_tensor(kind.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, values


def test_fields_and_tensors_are_what_the_writer_was_given(small):
    path, values = small
    with open_gguf(path) as file:
        assert {key: file.fields[key] for key in ("a.number", "a.float", "a.bool", "a.text", "a.words", "a.numbers")} == {
            "a.number": 7,
            "a.float": 0.25,
            "a.bool": True,
            "a.text": "naïve",
            "a.words": ["x", "", "Ġy"],
            "a.numbers": [3, -1, 2],
        }
        assert {name: tensor.shape for name, tensor in file.tensors.items()} == dict.fromkeys(["f32", "f16", "Q4_1", "Q8_0"], (3, 64))
        assert np.array_equal(file.load("f32"), values)
        assert np.array_equal(file.load("f16"), values.astype(np.float16).astype(np.float32))
        scale = np.abs(values).reshape(-1, 32).max(axis=1).max()
        assert np.abs(file.load("Q8_0") - values).max() <= scale / 127  # a step of 8 bits
        assert np.abs(file.load("Q4_1") - values).max() <= 2 * scale / 15  # a step of 4 bits


@pytest.mark.parametrize("keep", [0, 3, 10, 23, 40, 120, 400, -1])
def test_a_cut_file_is_refused(small, keep):
    path, _ = small
    content = path.read_bytes()
    path.write_bytes(content[:keep] if keep >= 0 else content[:-2000])
    with pytest.raises(ArtifactError, match=r"small\.gguf"), open_gguf(path):
        pass


@pytest.mark.parametrize(
    ("offset", "value", "rule"),
    [
        (0, b"GGML", "not a GGUF file"),
        (4, struct.pack("<I", 1), "GGUF version 1"),
        (8, struct.pack("<Q", 1 << 60), "claims 1152921504606846976 tensors"),
        (16, struct.pack("<Q", 1 << 60), "claims 1152921504606846976 fields"),
        (24, struct.pack("<Q", 1 << 62), "claims 4611686018427387904 bytes"),
    ],
)
def test_a_hostile_header_is_refused_before_anything_is_allocated(small, offset, value, rule):
    path, _ = small
    content = bytearray(path.read_bytes())
    content[offset : offset + len(value)] = value
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=rule), open_gguf(path):
        pass


def test_no_single_damaged_byte_of_the_header_ends_in_a_traceback(small):
    path, _ = small
    content = path.read_bytes()
    random = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[int(random.integers(0, 700))] = int(random.integers(0, 256))
        path.write_bytes(damaged)
        with contextlib.suppress(ArtifactError), open_gguf(path) as file:
            for name in file.tensors:
                file.load(name)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ArtifactError, match=r"absent\.gguf: cannot be read"), open_gguf(tmp_path / "absent.gguf"):
        pass
