"""The verdict: when one thing breaks, the proof it belongs to fails and the sentence says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftyard.artifacts.files import digest_json
from draftyard.reporting.inputs import load_record
from draftyard.reporting.verdict import Verdict, judge

Edit = Callable[[str, Callable[[Any], Any]], None]
STATIC, SIMULATION, SERVING, TRAIN = (f"reports/{name}.json" for name in ("verify/static", "verify/simulation", "verify/serving", "stages/train"))


def verdict(root: Path) -> Verdict:
    return judge(load_record(root))


def statuses(root: Path) -> dict[str, str]:
    return {proof.key: proof.status for proof in verdict(root).proofs}


def fail_check(check_id: str) -> Callable[[Any], None]:
    def change(values: Any) -> None:
        (check,) = [check for check in values["checks"] if check["id"] == check_id]
        check.update(status="fail", detail="broken for a test")
        values["status"] = "fail"

    return change


def measure(length: float) -> dict[str, Any]:
    return {"rounds": 1000, "accepted": [round(1000 * (length - 1)), 0, 0], "acceptance_length": length, "prompts": 40}


def test_the_recorded_build_is_ready(root: Path) -> None:
    found = verdict(root)
    assert found.status == "pass"
    assert found.sentence == (
        "This draft is ready to serve: 1.42× the speed of plain decoding at batch 1, acceptance length 1.78 with 3 draft tokens per round, "
        "identical output on 39 of 40 prompts and ties of rounding on the rest."
    )
    assert statuses(root) == {"serves": "pass", "learned": "pass", "vocabulary_map": "pass"}


@pytest.mark.parametrize(
    ("check", "proof"), [("shapes", "serves"), ("d2t_offsets", "vocabulary_map"), ("eos_in_vocab", "vocabulary_map"), ("weights_moved", "learned")]
)
def test_a_failed_check_fails_its_proof(root: Path, edit: Edit, check: str, proof: str) -> None:
    edit(STATIC, fail_check(check))
    assert statuses(root) == {**dict.fromkeys(("serves", "learned", "vocabulary_map"), "pass"), proof: "fail"}
    assert verdict(root).status == "fail"
    assert f"{check}: broken for a test" in verdict(root).sentence


@pytest.mark.parametrize("gap", [0.9, None, "0.0"])
def test_a_divergence_that_is_no_tie_fails(root: Path, edit: Edit, gap: Any) -> None:
    edit(SERVING, lambda values: values["equality"]["divergences"][0].update(logit_gap=gap))
    assert statuses(root)["serves"] == "fail"
    assert "1 of these is no tie" in verdict(root).sentence


def test_a_divergence_that_was_not_recorded_fails(root: Path, edit: Edit) -> None:
    edit(SERVING, lambda values: values["equality"].update(equal=38))
    assert statuses(root)["serves"] == "fail"


def test_a_tie_is_narrower_in_float32(root: Path, edit: Edit) -> None:
    edit(SERVING, lambda values: (values["equality"]["divergences"][0].update(logit_gap=0.1), values.update(dtype="float32"), None)[-1])
    assert statuses(root)["serves"] == "fail"


def test_serving_far_from_the_simulation_fails(root: Path, edit: Edit) -> None:
    edit(SERVING, lambda values: values["overall"].update(measure(1.4)))
    assert statuses(root)["serves"] == "fail"
    assert "the engine does not run what was trained" in verdict(root).sentence


def test_other_prompts_prove_no_gap(root: Path, edit: Edit) -> None:
    edit(SERVING, lambda values: values["overall"].update({**measure(1.4), "prompts": 12}))
    assert statuses(root)["serves"] == "pass"


@pytest.mark.parametrize(("length", "status"), [(1.0, "fail"), (1.04, "fail"), (1.3, "pass")])
def test_learned_needs_more_than_a_broken_draft_reaches(root: Path, edit: Edit, length: float, status: str) -> None:
    edit(SERVING, lambda values: values["overall"].update(measure(length)))
    edit(SIMULATION, lambda values: values.update(measure(length)))
    assert statuses(root)["learned"] == status


def test_a_loss_that_rises_fails(root: Path, edit: Edit) -> None:
    edit(TRAIN, lambda values: values["epochs"][-1].update(train_loss=9.0))
    assert statuses(root)["learned"] == "fail"


def test_mixed_lineages_fail_and_name_both_sides(root: Path, edit: Edit) -> None:
    files = {"vocab.json": "f" * 64}
    edit("models/vocab/lineage.json", lambda values: values.update(files=files, digest=digest_json(files)))
    assert statuses(root) == {"serves": "pass", "learned": "fail", "vocabulary_map": "fail"}
    assert f"vocab here is {digest_json(files)[:12]}" in verdict(root).sentence


def test_skipped_serving_is_not_a_pass(root: Path) -> None:
    (root / SERVING).write_text(json.dumps({"status": "skipped", "reason": "an MLA verifier needs a GPU"}))
    found = verdict(root)
    assert statuses(root) == {"serves": "skipped", "learned": "pass", "vocabulary_map": "pass"}
    assert found.status == "skipped"
    assert "an MLA verifier needs a GPU" in found.sentence
    assert "acceptance length is 1.78" in found.sentence


def test_nothing_measured_proves_nothing(tmp_path: Path) -> None:
    found = verdict(tmp_path)
    assert {proof.status for proof in found.proofs} == {"skipped"}
    assert found.status == "skipped"


def test_slower_than_plain_decoding_is_said(root: Path, edit: Edit) -> None:
    edit(SERVING, lambda values: values["speed"].update(speedup_median=0.91))
    assert verdict(root).status == "warn"
    assert "does not pay here: 0.91×" in verdict(root).sentence


def test_outputs_that_were_not_compared_are_no_pass(root: Path, edit: Edit) -> None:
    edit(SERVING, lambda values: values.pop("equality") and None)
    assert statuses(root)["serves"] == "skipped"
