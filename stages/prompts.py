"""Stage `prompts`: sources of prompts -> data/prompts/{train,holdout}.jsonl, distinct and kept apart."""

from __future__ import annotations

import dataclasses
import logging
import unicodedata

from draftyard.artifacts.files import write_json
from draftyard.artifacts.lineage import package_versions
from draftyard.artifacts.prompts import DIRECTORY, SPLITS, split_path, write_prompts, write_prompts_lineage
from draftyard.params.prompts import PromptsParams
from draftyard.prompts.collect import collect
from draftyard.prompts.report import describe
from draftyard.prompts.select import select
from draftyard.prompts.sources import open_sources
from draftyard.prompts.spool import PromptSpool
from draftyard.stage import StageContext, run_stage

log = logging.getLogger(__name__)
OUT, METRICS = DIRECTORY.as_posix(), "reports/stages/prompts.json"
UNSHAPING = "max_reject_fraction"  # decides whether the stage fails, never what it makes


def main(context: StageContext) -> None:
    """Read, de-duplicate, split, write."""
    params = context.group(PromptsParams, "prompts")
    sources = open_sources(params.sources, context.root)
    inputs = {name: digest for source in sources for name, digest in source.inputs().items()}
    shaping = {key: value for key, value in dataclasses.asdict(params).items() if key != UNSHAPING}
    packages = {"unicode": unicodedata.unidata_version}
    if any(source["kind"] == "hf" for source in params.sources):
        packages |= package_versions("datasets")
    with context.area({"params": {"prompts": dataclasses.asdict(params)}, "inputs": inputs, "packages": packages}) as area:
        if area.publish_finished(context.root):
            return
        with PromptSpool(area.path / ".spool") as spool:
            collection = collect(sources, params, spool)
            selection = select(collection.candidates, spool, params)
            built = area.new_out(OUT)
            for split in SPLITS:
                write_prompts(split_path(built, split), (spool[candidate.index] for candidate in getattr(selection, split)))
        facts = {split: len(getattr(selection, split)) for split in SPLITS}
        write_prompts_lineage(built, inputs=inputs, params=shaping, packages=packages, facts=facts)
        report = describe(collection, selection)
        write_json(area.new_out(METRICS), report)
        area.finish(context.root, (OUT, METRICS))
    log.info("%s", ", ".join(f"{count} {name}" for name, count in report["total"].items()))
    if len(selection.holdout) < params.holdout_prompts:
        log.warning("prompts.holdout_prompts=%d, but only %d prompts are different enough to be held out", params.holdout_prompts, len(selection.holdout))


if __name__ == "__main__":
    run_stage("prompts", main)
