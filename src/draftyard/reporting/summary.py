"""The end of a build in a dozen lines: `python -m draftyard.reporting.summary [ROOT]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from draftyard.errors import DraftyardError
from draftyard.reporting.inputs import HTML, BuildRecord, load_record
from draftyard.reporting.metrics import build_metrics
from draftyard.reporting.text import clean, dig, percent, plain
from draftyard.reporting.verdict import Verdict, judge

WORDS = {"pass": "pass", "fail": "FAIL", "skipped": "skipped"}


def summarise(record: BuildRecord, root: Path) -> str:
    """Verdict, proofs, acceptance per category, speed-up, equality, parameters and where the report is."""
    metrics, verdict = build_metrics(record), judge(record)
    lines = [_one_line(verdict.sentence), "", *_proofs(verdict), "", *_acceptance(metrics), ""]
    speed = metrics["speedup"]
    measured = (
        f"{plain(speed['median'])}x plain decoding at batch 1 ({plain(speed['min'])}x to {plain(speed['max'])}x)"
        if speed["median"] is not None
        else "not measured"
    )
    equality = record.serving.get("equality") if record.measured else None
    equal = f"{plain(dig(equality, 'equal'))} of {plain(dig(equality, 'prompts'))} prompts" if metrics["equal_outputs"] is not None else "not compared"
    lines.append(f"speed-up          {measured}")
    lines.append(f"identical output  {equal}")
    lines.append(f"coverage          {percent(metrics['coverage']['holdout'])} of held-out tokens in the draft vocabulary")
    lines.append(f"parameters        {plain(metrics['parameters']['saved'])} saved, {plain(metrics['parameters']['trainable'])} trained")
    lines.append(f"report            {root / HTML}")
    return "\n".join(lines) + "\n"


def _proofs(verdict: Verdict) -> list[str]:
    return [f"{WORDS[proof.status]:<8}{proof.title}" for proof in verdict.proofs]


def _acceptance(metrics: dict[str, Any]) -> list[str]:
    def line(name: str, values: dict[str, Any]) -> str:
        return f"{_one_line(name):<22}" + "".join(f"{plain(values[key]) if values[key] is not None else '-':>10}" for key in ("served", "simulated"))

    head = f"{'acceptance length':<22}{'served':>10}{'simulated':>10}"
    return [head, line("  all", metrics["acceptance_length"]), *(line(f"  {name}", values) for name, values in metrics["acceptance_by_category"].items())]


def _one_line(text: str) -> str:
    return clean(text).replace("\n", " ").replace("\t", " ")


def main(arguments: list[str]) -> int:
    """Print the summary of the build in ROOT (default: the current directory). Returns the exit status."""
    root = Path(arguments[0]) if arguments else Path()
    try:
        record = load_record(root)
    except DraftyardError as error:
        print(f"summary: {error}", file=sys.stderr)
        return 1
    sys.stdout.write(summarise(record, root))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
