"""What every stage script shares: its params, its paths, and errors told without a traceback."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from draftyard.errors import DraftyardError, ParamError
from draftyard.params.base import build
from draftyard.runtime import Runtime, load_runtime, work_dir

T = TypeVar("T")
DEBUG_VARIABLE = "DRAFTYARD_DEBUG"


@dataclass(frozen=True)
class StageContext:
    """A stage's view of the build.

    root: the repository (current directory). params: the declared values, raw. work: the resume area.
    """

    name: str
    root: Path
    params: dict[str, Any]
    runtime: Runtime
    work: Path

    def group(self, cls: type[T], group: str) -> T:
        """Validate the whole params group `group`, which this stage must declare in dvc.yaml."""
        if group not in self.params:
            raise ParamError(group, None, f"stage {self.name} does not declare this group in dvc.yaml")
        return build(cls, group, self.params[group])


def load_stage_params(stage: str, root: Path) -> dict[str, Any]:
    """The params that `stage` declares in dvc.yaml, as raw nested values.

    Read through DVC, so that an undeclared key is absent, and a number that DVC wrote (`lr: 2e-05`) is a number.
    """
    import dvc.api
    from dvc.exceptions import DvcException

    try:
        return dict(dvc.api.params_show(stages=stage, deps=True, repo=str(root)))
    except DvcException as error:
        raise ParamError("params.yaml", None, f"DVC cannot read the params of stage {stage}: {' '.join(str(error).split())}") from None


def run_stage(name: str, main: Callable[[StageContext], None]) -> None:
    """Run `main` for stage `name`. A DraftyardError ends in a sentence and exit 1; SIGTERM ends like Ctrl-C."""
    logging.basicConfig(level=logging.INFO, format=f"{name}: %(message)s", stream=sys.stderr)
    for noisy in ("httpx", "dvc", "vllm"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, _interrupt)
    root = Path.cwd()
    try:
        main(StageContext(name, root, load_stage_params(name, root), load_runtime(root), work_dir(root)))
    except DraftyardError as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        print(f"\n{name} failed: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print(f"\n{name} interrupted; finished shards are kept, run dvc repro again to go on", file=sys.stderr)
        raise SystemExit(130) from None


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
