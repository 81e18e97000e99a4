"""`python repro_driver.py EDITS`: in one process, for each edit of a JSON list, change the repository and ask DVC.

An edit is {"name", "how", "path", "text"}. Prints one JSON object: name -> for `repro` the stages whose command ran, in
order; for `status` the stages whose params changed. The current directory is the repository.
"""

import json
import sys
from pathlib import Path

from dvc.cli import main as dvc
from dvc.repo import Repo

RAN = Path(".ran")


def repro() -> list[str]:
    """Run `dvc repro`. Returns the stages that ran, by their own account."""
    RAN.unlink(missing_ok=True)
    if dvc(["repro", "--quiet"]) != 0:
        raise SystemExit("dvc repro failed")
    return RAN.read_text().split() if RAN.exists() else []


def concerned() -> list[str]:
    """The stages with a changed param, by `dvc status`."""
    with Repo() as repo:
        states = repo.status()
    return [name for name, changes in states.items() for change in changes if "params.yaml" in change.get("changed deps", {})]


ran = {}
for edit in json.loads(Path(sys.argv[1]).read_text()):
    path = Path(edit["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(edit["text"])
    ran[edit["name"]] = repro() if edit["how"] == "repro" else concerned()
print(json.dumps(ran))
