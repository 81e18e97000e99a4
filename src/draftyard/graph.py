"""The build graph as a Mermaid picture, drawn from dvc.yaml: `python -m draftyard.graph FILE.md ...` draws it anew between the marks in each file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from draftyard.errors import DraftyardError
from draftyard.params.yaml_file import read_yaml

BEGIN, END = "<!-- begin: graph, by python -m draftyard.graph -->", "<!-- end: graph -->"
Edges = dict[tuple[str, str], list[str]]


def edges(stages: Mapping[str, Mapping[str, Any]]) -> Edges:
    """(stage, stage that reads what it makes) -> the outputs read, in the order of `stages` (the mapping of dvc.yaml)."""
    made = {path: name for name, stage in stages.items() for field in ("outs", "metrics", "plots") for path in _paths(stage.get(field, ()))}
    found: Edges = {}
    for reader, stage in stages.items():
        for dep in stage.get("deps", ()):
            for path, maker in made.items():
                if (dep == path or dep.startswith(f"{path}/")) and path not in found.setdefault((maker, reader), []):
                    found[maker, reader].append(path)
    order = list(stages)
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0][0]), order.index(item[0][1]))))


def _paths(entries: Any) -> Iterator[str]:
    for entry in entries:
        yield next(iter(entry)) if isinstance(entry, Mapping) else entry


def without_shortcuts(graph: Edges) -> Edges:
    """`graph` without the edges that follow from others: a -> c where a -> b and b leads to c."""
    direct: dict[str, set[str]] = {}
    for maker, reader in graph:
        direct.setdefault(maker, set()).add(reader)

    def leads(start: str, goal: str) -> bool:
        return start == goal or any(leads(following, goal) for following in direct.get(start, ()))

    return {(a, c): outputs for (a, c), outputs in graph.items() if not any(leads(b, c) for b in direct[a] - {c})}


def mermaid(stages: Mapping[str, Mapping[str, Any]]) -> str:
    """The picture, without shortcuts; an edge names the outputs that are read, records below reports/ left out where there are others."""
    lines = ["graph TD"]
    for (maker, reader), outputs in without_shortcuts(edges(stages)).items():
        shown = [path for path in outputs if not path.startswith("reports/")] or outputs
        lines.append(f'    {maker} -->|"{"<br>".join(shown)}"| {reader}')
    return "\n".join(lines)


def draw_into(text: str, stages: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """`text` with the picture between its marks. Raises DraftyardError, beginning with `name`, when the marks are not there once each."""
    if (text.count(BEGIN), text.count(END)) != (1, 1):
        raise DraftyardError(f"{name}: must hold {BEGIN} and {END} once each; put them where the picture belongs")
    block = f"{BEGIN}\n```mermaid\n{mermaid(stages)}\n```\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL)


def main(arguments: list[str]) -> None:
    """Draw into each named file."""
    stages = read_yaml(Path("dvc.yaml"))["stages"]
    for name in arguments:
        path = Path(name)
        path.write_text(draw_into(path.read_text(encoding="utf-8"), stages, name), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
