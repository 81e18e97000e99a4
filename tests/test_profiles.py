"""Every shipped profile, without weights: valid, planned, and equal to public facts that are written down here a second time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from draftyard.draft.geometry import VerifierGeometry
from draftyard.draft.verifier_size import verifier_size
from draftyard.params.base import build
from draftyard.params.load import Params, load_file
from draftyard.params.yaml_file import read_yaml
from draftyard.planning import plan
from draftyard.runtime import Runtime

ROOT = Path(__file__).parents[1]
PROFILES = ROOT / "profiles"
MIXED_MODES = {"Qwen3-8B": "enable_thinking", "Qwen3-30B-A3B": "enable_thinking", "gpt-oss-20b": "reasoning_effort", "Kimi-K2.5": "thinking"}


@dataclass(frozen=True)
class Facts:
    """From the model card, and from the hub: its count of parameters, the bytes of its weight files. draft: heads, key-value heads, head_dim, MLP. gpu_gb: of the example."""

    name: str
    vocabulary: int
    hidden: int
    layers: int
    parameters: int
    weights_gb: float
    draft: tuple[int, int, int, int]
    gpu_gb: int


FACTS = [
    Facts("meta-llama/Llama-3.1-8B-Instruct", 128256, 4096, 32, 8_030_261_248, 16.06, (32, 8, 128, 14336), 80),
    Facts("meta-llama/Llama-3.3-70B-Instruct", 128256, 8192, 80, 70_553_706_496, 141.11, (64, 8, 128, 28672), 80),
    Facts("Qwen/Qwen3-8B", 151936, 4096, 36, 8_190_735_360, 16.38, (32, 8, 128, 12288), 80),
    Facts("Qwen/Qwen3-30B-A3B", 151936, 2048, 48, 30_532_122_624, 61.06, (32, 4, 128, 6144), 80),
    Facts("openai/gpt-oss-20b", 201088, 2880, 24, 20_914_757_184, 13.76, (64, 8, 64, 17280), 80),
    Facts("moonshotai/Kimi-K2-Instruct", 163840, 7168, 61, 1_026_408_232_448, 1029.2, (64, 64, 128, 18432), 141),
    Facts("moonshotai/Kimi-K2.5", 163840, 7168, 61, 1_026_408_232_448, 595.2, (64, 64, 128, 18432), 141),
]


def key(facts: Facts) -> str:
    return facts.name.rsplit("/", 1)[1].lower()


@pytest.fixture(params=FACTS, ids=key)
def facts(request: pytest.FixtureRequest) -> Facts:
    return request.param


def profile(facts: Facts) -> Params:
    return load_file(PROFILES / f"{key(facts)}.yaml")


def test_every_profile_has_facts_a_geometry_and_a_runtime() -> None:
    names = {path.stem for path in PROFILES.glob("*.yaml")}
    assert names == {key(facts) for facts in FACTS} == {path.stem for path in (PROFILES / "runtime").glob("*.yaml")}
    assert names < {path.name.removesuffix(".config.json") for path in (PROFILES / "verifiers").glob("*.json")}


def test_the_verifier_is_pinned_to_a_commit(facts: Facts) -> None:
    v = profile(facts).verifier
    assert (v.source, v.name) == ("hf", facts.name)
    assert v.revision is not None
    assert len(set(v.revision)) > 8  # no place-holder
    assert v.trust_remote_code is facts.name.startswith("moonshotai/")  # whose tokenizer is code
    assert v.engine_args["dtype"] == "bfloat16"


def test_the_geometry_is_the_models(facts: Facts) -> None:
    path = PROFILES / f"verifiers/{key(facts)}.config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    g = VerifierGeometry.from_config(config, path.name)
    assert (g.vocab_size, g.hidden_size, g.num_hidden_layers, g.tie_word_embeddings) == (facts.vocabulary, facts.hidden, facts.layers, False)
    size = verifier_size(config, g)
    assert size.parameters == facts.parameters
    assert size.num_bytes / 1e9 == pytest.approx(facts.weights_gb, rel=2e-3)


def test_the_plan_counts_what_the_formula_counts(facts: Facts, tmp_path: Path) -> None:
    params = profile(facts)
    made = plan(params, tmp_path, PROFILES / f"{key(facts)}.yaml").to_json()
    heads, kv, head_dim, mlp = facts.draft
    draft_vocabulary, hidden = 32000, facts.hidden
    attention = 2 * hidden * head_dim * (heads + 2 * kv) + hidden * heads * head_dim  # q, k, v over embedding and state; o
    layer = attention + 3 * hidden * mlp + 3 * hidden  # and input, hidden and post-attention norm
    body = 3 * hidden * hidden + layer + hidden  # fc over three states; final norm
    lm_head, embeddings = draft_vocabulary * hidden, facts.vocabulary * hidden
    assert made["parameters"] == {
        "saved": embeddings + body + lm_head,
        "total": embeddings + body + 2 * lm_head + hidden,
        "trainable": body + lm_head,
    }
    assert made["storage"]["bytes_per_token"] == 4 * hidden * 2
    assert made["storage"]["verifier_bytes"] / 1e9 == pytest.approx(facts.weights_gb, rel=2e-3)
    assert made["seconds"] is None or facts.name.startswith(("meta-llama/", "Qwen/Qwen3-8B"))


def test_aux_layers_are_the_published_ones_counted_from_the_embedding(facts: Facts) -> None:
    counted_from_the_first_layer = (1, facts.layers // 2 - 1, facts.layers - 4)  # as SpecForge and NVIDIA count
    assert profile(facts).hidden_states.aux_layer_ids == tuple(number + 1 for number in counted_from_the_first_layer)


def test_the_mode_of_thinking_is_said_where_there_is_one(facts: Facts) -> None:
    g = profile(facts).generate
    name = facts.name.rsplit("/", 1)[1]
    assert set(g.chat_template_kwargs) == ({MIXED_MODES[name]} if name in MIXED_MODES else set())
    thinks = g.chat_template_kwargs not in ({}, {"thinking": False}, {"enable_thinking": False})
    assert g.max_new_tokens >= (4096 if thinks else 2048)
    assert 0.6 <= g.temperature <= 1.0


def test_samples_are_not_cut_again_in_training(facts: Facts) -> None:
    params = profile(facts)
    assert params.train.max_sample_tokens == params.generate.max_model_len
    assert params.verify.num_speculative_tokens <= params.train.ttt_steps


def test_the_runtime_example_holds_the_verifier_twice(facts: Facts) -> None:
    path = PROFILES / f"runtime/{key(facts)}.yaml"
    runtime = build(Runtime, "runtime", read_yaml(path))
    engine = runtime.engine
    gpus = engine.tensor_parallel_size * engine.pipeline_parallel_size
    assert runtime.ray.gpus_per_engine == gpus
    config = json.loads((PROFILES / f"verifiers/{key(facts)}.config.json").read_text(encoding="utf-8"))
    g = VerifierGeometry.from_config(config)
    assert g.num_attention_heads % gpus == 0  # extraction and drafting: every GPU has a slice of every layer
    assert facts.weights_gb / gpus < engine.gpu_memory_utilization * facts.gpu_gb / 2 * 0.85  # half of the memory per engine, 15 % of it for the KV cache
    experts = "experts" in json.dumps(config)
    assert not engine.enable_expert_parallel or (experts and gpus > 1)
    assert path.read_text(encoding="utf-8").startswith(f"# An example of runtime.yaml for profiles/{key(facts)}.yaml on ")
