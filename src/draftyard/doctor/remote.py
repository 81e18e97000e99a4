"""`python -m draftyard.doctor.remote NAME`: asks the DVC remote NAME of the current repository for its root. Exit 1 with the reason when it does not answer."""

from __future__ import annotations

import sys
from pathlib import Path


def ask(name: str) -> str:
    """What is known of remote `name`. Raises whatever the storage's client raises, and FileNotFoundError for a directory that cannot be made."""
    from dvc.repo import Repo

    with Repo() as repo:
        storage = repo.cloud.get_remote_odb(name)
        if storage.fs.exists(storage.path):
            return "reachable"
        if storage.fs.protocol == "local":
            missing = Path(storage.path).parents[1]  # without DVC's own files/md5
            if not missing.parent.is_dir():
                raise FileNotFoundError(f"neither {missing} nor its parent exists; is it mounted?")
        return "reachable, empty: the first dvc push fills it"


def main() -> None:
    """Ask and print."""
    from draftyard.doctor.check import first_line

    try:
        print(ask(sys.argv[1]))
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {first_line(error)}")


if __name__ == "__main__":
    main()
