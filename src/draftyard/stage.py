"""What every stage script shares: its params, its paths, and errors told without a traceback."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from draftyard.console import CLEAR_LINE, OWN_LINE, Chatter, chatter_to, terminal
from draftyard.errors import ParamError, sentence
from draftyard.interpreter import collect_rarely, leave
from draftyard.params.base import build
from draftyard.runtime import Runtime, load_runtime, work_dir
from draftyard.stage_code import stage_code
from draftyard.watchdog import EXIT_INTERRUPTED, watch_dvc
from draftyard.work import WorkArea, sweep

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

    def area(self, material: Mapping[str, Any]) -> WorkArea:
        """The resume area of this stage for `material` and the code that the stage runs."""
        return WorkArea(self.work, self.name, material, stage_code(self.root, self.name))


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
    """Run `main` for stage `name`. A DraftyardError ends in a sentence and exit 1; SIGTERM, or the end of the `dvc` that started it, ends like Ctrl-C.

    Our own lines go to the terminal and to .work/logs/<stage>.log; what libraries write to standard error goes to the log alone,
    and its last lines are shown when the stage fails.
    """
    root = Path.cwd()
    enter_own_code(root)
    collect_rarely()
    signal.signal(signal.SIGTERM, _interrupt)
    work = work_dir(root)
    with chatter_to(work / "logs" / f"{name}.log") as chatter:
        _configure_logging(name)
        try:
            watch_dvc()
            sweep(work, root)
            main(StageContext(name, root, load_stage_params(name, root), load_runtime(root), work))
        except KeyboardInterrupt:
            print(f"\n{name} interrupted; finished shards are kept, run dvc repro again to go on", file=terminal())
            raise SystemExit(EXIT_INTERRUPTED) from None
        except Exception as error:
            told = sentence(error)
            if told is None or os.environ.get(DEBUG_VARIABLE):
                _show_tail(chatter)
                raise
            print(f"\n{name} failed: {told}", file=terminal())
            _show_tail(chatter)
            raise SystemExit(1) from None
    if main.__module__ == "__main__":  # a stage script: nothing comes after it
        leave()


def enter_own_code(root: Path) -> None:
    """Start again with `root`/src first on the path where `draftyard` was installed from elsewhere.

    A queued experiment runs in a copy of the repository, with the interpreter of the original: DVC records the digests of the
    copy's code, so that must be the code that runs.
    """
    own = root / "src"
    if not (own / "draftyard").is_dir() or Path(__file__).is_relative_to(own):
        return
    path = [str(own), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if path.count(path[0]) > 1:
        raise SystemExit(f"draftyard was imported from {Path(__file__).parent}, although PYTHONPATH names {own}; run without python -I, -E or -P")
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONPATH": os.pathsep.join(path)})


class _Ours(logging.Filter):
    """Passes the lines of the stage and of this package, progress aside: that draws itself."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name == "__main__" or (record.name.startswith("draftyard.") and record.name != "draftyard.progress")


def _configure_logging(name: str) -> None:
    shown = logging.StreamHandler(terminal())
    shown.setFormatter(logging.Formatter(f"{CLEAR_LINE if terminal().isatty() else ''}{name}: %(message)s"))
    shown.addFilter(_Ours())
    kept = logging.StreamHandler(sys.stderr)
    kept.setFormatter(logging.Formatter(OWN_LINE.format(name=name)))
    logging.basicConfig(level=logging.INFO, handlers=[shown, kept])
    for noisy in ("httpx", "dvc", "vllm"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _show_tail(chatter: Chatter) -> None:
    lines = chatter.tail()
    if lines:
        print(f"last lines of {chatter.path}:\n  " + "\n  ".join(lines), file=terminal())


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
