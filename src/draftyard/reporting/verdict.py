"""The verdict on a draft and the three proofs it rests on. No threshold of the gate enters here.

Each proof has evidence: a line that passes, fails, is skipped (could not be looked at here), or only informs. A proof fails
with any failing line, is skipped with any skipped one, and passes when at least one line passes and none does otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from draftyard.reporting.inputs import BuildRecord
from draftyard.reporting.metrics import acceptance_rates, best_epoch, build_metrics, same_prompts
from draftyard.reporting.text import dig, number, percent, plain, rows, signed_percent

Status = Literal["pass", "fail", "skipped", "info"]

LEARNED_FLOOR = 1.1
"""An untrained draft is accepted never (exactly 1.0); drafts trained on the wrong states have been seen at 1.04."""
GAP_LIMIT = 0.05
"""Relative difference of simulated and served acceptance beyond which the engine does not run what was trained."""
NEAR_TIE = {"float32": 0.01, "other": 0.25}
"""Logit gap below which two next tokens are a tie to rounding: 0.25 is two steps of bfloat16 at logits of 16..32."""
MAP_WORDS = ("d2t", "t2d", "vocab", "eos", "token_map", "special")
LEARNED_WORDS = ("moved", "trained", "initial", "learned")


@dataclass(frozen=True)
class Evidence:
    """One line of a proof. hint: what a failure means and how to mend it, where that is known."""

    status: Status
    text: str
    hint: str = ""


@dataclass(frozen=True)
class Proof:
    """A claim about the draft, e.g. "it serves", and what was found."""

    key: str
    title: str
    status: Status
    evidence: tuple[Evidence, ...]

    @property
    def reason(self) -> str:
        """The first line that decides the status."""
        return next(line.text for line in self.evidence if line.status == self.status)


@dataclass(frozen=True)
class Verdict:
    """status: pass, warn (works but is no faster here), fail or skipped. sentence: for whoever reads one sentence."""

    status: Literal["pass", "warn", "fail", "skipped"]
    sentence: str
    proofs: tuple[Proof, ...]


def judge(record: BuildRecord) -> Verdict:
    """The verdict on the build described by `record`."""
    metrics = build_metrics(record)
    proofs = (
        _proof("serves", "It serves", _serves(record, metrics)),
        _proof("learned", "It learned", _learned(record, metrics)),
        _proof("vocabulary_map", "Its vocabulary map is right", _map_is_right(record, metrics)),
    )
    return _verdict(record, metrics, proofs)


def check_group(check_id: str) -> str:
    """The proof that a static check belongs to: serves, learned or vocabulary_map."""
    name = check_id.lower()
    if any(word in name for word in MAP_WORDS):
        return "vocabulary_map"
    return "learned" if any(word in name for word in LEARNED_WORDS) else "serves"


def near_tie_limit(record: BuildRecord) -> float:
    """Logit gap up to which a divergence of the served outputs counts as a tie decided by rounding."""
    return NEAR_TIE.get(str(record.serving.get("dtype")), NEAR_TIE["other"])


def _verdict(record: BuildRecord, metrics: dict[str, Any], proofs: tuple[Proof, ...]) -> Verdict:
    failed = [proof for proof in proofs if proof.status == "fail"]
    if failed:
        named = "; ".join(f"“{proof.title.lower()}” failed: {proof.reason}" for proof in failed)
        return Verdict("fail", f"Do not serve this draft: {named}.", proofs)
    skipped = [proof for proof in proofs if proof.status == "skipped"]
    if skipped:
        named = "; ".join(f"“{proof.title.lower()}”: {proof.reason}" for proof in skipped)
        simulated = metrics["acceptance_length"]["simulated"]
        known = f" Simulated on held-out text, its acceptance length is {plain(simulated)}." if simulated else ""
        return Verdict("skipped", f"Not proved yet: {named}.{known}", proofs)
    length, speedup = metrics["acceptance_length"]["served"], metrics["speedup"]["median"]
    served = f"acceptance length {plain(length)} with {plain(record.serving.get('k'))} draft tokens per round"
    equal = _equal_words(record)
    if speedup is not None and speedup < 1:
        return Verdict("warn", f"This draft works but does not pay here: {plain(speedup)}× the speed of plain decoding at batch 1; {served}, {equal}.", proofs)
    faster = f"{plain(speedup)}× the speed of plain decoding at batch 1, " if speedup is not None else ""
    return Verdict("pass", f"This draft is ready to serve: {faster}{served}, {equal}.", proofs)


def _serves(record: BuildRecord, metrics: dict[str, Any]) -> list[Evidence]:
    found = [_static_evidence(record, "serves", "tensor and configuration checks")]
    if not record.measured:
        reason = record.serving.get("reason") or "reports/verify/serving.json is missing"
        return [*found, Evidence("skipped", f"no engine served it here: {reason}")]
    length, k = metrics["acceptance_length"]["served"], record.serving.get("k")
    prompts = dig(record.serving, "overall", "prompts")
    if length is None:
        found.append(Evidence("fail", "the engine drafted no round, so nothing was served with the draft"))
    else:
        found.append(Evidence("pass", f"vLLM served {plain(prompts)} held-out prompts with k = {plain(k)}: acceptance length {plain(length)}"))
    found += [_equality_evidence(record), _gap_evidence(record, metrics)]
    speedup = metrics["speedup"]
    if speedup["median"] is not None:
        spread = f"{plain(speedup['min'])}× to {plain(speedup['max'])}×"
        found.append(Evidence("info", f"{plain(speedup['median'])}× the speed of plain decoding at batch 1 ({spread} over the repeats)"))
    return found


def _equality_evidence(record: BuildRecord) -> Evidence:
    equality = record.serving.get("equality")
    prompts, equal = number(dig(equality, "prompts")), number(dig(equality, "equal"))
    if not prompts or equal is None:
        return Evidence("skipped", "outputs with and without the draft were not compared")
    if equal == prompts:
        return Evidence("pass", f"greedy output is token for token that of plain decoding for all {int(prompts)} prompts")
    limit = near_tie_limit(record)
    gaps = [number(row.get("logit_gap")) for row in rows(dig(equality, "divergences"))]
    ties = sum(gap is not None and abs(gap) <= limit for gap in gaps)
    said = f"greedy output differs for {int(prompts - equal)} of {int(prompts)} prompts"
    if ties == prompts - equal:
        return Evidence("pass", f"{said}, each at a tie (logit gap at most {plain(limit)}) that rounding decides")
    return Evidence("fail", f"{said}, and {int(prompts - equal) - ties} of these is no tie (logit gap above {plain(limit)} or unknown)")


def _gap_evidence(record: BuildRecord, metrics: dict[str, Any]) -> Evidence:
    gap = metrics["simulation_gap"]
    if gap is None:
        return Evidence("info", "simulated and served acceptance cannot be compared: one is missing, or they used another k")
    simulated, served = (plain(metrics["acceptance_length"][how], 3) for how in ("simulated", "served"))
    said = f"served as simulated: {simulated} simulated, {served} served ({signed_percent(gap)})"
    if not same_prompts(record):
        return Evidence("info", f"{said}; on different numbers of prompts, so this proves nothing")
    return Evidence("pass", said) if abs(gap) <= GAP_LIMIT else Evidence("fail", f"not {said}: the engine does not run what was trained")


def _learned(record: BuildRecord, metrics: dict[str, Any]) -> list[Evidence]:
    lengths = metrics["acceptance_length"]
    how = "served" if lengths["served"] is not None else "simulated"
    length = lengths[how]
    found = []
    if length is None:
        found.append(Evidence("skipped", "its acceptance was neither simulated nor served"))
    else:
        rate = metrics["acceptance_rate"][how].get("position_1")
        status: Status = "pass" if length >= LEARNED_FLOOR else "fail"
        scale = f"an untrained draft has exactly 1.00, and {LEARNED_FLOOR} is the least that counts as learned"
        found.append(Evidence(status, f"{how} acceptance length {plain(length)} on held-out prompts; {scale}"))
        found.append(Evidence("info", f"its first proposal is accepted in {percent(rate)} of the rounds"))
    train = record.stages.get("train", {})
    losses = [loss for epoch in rows(train.get("epochs")) if (loss := number(epoch.get("train_loss"))) is not None]
    if len(losses) > 1:
        status = "pass" if losses[-1] < losses[0] else "fail"
        found.append(Evidence(status, f"training loss went from {plain(losses[0])} to {plain(losses[-1])} over {len(losses)} epochs"))
    trained = number(best_epoch(train).get("holdout_acceptance_length"))
    if trained is not None:
        found.append(Evidence("info", f"kept is epoch {plain(train.get('best_epoch'))}, the best on held-out text during training ({plain(trained)})"))
    canary = metrics["canary"]
    if canary["agreement"] is not None:
        where = f"{percent(canary['agreement'])} of {plain(canary['positions'])} positions"
        found.append(Evidence("pass", f"the captured states predict the verifier's own next token at {where} (canary)"))
    found += _optional_static(record, "learned", "checks that the weights were trained")
    broken = record.broken_links()
    found += [Evidence("fail", sentence) for sentence in broken]
    if record.lineages and not broken:
        found.append(Evidence("pass", f"everything it was made from belongs together ({len(record.lineages)} lineages)"))
    return found


def _map_is_right(record: BuildRecord, metrics: dict[str, Any]) -> list[Evidence]:
    found = [_static_evidence(record, "vocabulary_map", "checks of d2t and t2d")]
    vocab, draft = record.lineages.get("vocab"), record.lineages.get("draft")
    if vocab and draft and "vocab" in draft.inputs:
        same = draft.inputs["vocab"] == vocab.digest
        said = f"the draft was trained with {draft.inputs['vocab'][:12]}, models/vocab is {vocab.digest[:12]}"
        found.append(Evidence("pass", f"it is the map of this build ({vocab.digest[:12]})") if same else Evidence("fail", said))
    coverage = metrics["coverage"]
    if coverage["holdout"] is not None:
        found.append(Evidence("info", f"{percent(coverage['holdout'])} of held-out answer tokens can be proposed ({percent(coverage['train'])} in training)"))
    rates = acceptance_rates(record.serving.get("overall") if record.measured else record.simulation)
    if rates:
        where = "served" if record.measured else "simulated"
        found.append(
            Evidence(
                "pass" if rates[0] > 0 else "fail",
                f"mapped proposals are accepted: {percent(rates[0])} of the first ones ({where}); a wrong map gets about none",
            )
        )
    return found


def _static_evidence(record: BuildRecord, group: str, what: str) -> Evidence:
    found = _optional_static(record, group, what)
    return found[0] if found else Evidence("skipped", f"the checkpoint's {what} were not run")


def _optional_static(record: BuildRecord, group: str, what: str) -> list[Evidence]:
    checks = [check for check in rows(record.static.get("checks")) if check_group(str(check.get("id"))) == group]
    if not checks:
        return []
    failed = [check for check in checks if check.get("status") == "fail"]
    if failed:
        return [Evidence("fail", f"{check.get('id')}: {check.get('detail')}", str(check.get("hint") or "")) for check in failed]
    counts = {status: sum(check.get("status") == status for check in checks) for status in ("pass", "warn", "skipped")}
    if not counts["pass"] and not counts["warn"]:
        return [Evidence("skipped", f"all {len(checks)} {what} were skipped")]
    more = "".join(f", {count} {word}" for count, word in ((counts["warn"], "with a warning"), (counts["skipped"], "skipped")) if count)
    return [Evidence("pass", f"{what}: {counts['pass']} of {len(checks)} pass{more}")]


def _proof(key: str, title: str, evidence: list[Evidence]) -> Proof:
    statuses = {line.status for line in evidence}
    status: Status = "fail" if "fail" in statuses else "skipped" if "skipped" in statuses or "pass" not in statuses else "pass"
    if status not in statuses:
        evidence = [*evidence, Evidence("skipped", "nothing that could prove it was measured")]
    return Proof(key, title, status, tuple(evidence))


def _equal_words(record: BuildRecord) -> str:
    equality = record.serving.get("equality")
    prompts, equal = dig(equality, "prompts"), dig(equality, "equal")
    if number(prompts) is None or number(equal) is None:
        return "outputs not compared"
    return (
        f"identical output on all {prompts} prompts"
        if equal == prompts
        else f"identical output on {equal} of {prompts} prompts and ties of rounding on the rest"
    )
