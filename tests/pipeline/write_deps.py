"""Rewrites the code deps of every stage in dvc.yaml from the import graph: `make deps`. Everything else in the file stays as it is."""

from __future__ import annotations

import re
from pathlib import Path

from tests.pipeline.import_graph import local_files

CODE = re.compile(r"^      - (src/draftyard/|stages/).*\n", re.MULTILINE)


def with_code_deps(root: Path, text: str) -> str:
    """`text` of a dvc.yaml, each stage's code deps replaced by what its script imports, after its data deps."""

    def rewrite(match: re.Match[str]) -> str:
        stage, block = match["stage"], match["deps"]
        code = "".join(f"      - {path}\n" for path in local_files(root, root / "stages" / f"{stage}.py"))
        return match[0].replace(block, CODE.sub("", block) + code, 1)

    pattern = r"^  (?P<stage>\w+):\n    desc: .*\n    cmd: .*\n    deps:\n(?P<deps>(?:      - .*\n)+)"
    return re.sub(pattern, rewrite, text, flags=re.MULTILINE)


if __name__ == "__main__":
    FILE = Path("dvc.yaml")
    FILE.write_text(with_code_deps(Path.cwd(), FILE.read_text(encoding="utf-8")), encoding="utf-8")
