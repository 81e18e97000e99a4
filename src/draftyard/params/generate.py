"""params group `generate`: how the verifier answers the prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from draftyard.params.base import require


@dataclass(frozen=True, kw_only=True)
class GenerateParams:
    """The verifier's answers. Any change rebuilds from `generate` on."""

    engine: Literal["vllm", "endpoint"]
    """vllm: vLLM on this machine; endpoint: an OpenAI-compatible server that serves the verifier and returns token ids."""
    endpoint_model: str | None
    """Name under which the endpoint serves the verifier; null with engine vllm. On a server of several models it decides who answers."""
    max_new_tokens: int
    """Longest answer of a training prompt per turn, in tokens."""
    holdout_max_new_tokens: int
    """Longest answer of a holdout prompt per turn, in tokens; also the length served by `verify`."""
    max_model_len: int
    """Longest sequence (prompt and answers), in tokens; longer prompts are skipped and counted."""
    temperature: float
    """0: greedy. Holdout answers are always greedy: simulation and the equality proof need it."""
    top_p: float
    """Nucleus sampling for training prompts; 1: off."""
    samples_per_prompt: int
    """Answers per training prompt; more than one needs a temperature."""
    seed: int
    """Root of the per-sample seeds."""
    chat_template_kwargs: dict[str, Any]
    """Passed to the chat template, e.g. {enable_thinking: false}; must be what serving uses."""
    max_skipped_fraction: float
    """The stage fails when a larger fraction of prompts gives no usable answer, 0..1."""
    max_looping_fraction: float
    """The stage fails when a larger fraction of answers ends in a repetition loop, 0..1."""

    def __post_init__(self) -> None:
        if self.engine == "endpoint":
            require(
                bool((self.endpoint_model or "").strip()), "generate.endpoint_model", self.endpoint_model, "must name the served model: the endpoint answers"
            )
        else:
            require(self.endpoint_model is None, "generate.endpoint_model", self.endpoint_model, "is used by generate.engine endpoint only: must be null")
        require(self.max_new_tokens >= 2, "generate.max_new_tokens", self.max_new_tokens, "must be at least 2")
        require(self.holdout_max_new_tokens >= 2, "generate.holdout_max_new_tokens", self.holdout_max_new_tokens, "must be at least 2")
        longest = max(self.max_new_tokens, self.holdout_max_new_tokens)
        require(self.max_model_len > longest, "generate.max_model_len", self.max_model_len, f"must exceed the longest answer ({longest} tokens)")
        require(0 <= self.temperature <= 2, "generate.temperature", self.temperature, "must lie in [0, 2]")
        require(0 < self.top_p <= 1, "generate.top_p", self.top_p, "must lie in (0, 1]")
        require(self.samples_per_prompt >= 1, "generate.samples_per_prompt", self.samples_per_prompt, "must be at least 1")
        if self.samples_per_prompt > 1:
            require(
                self.temperature > 0,
                "generate.samples_per_prompt",
                self.samples_per_prompt,
                "needs generate.temperature above 0: greedy answers would all be the same",
            )
        for key in ("max_skipped_fraction", "max_looping_fraction"):
            require(0 <= getattr(self, key) <= 1, f"generate.{key}", getattr(self, key), "must lie in [0, 1]")
