"""Where a plan finds the verifier's geometry without a download, and how large the verifier is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftyard.artifacts.untrusted import read_untrusted_json
from draftyard.draft.config_values import text_config
from draftyard.draft.geometry import VerifierGeometry
from draftyard.errors import ArtifactError
from draftyard.params.load import Params

MLA_FAMILIES = ("deepseek_v2", "deepseek_v3", "kimi_k2")


@dataclass(frozen=True)
class VerifierSource:
    """The verifier's geometry and where it was read. weights: estimated parameters, None for a family that has no dense formula."""

    geometry: VerifierGeometry
    origin: str
    num_parameters: int | None
    mla: bool


def find_verifier(params: Params, root: Path, params_file: Path, config: Path | None = None) -> VerifierSource:
    """The verifier's geometry without a download: `config` if given, the directory of a local verifier, models/verifier.json
    when it is the card of this verifier, or profiles/verifiers/<name>.config.json.

    Raises ArtifactError when none of them is there.
    """
    v = params.verifier
    if config is not None:
        return _from_config(config)
    if v.source == "path":
        return _from_config(Path(v.name) / "config.json")
    card_file = root / "models/verifier.json"
    if card_file.is_file():
        from draftyard.artifacts.card import read_card

        card = read_card(card_file)
        if (card.source, card.name, card.revision) == (v.source, v.name, v.revision):
            return VerifierSource(card.geometry, str(card_file), card.num_parameters, card.geometry.model_type in MLA_FAMILIES)
    name = f"{v.name.rsplit('/', 1)[-1].lower()}.config.json"
    homes = (root / "profiles/verifiers", params_file.absolute().parent / "verifiers", Path(__file__).parents[2] / "profiles/verifiers")
    for home in homes:
        if (home / name).is_file():
            return _from_config(home / name)
    raise ArtifactError(f"profiles/verifiers/{name}: no such file; give --verifier-config with the config.json of {v.name}, or run dvc repro verifier first")


def _from_config(path: Path) -> VerifierSource:
    raw = read_untrusted_json(path)
    geometry = VerifierGeometry.from_config(raw, str(path))
    text = text_config(raw)
    mla = text.get("kv_lora_rank") is not None
    experts = any(text.get(key) for key in ("n_routed_experts", "num_experts", "num_local_experts"))
    return VerifierSource(geometry, str(path), None if mla or experts else _dense_parameters(geometry), mla)


def _dense_parameters(v: VerifierGeometry) -> int:
    """Parameters of a dense Llama-like verifier."""
    attention = v.hidden_size * v.head_dim * 2 * (v.num_attention_heads + v.num_key_value_heads)
    layer = attention + 3 * v.hidden_size * v.intermediate_size + 2 * v.hidden_size
    return v.num_hidden_layers * layer + v.vocab_size * v.hidden_size * (1 if v.tie_word_embeddings else 2) + v.hidden_size
