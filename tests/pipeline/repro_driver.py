"""`python repro_driver.py EDITS`: in one process, for each edit of a JSON list, change the repository and ask DVC.

An edit is {"name", "how", "path", "text"}. Prints one JSON object: name -> for `repro` the stages whose command ran, in
order; for `status` the stages whose params changed. The current directory is the repository.
"""

import json
import sys
from pathlib import Path

from dvc.cli import main as dvc
from dvc.dependency import ParamsDependency
from dvc.repo import Repo

RAN = Path(".ran")


def repro() -> list[str]:
    """Run `dvc repro`. Returns the stages that ran, by their own account."""
    RAN.unlink(missing_ok=True)
    if dvc(["repro", "--quiet"]) != 0:
        raise SystemExit("dvc repro failed")
    return RAN.read_text().split() if RAN.exists() else []


def concerned(repo: Repo) -> list[str]:
    """The stages with a changed param: what `dvc status` looks at, without reading dvc.yaml and dvc.lock again each time."""
    return [stage.addressing for stage in repo.index.stages for dep in stage.deps if isinstance(dep, ParamsDependency) and dep.status()]


ran = {}
opened = None  # for a row of `status` edits
for edit in json.loads(Path(sys.argv[1]).read_text()):
    path = Path(edit["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(edit["text"])
    if edit["how"] == "repro":
        opened = None
        ran[edit["name"]] = repro()
    else:
        opened = opened or Repo()
        ran[edit["name"]] = concerned(opened)
print(json.dumps(ran))
