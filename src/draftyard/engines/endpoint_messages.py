"""What is said to an OpenAI-compatible server and what may come back: bodies of /v1/completions, /v1/models and /version.

Pure functions over bytes. Three ways out beside a result: `Again` (this is no answer at all), `UnusableError` (this answer is damaged) and
`EndpointError` (this is not the server that is needed).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from draftyard.engines.endpoint_client import Again, EndpointError, UnusableError
from draftyard.engines.requests import Request

FINISH_REASONS = ("stop", "length")
TOLD = re.compile(r"[0-9A-Za-z.+_:-]{1,128}")
"""What a server may tell for the lineage: a version or a fingerprint, never a path or a sentence."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One answer. fingerprint: of the server's configuration (OpenAI's `system_fingerprint`), None when it does not tell."""

    token_ids: list[int]
    finish_reason: str
    fingerprint: str | None


def request_body(model: str, request: Request) -> dict[str, Any]:
    """The body of a /v1/completions request.

    Every sampling option is written out: `vllm serve` takes those left out from the model's generation_config.json, the engine in process does not.
    """
    return {
        "model": model,
        "prompt": request.token_ids,
        "return_token_ids": True,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "n": 1,
        "stream": False,
        "skip_special_tokens": True,
        **({} if request.seed is None else {"seed": request.seed}),
    }


def read_completion(content: bytes, request: Request, *, model: str, vocab_size: int, tokenizer: Any) -> Completion:
    """The answer in the body of a completion.

    Raises:
        EndpointError: the server is not the one that is needed: another model answers, ids do not come back, or it read other tokens than it was sent.
        Again, UnusableError: the body is no JSON; this answer is damaged.
    """
    values = parse_json(content)
    choices = values.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise UnusableError(f"it must hold one choice, found {_shown(choices)}")
    choice = choices[0]
    if values.get("model") != model:
        raise EndpointError(
            f"the endpoint let {_shown(values.get('model'))} answer where generate.endpoint_model={model!r} was asked; "
            "a model served under several names answers under the first: use that one, if it is the verifier"
        )
    read, ids = choice.get("prompt_token_ids"), choice.get("token_ids")
    if read is None or ids is None:
        raise EndpointError(
            "the endpoint returns no token ids (choices[0].prompt_token_ids and .token_ids, asked for with return_token_ids): answers would have to be "
            "tokenised again, which is not exact. Serve the verifier with vLLM 0.10.2 or later, through no gateway that drops these fields, "
            "or use generate.engine=vllm"
        )
    if read != request.token_ids:
        raise EndpointError(
            f"the endpoint read other token ids than it was sent: {_difference(request.token_ids, read)}. "
            "It must not add, cut or translate tokens of a prompt given as ids"
        )
    if not isinstance(ids, list) or not ids or not all(type(token) is int and 0 <= token < vocab_size for token in ids):
        raise UnusableError(f"token_ids must be one id or more below {vocab_size}, found {_shown(ids)}")
    reason, text = choice.get("finish_reason"), choice.get("text")
    if reason not in FINISH_REASONS:
        raise UnusableError(f"finish_reason must be one of {', '.join(FINISH_REASONS)}, found {_shown(reason)}")
    if len(ids) > request.max_tokens or (reason == "length" and len(ids) < request.max_tokens):
        raise UnusableError(f"{len(ids)} tokens and finish_reason {reason} do not fit max_tokens={request.max_tokens}")
    if not isinstance(text, str) or not text_fits(text, ids, tokenizer):
        own = tokenizer.decode(ids, skip_special_tokens=True)
        raise UnusableError(f"its text {_shown(text)} is not what its token ids mean to the verifier's tokenizer, {_shown(own)}")
    return Completion(token_ids=ids, finish_reason=reason, fingerprint=_told(values.get("system_fingerprint")))


def text_fits(text: str, ids: list[int], tokenizer: Any) -> bool:
    """Whether `text` can be what a server decoded from `ids`.

    Blanks and characters cut in the middle do not count: a server decodes token by token and sees the prompt before the answer. Nor does
    the last token: an end token has no text, even where the tokenizer does not call it special.
    """
    return _letters(text) in (_letters(tokenizer.decode(part, skip_special_tokens=True)) for part in (ids, ids[:-1]))


def read_models(content: bytes) -> dict[str, int | None]:
    """Served names -> longest sequence, None where the server does not tell, from /v1/models. Raises UnusableError."""
    data = parse_json(content).get("data")
    if not isinstance(data, list) or not all(isinstance(model, dict) and isinstance(model.get("id"), str) for model in data):
        raise UnusableError(f"the list of models is {_shown(data)}")
    return {model["id"]: model.get("max_model_len") if type(model.get("max_model_len")) is int else None for model in data}


def read_version(content: bytes) -> str | None:
    """The version in vLLM's /version, None when the page is another one."""
    try:
        return _told(parse_json(content).get("version"))
    except Again:
        return None


def parse_json(content: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises Again when it holds none: a gateway's page, or an answer that was cut."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise Again(f"the answer is no JSON object but {_shown(content[:200].decode('utf-8', 'replace'))}")
    return values


def _told(value: object) -> str | None:
    return value if isinstance(value, str) and TOLD.fullmatch(value) else None


def _letters(text: str) -> str:
    return "".join(text.replace("\ufffd", "").split())


def _difference(sent: list[int], read: Any) -> str:
    if not isinstance(read, list):
        return f"no list but {_shown(read)}"
    place = next((i for i, (a, b) in enumerate(zip(sent, read, strict=False)) if a != b), min(len(sent), len(read)))
    return (
        f"{len(sent)} sent, {len(read)} read, the first difference at {place} ({_shown(sent[place : place + 4])} sent, {_shown(read[place : place + 4])} read)"
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
