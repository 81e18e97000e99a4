"""The verifier's tokenizer, loaded in one way everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftyard.errors import DraftyardError


def load_tokenizer(model_dir: Path, trust_remote_code: bool) -> Any:
    """The tokenizer of a materialised verifier. Raises DraftyardError when it has no chat template: prompts could not be asked."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=trust_remote_code)
    if not tokenizer.chat_template:
        raise DraftyardError(
            f"the verifier in {model_dir.name} has no chat template (chat_template.jinja or tokenizer_config.json): "
            "use an instruction-tuned verifier, or add its template"
        )
    return tokenizer
