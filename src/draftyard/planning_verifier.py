"""Where a plan finds the verifier's geometry without a download, and how large the verifier is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftyard.artifacts.untrusted import read_untrusted_json
from draftyard.draft.config_values import text_config, with_overrides
from draftyard.draft.geometry import VerifierGeometry
from draftyard.draft.verifier_size import verifier_size
from draftyard.errors import ArtifactError
from draftyard.params.load import Params

MLA_FAMILIES = ("deepseek_v2", "deepseek_v3", "kimi_k2")
EXPERT_FAMILIES = ("qwen3_moe", "gpt_oss")


@dataclass(frozen=True)
class VerifierSource:
    """The verifier's geometry and where it was read. num_bytes: of its weight files. dense: whether every weight works on every token."""

    geometry: VerifierGeometry
    origin: str
    num_parameters: int
    num_bytes: int
    mla: bool
    dense: bool


def find_verifier(params: Params, root: Path, params_file: Path, config: Path | None = None) -> VerifierSource:
    """The verifier's geometry without a download: `config` if given, the directory of a local verifier, models/verifier.json
    when it is the card of this verifier, or profiles/verifiers/<name>.config.json.

    Raises ArtifactError when none of them is there.
    """
    v = params.verifier
    overrides = v.engine_args.get("hf_overrides", {})
    if config is not None:
        return _from_config(config, overrides)
    if v.source == "path":
        return _from_config(Path(v.name) / "config.json", overrides)
    card_file = root / "models/verifier.json"
    if card_file.is_file():
        from draftyard.artifacts.card import read_card

        card = read_card(card_file)
        if (card.source, card.name, card.revision) == (v.source, v.name, v.revision):
            mla = card.geometry.model_type in MLA_FAMILIES
            dense = card.geometry.model_type not in (*MLA_FAMILIES, *EXPERT_FAMILIES)
            return VerifierSource(card.geometry, str(card_file), card.num_parameters, card.weights_bytes, mla, dense)
    name = f"{v.name.rsplit('/', 1)[-1].lower()}.config.json"
    homes = (root / "profiles/verifiers", params_file.absolute().parent / "verifiers", Path(__file__).parents[2] / "profiles/verifiers")
    for home in homes:
        if (home / name).is_file():
            return _from_config(home / name, overrides)
    raise ArtifactError(f"profiles/verifiers/{name}: no such file; give --verifier-config with the config.json of {v.name}, or run dvc repro verifier first")


def _from_config(path: Path, overrides: Mapping[str, Any]) -> VerifierSource:
    raw = with_overrides(read_untrusted_json(path), overrides)
    geometry = VerifierGeometry.from_config(raw, str(path))
    size = verifier_size(raw, geometry, str(path))
    return VerifierSource(geometry, str(path), size.parameters, size.num_bytes, text_config(raw).get("kv_lora_rank") is not None, size.experts == 0)
