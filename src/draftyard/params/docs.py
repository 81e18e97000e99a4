"""docs/parameters.md, from the dataclasses: `python -m draftyard.params.docs > docs/parameters.md`, in the repository's root.

A field's meaning is the docstring below it, its value that of params.yaml or runtime.yaml, and the stages that it re-runs are
those of dvc.yaml that declare it, with all that come after them.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from draftyard import runtime
from draftyard.params.load import GROUPS
from draftyard.params.yaml_file import read_yaml

_RUNTIME = {"engine": runtime.EngineRuntime, "endpoint": runtime.EndpointRuntime, "store": runtime.StoreRuntime, "train": runtime.TrainRuntime}
_WORDS = {"int": "whole number", "float": "number", "bool": "true or false", "str": "text", "None": "null", "dict": "mapping", "tuple": "list"}
_HEAD = """# Parameters

Written by `python -m draftyard.params.docs > docs/parameters.md`; edit the docstrings in `src/draftyard/params/`, then run it again.

`params.yaml` holds every choice that shapes a result. Every key is written out; an unknown or a missing key is an error, and so is a
value of another type or outside its range. "re-runs" are the stages that a change makes run again, at most: a stage whose result comes out
byte for byte the same stops the rebuild there.
"""
_RUNTIME_HEAD = """
# runtime.yaml

What changes speed and memory. No stage depends on this file: a change re-runs nothing.
"""


@dataclasses.dataclass(frozen=True)
class Field:
    """A field as the source text shows it."""

    name: str
    type: str
    meaning: str


def read_fields(cls: type) -> list[Field]:
    """The fields of a dataclass in order, each with its annotation in words and the docstring below it (empty when there is none)."""
    (tree,) = (
        node for node in ast.walk(ast.parse(inspect.getsource(inspect.getmodule(cls) or cls))) if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    )
    fields = []
    for node, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            documented = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
            meaning = str(below.value.value) if documented else ""  # type: ignore[union-attr]
            fields.append(Field(node.target.id, _type_in_words(node.annotation), " ".join(meaning.split())))
    return fields


def _type_in_words(annotation: ast.expr) -> str:
    if isinstance(annotation, ast.BinOp):  # X | None
        return f"{_type_in_words(annotation.left)} or {_type_in_words(annotation.right)}"
    if isinstance(annotation, ast.Subscript):
        if ast.unparse(annotation.value) == "Literal":
            return ", ".join(f"`{ast.literal_eval(choice)}`" for choice in ast.walk(annotation.slice) if isinstance(choice, ast.Constant))
        return _type_in_words(annotation.value)
    text = ast.unparse(annotation)
    return _WORDS.get(text, text)


def rerun_stages(pipeline: Mapping[str, Any], key: str) -> list[str]:
    """The stages of dvc.yaml that declare `key` ("draft.head_dim") or its group, and all stages behind them, in the order of the file."""
    stages: dict[str, Any] = pipeline["stages"]
    group = key.partition(".")[0]
    found = {name for name, stage in stages.items() if {key, group} & set(stage.get("params", ()))}
    produced = {name: set(_outputs(stage)) for name, stage in stages.items()}
    while True:
        outputs = {path for name in found for path in produced[name]}
        behind = {name for name, stage in stages.items() if any(_lies_in(path, outputs) for path in stage.get("deps", ()))}
        if behind <= found:
            return [name for name in stages if name in found]
        found |= behind


def _outputs(stage: Mapping[str, Any]) -> Iterator[str]:
    for kind in ("outs", "metrics", "plots"):
        for entry in stage.get(kind, ()):
            yield from entry if isinstance(entry, dict) else [entry]


def _lies_in(path: str, outputs: set[str]) -> bool:
    return any(path == output or path.startswith(f"{output}/") for output in outputs)


def render(root: Path) -> str:
    """The text of docs/parameters.md for the repository `root`. Raises ParamError when a YAML file cannot be read."""
    values, pipeline, run = read_yaml(root / "params.yaml"), read_yaml(root / "dvc.yaml"), read_yaml(root / "runtime.yaml")
    parts = [_HEAD]
    for group, cls in GROUPS.items():
        parts.append(f"\n## {group}\n\n{inspect.getdoc(cls)}\n\n| key | value | type | meaning | re-runs |\n| --- | --- | --- | --- | --- |\n")
        for field in read_fields(cls):
            stages = ", ".join(rerun_stages(pipeline, f"{group}.{field.name}"))
            parts.append(_row(f"`{group}.{field.name}`", _shown(values[group][field.name]), field.type, field.meaning, stages))
    parts.append(f"{_RUNTIME_HEAD}\n| key | value | type | meaning |\n| --- | --- | --- | --- |\n")
    for field in read_fields(runtime.Runtime):
        if field.name not in _RUNTIME:
            parts.append(_row(f"`{field.name}`", _shown(run[field.name]), field.type, field.meaning))
    for group, cls in _RUNTIME.items():
        for field in read_fields(cls):
            parts.append(_row(f"`{group}.{field.name}`", _shown(run[group][field.name]), field.type, field.meaning))
    return "".join(parts)


def _shown(value: object) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


if __name__ == "__main__":
    sys.stdout.write(render(Path()))
