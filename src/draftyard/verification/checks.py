"""`draftyard check`: everything that can be said about a draft from its files, in the order in which it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from draftyard.draft.geometry import ParameterCounts, TensorSpec, count_weights, parameter_counts
from draftyard.errors import ArtifactError
from draftyard.verification.check_report import Check, CheckReport
from draftyard.verification.checks_config import check_aux_layers, check_engine, check_family, check_heads, check_layout, check_norm_flags
from draftyard.verification.checks_shapes import check_dtypes, check_fc, check_names, check_reference, check_shapes, tensor_table
from draftyard.verification.checks_values import VocabularyMap, check_values, check_vocabulary_map
from draftyard.verification.checks_verifier import check_verifier
from draftyard.verification.subject import Draft, Verifier, open_draft, open_verifier, read_reference


def check_checkpoint(
    path: Path, *, verifier_dir: Path | None = None, verifier_config: Path | None = None, reference: Path | None = None, values: bool = True
) -> CheckReport:
    """Check the EAGLE-3 draft at `path` (a directory, or a safetensors file beside its config.json).

    verifier_dir: the verifier's directory (config, tokenizer, weights); verifier_config: its config.json alone. Without them the
    checks that need a verifier are "skipped". reference: a tensor table (JSON) or another checkpoint. values: False reads headers only.
    Never raises for what the files hold: an unreadable checkpoint is a report with `error` set.
    """
    subject = str(path)
    try:
        draft = open_draft(path)
        verifier = open_verifier(verifier_dir, verifier_config)
        table = None if reference is None else read_reference(reference)
        checks = tuple(_all_checks(draft, verifier, table, str(reference), values=values))
    except ArtifactError as error:
        return CheckReport(subject=subject, error=str(error))
    return CheckReport(subject=subject, layout=draft.layout, parameters=_count(draft, checks), checks=checks, tensors=tensor_table(draft))


def _all_checks(draft: Draft, verifier: Verifier | None, reference: Mapping[str, TensorSpec] | None, reference_name: str, *, values: bool) -> Iterator[Check]:
    yield from check_layout(draft)
    yield from check_family(draft)
    yield from check_heads(draft)
    yield from check_names(draft)
    yield from check_shapes(draft)
    yield from check_dtypes(draft)
    yield from check_fc(draft)
    yield from check_aux_layers(draft, verifier)
    yield from check_norm_flags(draft)
    yield from check_engine(draft)
    if values:
        vocabulary = check_vocabulary_map(draft)
        yield from vocabulary.checks
        yield from check_values(draft)
    else:
        vocabulary = VocabularyMap(None, ())
        for check_id in ("d2t", "t2d", "values.finite", "values.constant", "values.norms"):
            yield Check(check_id, "skipped", "values are not read")
    yield from check_verifier(draft, verifier, vocabulary.targets, values=values)
    if reference is not None:
        yield from check_reference(draft, reference, reference_name)


def _count(draft: Draft, checks: tuple[Check, ...]) -> ParameterCounts:
    """saved: what the file holds. total, trainable: by formula.

    lm_head counts as trained when it was seen to differ from the verifier's, or, unseen, where the layout's makers train it (midlayer).
    """
    head = next((check.detail for check in checks if check.id == "verifier.lm_head" and check.status in ("pass", "warn")), "")
    trained = not head.startswith("frozen") if head else draft.layout == "midlayer"
    saved = count_weights(draft.checkpoint.specs())
    if not draft.config.known_family:
        return ParameterCounts(saved, saved, saved)
    return replace(parameter_counts(draft.geometry, trainable_lm_head=trained), saved=saved)
