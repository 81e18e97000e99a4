"""Stage `verifier`: pins the verifier; models/verifier.json is its identity card."""

from __future__ import annotations

import logging

from draftyard.artifacts.card import write_card
from draftyard.artifacts.files import write_json
from draftyard.params.verifier import VerifierParams
from draftyard.stage import StageContext, run_stage
from draftyard.verifiers import resolve

logger = logging.getLogger(__name__)


def main(context: StageContext) -> None:
    """Fetch the verifier into the work area, read its card off its files, write the card and the stage's metrics."""
    params = context.group(VerifierParams, "verifier")
    card, _ = resolve(params, context.work)
    logger.info(
        "%s: %s, %.1f M parameters, %d layers of width %d",
        card.name,
        card.geometry.model_type,
        card.num_parameters / 1e6,
        card.geometry.num_hidden_layers,
        card.geometry.hidden_size,
    )
    write_card(context.root / "models" / "verifier.json", card)
    metrics = {
        "name": card.name,
        "num_parameters": card.num_parameters,
        "weights_bytes": card.weights_bytes,
        "dtype": card.dtype,
        "has_chat_template": card.chat_template_digest is not None,
        "geometry": card.geometry.to_json(),
    }
    write_json(context.root / "reports" / "stages" / "verifier.json", metrics)


if __name__ == "__main__":
    run_stage("verifier", main)
