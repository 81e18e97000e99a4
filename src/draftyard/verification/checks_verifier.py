"""Checks against the verifier: sizes, embeddings, the rows of lm_head, end-of-text tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftyard.artifacts.safetensors_header import Checkpoint
from draftyard.artifacts.untrusted import open_regular, printable, read_untrusted_json
from draftyard.errors import ArtifactError
from draftyard.verification.check_report import Check, join
from draftyard.verification.subject import MAX_VERIFIER_JSON_BYTES, Draft, Verifier

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

IDS = ("verifier.hidden", "verifier.vocabulary", "verifier.positions", "verifier.embed_tokens", "verifier.lm_head", "vocabulary.end_tokens")
BLOCK_BYTES = 32 << 20
"""Float32 bytes of a block of rows."""
SUSPECTS = 32
"""How many of the least similar lm_head rows are searched for among the verifier's."""
MAX_TEMPLATE_BYTES = 1 << 20
READABLE = ("BF16", "F16", "F32", "F64")


def check_verifier(draft: Draft, verifier: Verifier | None, targets: NDArray[np.int64] | None, *, values: bool) -> Iterator[Check]:
    """All checks that need the verifier; "skipped" where it, its weights, or a usable d2t is missing."""
    if verifier is None:
        for check_id in IDS:
            yield Check(check_id, "skipped", "needs --verifier (or --verifier-config for sizes)")
        return
    yield from _check_sizes(draft, verifier)
    if verifier.weights is None or not values:
        reason = "values are not read" if verifier.weights is not None else "needs --verifier with its weights"
        yield Check("verifier.embed_tokens", "skipped", reason)
        yield Check("verifier.lm_head", "skipped", reason)
    else:
        yield _check_embed_tokens(draft, verifier, verifier.weights)
        yield _check_lm_head(draft, verifier, verifier.weights, targets)
    yield _check_end_tokens(verifier, targets)


def _check_sizes(draft: Draft, verifier: Verifier) -> Iterator[Check]:
    g, v = draft.geometry, verifier.geometry
    if g.target_hidden_size != v.hidden_size:
        key = "target_hidden_size" if draft.config.raw.get("target_hidden_size") is not None else "hidden_size"
        detail = f"the draft takes hidden states of width {g.target_hidden_size} ({key}), the verifier has hidden_size {v.hidden_size}"
        yield Check("verifier.hidden", "fail", detail, "this draft is for another verifier; if not, state target_hidden_size in the config")
    elif g.hidden_size != v.hidden_size and "embed_tokens.weight" not in draft.names:
        detail = f"hidden_size {g.hidden_size} differs from the verifier's {v.hidden_size}, and there is no embed_tokens.weight"
        yield Check(
            "verifier.hidden",
            "fail",
            detail,
            "an engine cannot share the verifier's embeddings with a draft of another width: save embed_tokens with the draft",
        )
    else:
        own = "" if g.hidden_size == v.hidden_size else f"; the draft itself is {g.hidden_size} wide, with its own embeddings"
        yield Check("verifier.hidden", "pass", f"hidden states of width {v.hidden_size}{own}")
    if g.vocab_size != v.vocab_size:
        detail = f"vocab_size {g.vocab_size} in the draft, {v.vocab_size} in the verifier"
        yield Check("verifier.vocabulary", "fail", detail, "token ids would not mean the same: this draft is for another verifier or tokenizer")
    else:
        yield Check("verifier.vocabulary", "pass", f"{v.vocab_size} tokens in both")
    notes = []
    if g.rope_theta != v.rope_theta:
        notes.append(f"rope theta {g.rope_theta:g} against {v.rope_theta:g}: the draft's own attention, fixed by its training")
    if g.rms_norm_eps != v.rms_norm_eps:
        notes.append(f"norm eps {g.rms_norm_eps:g} against {v.rms_norm_eps:g}: the draft's own norms")
    explained = f" ({'; '.join(notes)})" if notes else ""
    if g.max_position_embeddings < v.max_position_embeddings:
        detail = f"max_position_embeddings {g.max_position_embeddings}, the verifier serves {v.max_position_embeddings}{explained}"
        yield Check(
            "verifier.positions",
            "warn",
            detail,
            "acceptance falls, or the engine refuses, beyond the draft's positions: limit max_model_len, or train for longer contexts",
        )
    else:
        yield Check(
            "verifier.positions", "pass", f"{g.max_position_embeddings} positions, as many as the verifier's {v.max_position_embeddings} or more{explained}"
        )


@dataclass(frozen=True)
class RowComparison:
    """Row by row: equal bit for bit after rounding to the draft's dtype, and the cosine of each pair."""

    equal: NDArray[np.bool_]
    cosine: NDArray[np.float32]


def compare_rows(draft: Checkpoint, name: str, verifier: Checkpoint, verifier_name: str, targets: NDArray[np.int64]) -> RowComparison:
    """Compare row i of the draft's matrix with row targets[i] of the verifier's; `targets` strictly increasing. Memory: two blocks."""
    import numpy as np

    dtype = draft.tensors[name].spec.dtype
    num_rows, width = verifier.tensors[verifier_name].spec.shape
    block = max(1, BLOCK_BYTES // (4 * width))
    equal, cosine = np.zeros(len(targets), bool), np.zeros(len(targets), np.float32)
    for begin in range(0, num_rows, block):
        end = min(begin + block, num_rows)
        first, last = np.searchsorted(targets, [begin, end])
        if first == last:
            continue
        theirs = _rounded(verifier.rows(verifier_name, begin, end - begin)[targets[first:last] - begin], dtype)
        ours = draft.rows(name, int(first), int(last - first))
        equal[first:last] = (ours == theirs).all(axis=1)
        cosine[first:last] = np.einsum("ij,ij->i", _unit(ours), _unit(theirs))
    return RowComparison(equal, np.where(equal, np.float32(1), cosine))


def _check_embed_tokens(draft: Draft, verifier: Verifier, weights: Checkpoint) -> Check:
    import numpy as np

    check_id = "verifier.embed_tokens"
    spec, theirs = draft.spec("embed_tokens.weight"), verifier.embed_tokens()
    if spec is None:
        return Check(check_id, "pass", "absent: the engine shares the verifier's")
    if theirs is None:
        return Check(check_id, "skipped", "no embedding tensor of a known name in the verifier")
    wanted = weights.tensors[theirs].spec
    if spec.shape != wanted.shape or len(spec.shape) != 2 or spec.num_elements == 0:
        if draft.geometry.hidden_size != verifier.geometry.hidden_size:
            return Check(check_id, "pass", f"the draft's own, {draft.geometry.hidden_size} wide")
        return Check(check_id, "skipped", f"shapes differ: {list(spec.shape)} here, {list(wanted.shape)} in the verifier")
    if spec.dtype not in READABLE or wanted.dtype not in READABLE:
        return Check(check_id, "skipped", f"values of {spec.dtype} and {wanted.dtype} are not compared")
    rows = compare_rows(draft.checkpoint, draft.names["embed_tokens.weight"], weights, theirs, np.arange(spec.shape[0], dtype=np.int64))
    if rows.equal.all():
        return Check(check_id, "pass", f"the verifier's {spec.shape[0]} rows, bit for bit")
    different, cosine = int((~rows.equal).sum()), float(rows.cosine[~rows.equal].mean())
    if cosine > 0.9:
        return Check(
            check_id,
            "warn",
            f"{different} rows differ slightly from the verifier's (mean cosine {cosine:.3f}): trained embeddings, or another revision",
            "compare the verifier's revision with that of the training; an engine keeps both copies in memory",
        )
    return Check(
        check_id,
        "fail",
        f"{different} rows are not the verifier's (mean cosine {cosine:.3f}): random, or of another model",
        "the draft reads other embeddings than it was trained with: save them again, or leave embed_tokens out so that the engine shares the verifier's",
    )


def _check_lm_head(draft: Draft, verifier: Verifier, weights: Checkpoint, targets: NDArray[np.int64] | None) -> Check:
    import numpy as np

    check_id = "verifier.lm_head"
    spec, theirs = draft.spec("lm_head.weight"), verifier.lm_head()
    if spec is None or theirs is None or targets is None:
        missing = "the draft has no lm_head" if spec is None else "no lm_head of a known name in the verifier" if theirs is None else "d2t is not usable"
        return Check(check_id, "skipped", missing)
    wanted = weights.tensors[theirs].spec
    if (
        len(spec.shape) != 2
        or len(wanted.shape) != 2
        or spec.num_elements == 0
        or spec.shape != (len(targets), wanted.shape[1])
        or targets[-1] >= wanted.shape[0]
    ):
        return Check(check_id, "skipped", f"shapes are not comparable: {list(spec.shape)} here, {list(wanted.shape)} in the verifier")
    if spec.dtype not in READABLE or wanted.dtype not in READABLE:
        return Check(check_id, "skipped", f"values of {spec.dtype} and {wanted.dtype} are not compared")
    name = draft.names["lm_head.weight"]
    rows = compare_rows(draft.checkpoint, name, weights, theirs, targets)
    if rows.equal.all():
        return Check(check_id, "pass", f"frozen: the verifier's rows of the {len(targets)} draft tokens, bit for bit, in d2t order")
    changed = np.flatnonzero(~rows.equal)
    suspects = changed[np.argsort(rows.cosine[changed], kind="stable")[:SUSPECTS]]
    found, similarity = _closest_rows(draft.checkpoint, name, suspects, weights, theirs)
    misplaced = (similarity > 0.9) & (similarity > rows.cosine[suspects] + 0.1) & (found != targets[suspects])
    if misplaced.any():
        at = int(np.flatnonzero(misplaced)[0])
        row, token = int(suspects[at]), int(found[at])
        count = f"{misplaced.sum()} of the {len(suspects)} least similar rows"
        detail = f"rows do not belong to their tokens: row {row} stands for token {targets[row]} by d2t, but is the verifier's row of token {token} ({count})"
        return Check(
            check_id,
            "fail",
            detail,
            "lm_head and d2t are of two vocabularies: training accuracy does not show it, served acceptance is near zero; take both of one run",
        )
    cosine = float(rows.cosine.mean())
    if cosine > 0.5:
        return Check(
            check_id, "pass", f"trained: {len(changed)} of {len(targets)} rows moved away from the verifier's (mean cosine {cosine:.3f}), none to another token"
        )
    return Check(
        check_id,
        "warn",
        f"unrelated to the verifier's rows (mean cosine {cosine:.3f}): trained from scratch, or random",
        "no way to tell the two apart from the file: measure acceptance before serving",
    )


def _closest_rows(
    draft: Checkpoint, name: str, rows: NDArray[np.int64], verifier: Checkpoint, verifier_name: str
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """For each of a few draft rows, the verifier's most similar row and its cosine."""
    import numpy as np

    wanted = _unit(np.concatenate([draft.rows(name, int(row), 1) for row in rows]))  # (suspects, width)
    num_rows, width = verifier.tensors[verifier_name].spec.shape
    block = max(1, BLOCK_BYTES // (4 * width))
    found, best = np.zeros(len(rows), np.int64), np.full(len(rows), -2, np.float32)
    for begin in range(0, num_rows, block):
        similarity = wanted @ _unit(verifier.rows(verifier_name, begin, min(block, num_rows - begin))).T  # (suspects, block)
        at = similarity.argmax(axis=1)
        value = similarity[np.arange(len(rows)), at]
        better = value > best
        found, best = np.where(better, begin + at, found), np.where(better, value, best)
    return found, best


def _check_end_tokens(verifier: Verifier, targets: NDArray[np.int64] | None) -> Check:
    import numpy as np

    check_id = "vocabulary.end_tokens"
    if targets is None:
        return Check(check_id, "skipped", "d2t is not usable")
    try:
        ends, special, chat = _special_tokens(verifier)
    except ArtifactError as error:
        return Check(check_id, "skipped", str(error))
    inside = set(np.asarray(targets).tolist())
    if not ends:
        return Check(check_id, "skipped", "the verifier names no end-of-text token")
    if not inside & set(ends):
        return Check(
            check_id,
            "fail",
            f"no end-of-text token ({_named(ends, special)}) is in the draft vocabulary",
            "the draft can never propose the end of an answer: every answer ends in a rejected round; build the vocabulary with the special tokens included",
        )
    outside = [token for token in ends if token not in inside] + [token for token in chat if token not in inside and token not in ends]
    if outside:
        return Check(
            check_id,
            "warn",
            f"outside the draft vocabulary: {_named(outside, special)}, which the verifier's config or chat template uses",
            "the draft can never propose them: include them unless the verifier never writes them",
        )
    return Check(
        check_id, "pass", f"end-of-text tokens {_named(ends, special)} are inside; so are {sum(t in inside for t in special)} of {len(special)} special tokens"
    )


def _special_tokens(verifier: Verifier) -> tuple[list[int], dict[int, str], list[int]]:
    """Ids that end a text, all special tokens (id -> text), and the special ones that the chat template writes."""
    ends = list(verifier.geometry.eos_token_ids)
    if verifier.directory is None:
        return ends, {}, []

    def load(name: str) -> Mapping[str, Any]:
        path = verifier.directory / name if verifier.directory else None
        return read_untrusted_json(path, max_bytes=MAX_VERIFIER_JSON_BYTES) if path and path.exists() else {}

    generation, settings = load("generation_config.json").get("eos_token_id"), load("tokenizer_config.json")
    ends += [token for token in (generation if isinstance(generation, list) else [generation]) if type(token) is int]
    added = load("tokenizer.json").get("added_tokens")
    special = {
        t["id"]: str(t.get("content"))
        for t in (added if isinstance(added, list) else [])
        if isinstance(t, Mapping) and t.get("special") and type(t.get("id")) is int
    }
    decoder = settings.get("added_tokens_decoder")
    if not special and isinstance(decoder, Mapping):
        special = {int(key): str(t.get("content")) for key, t in decoder.items() if key.isdigit() and isinstance(t, Mapping) and t.get("special")}
    eos = settings.get("eos_token")
    eos_text = eos.get("content") if isinstance(eos, Mapping) else eos
    ends += [token for token, text in special.items() if text == eos_text]
    template = settings.get("chat_template")
    template_file = verifier.directory / "chat_template.jinja"
    text = template if isinstance(template, str) else _read_text(template_file) if template_file.exists() else ""
    # Of what the template writes only what the verifier itself generates matters; openings (<|im_start|>) come with the prompt.
    chat = [token for token, content in special.items() if content and content in text and ("end" in content.lower() or "eot" in content.lower())]
    return sorted(set(ends)), special, sorted(set(chat))


def _read_text(path: Path) -> str:
    with open_regular(path) as file:
        return file.read(MAX_TEMPLATE_BYTES).decode("utf-8", errors="replace")


def _named(tokens: list[int], special: Mapping[int, str]) -> str:
    return join([f"{token} {printable(special[token], 40)}" if token in special else str(token) for token in tokens])


def _rounded(values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """float32 values rounded to nearest even in the draft's dtype, so that a copy in lower precision counts as equal."""
    import numpy as np

    if dtype == "F16":
        return values.astype(np.float16).astype(np.float32)
    if dtype == "BF16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return values


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows scaled to length 1; a zero row stays zero, a row that is not finite is taken for zero."""
    import numpy as np

    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1)
