"""Copies of this repository with a tiny random verifier and params that build in a minute or two."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
VERIFIER = "verifiers/tiny"
TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}\n{{ message['content'] }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
LEFT_OUT = ("dvc.lock", "reports/", "tests/", "benchmarks/", "docs/")

TINY: dict[str, dict[str, Any]] = {
    "verifier": {"source": "path", "name": VERIFIER, "revision": None, "file": None, "sha256": None, "engine_args": {"dtype": "float32"}},
    "prompts": {"max_prompts": 42, "holdout_prompts": 6},
    "generate": {"max_new_tokens": 12, "holdout_max_new_tokens": 12, "max_model_len": 768, "max_skipped_fraction": 0.5, "max_looping_fraction": 1.0},
    "hidden_states": {"dtype": "float32", "canary_samples": 2},
    "draft": {"vocab_size": 384, "head_dim": 64, "dtype": "float32"},
    "train": {"epochs": 1, "batch_tokens": 400, "learning_rate": 0.005, "warmup_steps": 2, "ttt_steps": 2},
    "verify": {"num_speculative_tokens": 2, "simulate_up_to": 3, "speed_prompts": 2, "speed_repeats": 1},
    "report": {"title": "A tiny draft"},
    "gate": {"min_acceptance_length": 1.0, "min_holdout_coverage": 0.0},
}
TINY_RUNTIME = {
    "engine": {"max_num_seqs": 8, "max_num_batched_tokens": 16384, "kv_cache_gib": 1, "samples_per_shard": 8},
    "train": {"device": "cpu", "micro_batch_tokens": 400, "checkpoint_every_steps": 2},
}


SECRETS = {
    name: f"not-a-secret-{number}-0123456789abcdef"
    for number, name in enumerate(
        ("HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "DRAFTYARD_ENDPOINT_API_KEY")
    )
}
"""In the environment of every build here: none of them may be found in what it writes."""


def save_tokenizer(directory: Path) -> None:
    """A byte-level BPE tokenizer of 512 tokens learned from the embedded prompts, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    bpe.train([str(path) for path in sorted((ROOT / "data/sources/embedded").glob("*.jsonl"))], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)


def save_verifier(directory: Path) -> None:
    """A random float32 Llama (hidden 64, 2 heads of 32, 1 KV head, 8 layers, 512 tokens) with that tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    save_tokenizer(directory)
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        max_position_embeddings=1024, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, initializer_range=0.1,
    )  # fmt: skip
    LlamaForCausalLM(config).eval().save_pretrained(directory)


def tiny_params(**changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The repository's params.yaml with TINY on top, and `changes` (group -> keys) on top of that."""
    params: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    for layer in (TINY, changes):
        for group, values in layer.items():
            params[group].update(copy.deepcopy(values))
    return params


def write_params(root: Path, **changes: dict[str, Any]) -> None:
    """Write tiny_params to `root`/params.yaml."""
    (root / "params.yaml").write_text(yaml.safe_dump(tiny_params(**changes), sort_keys=False), encoding="utf-8")


def write_runtime(root: Path, **changes: Any) -> None:
    """Write the tiny runtime.yaml; `changes` go to its group `engine`."""
    runtime: dict[str, Any] = yaml.safe_load((ROOT / "runtime.yaml").read_text(encoding="utf-8"))
    for group, values in TINY_RUNTIME.items():
        runtime[group].update(values)
    runtime["engine"].update(changes)
    (root / "runtime.yaml").write_text(yaml.safe_dump(runtime, sort_keys=False), encoding="utf-8")


def environment(root: Path) -> dict[str, str]:
    """This interpreter first on PATH, the package of `root`, and nothing that an outer build or git set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "GIT_", "DRAFTYARD_", "VLLM_"))}
    kept.update(SECRETS)
    kept.update(PATH=f"{Path(sys.executable).parent}:{kept['PATH']}", PYTHONPATH=str(root / "src"), HF_HUB_OFFLINE="1")
    for who in ("AUTHOR", "COMMITTER"):
        kept.update({f"GIT_{who}_NAME": "test", f"GIT_{who}_EMAIL": "test@example.org"})
    return kept


def run(root: Path, *command: str, check: bool = True, **extra: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in `root`. With `check`, a failure shows the end of its output."""
    result = subprocess.run(command, cwd=root, env=environment(root), capture_output=True, text=True, check=False, **extra)
    assert not check or result.returncode == 0, f"{' '.join(command)}: exit {result.returncode}\n{(result.stdout + result.stderr)[-4000:]}"
    return result


def stages_run(output: str) -> list[str]:
    """The stages whose command `dvc repro` ran, from its output, in order."""
    return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage '")]


def copy_work_tree(root: Path) -> None:
    """Copy the files of this repository's work tree that git tracks or would track, as far as a build reads them."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if not name.startswith(LEFT_OUT) and (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)


def make_repository(root: Path) -> Path:
    """A git and DVC repository at `root`, committed: this work tree, the tiny verifier, tiny params."""
    root.mkdir(parents=True)
    copy_work_tree(root)
    save_verifier(root / VERIFIER)
    write_params(root)
    write_runtime(root)
    run(root, "git", "init", "-q", "-b", "main")
    commit(root, "start")
    return root


def commit(root: Path, message: str) -> None:
    """Commit everything that git does not ignore."""
    run(root, "git", "add", "-A")
    run(root, "git", "commit", "-q", "--allow-empty", "-m", message)
