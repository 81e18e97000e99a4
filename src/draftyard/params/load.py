"""Reading and validating a whole params file."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftyard.errors import ParamError
from draftyard.params.base import build
from draftyard.params.draft import DraftParams
from draftyard.params.gate import GateParams
from draftyard.params.generate import GenerateParams
from draftyard.params.hidden_states import HiddenStatesParams
from draftyard.params.prompts import PromptsParams
from draftyard.params.report import ReportParams
from draftyard.params.train import TrainParams
from draftyard.params.verifier import VerifierParams
from draftyard.params.verify import VerifyParams
from draftyard.params.yaml_file import parse_yaml, read_yaml

GROUPS: dict[str, type] = {
    "verifier": VerifierParams,
    "prompts": PromptsParams,
    "generate": GenerateParams,
    "hidden_states": HiddenStatesParams,
    "draft": DraftParams,
    "train": TrainParams,
    "verify": VerifyParams,
    "report": ReportParams,
    "gate": GateParams,
}


@dataclass(frozen=True, kw_only=True)
class Params:
    """A whole params.yaml, validated."""

    verifier: VerifierParams
    prompts: PromptsParams
    generate: GenerateParams
    hidden_states: HiddenStatesParams
    draft: DraftParams
    train: TrainParams
    verify: VerifyParams
    report: ReportParams
    gate: GateParams


def validate(values: Mapping[str, Any]) -> Params:
    """Build Params from the mapping of all groups. Raises ParamError."""
    for group in values:
        if group not in GROUPS:
            raise ParamError(str(group), values[group], f"unknown group; known groups: {', '.join(GROUPS)}")
    for group in GROUPS:
        if group not in values:
            raise ParamError(group, None, "missing group")
    return Params(**{group: build(cls, group, values[group]) for group, cls in GROUPS.items()})


def load_file(path: Path, overrides: tuple[str, ...] = ()) -> Params:
    """Read and validate a params file, with `group.key=value` overrides (values in YAML).

    Raises ParamError for an override that names no existing key.
    """
    values = read_yaml(path)
    for override in overrides:
        name, separator, text = override.partition("=")
        keys = name.split(".")
        target: Any = values
        for key in keys[:-1]:
            target = target.get(key) if isinstance(target, dict) else None
        if not separator or not isinstance(target, dict) or keys[-1] not in target:
            raise ParamError(name, text, f"override names no key of {path}; write group.key=value{_near(name, values)}")
        target[keys[-1]] = parse_yaml(text, f"override {override!r}")
    return validate(values)


def _near(name: str, values: Mapping[str, Any]) -> str:
    """The keys most like `name`, as the end of a sentence."""
    known = [f"{group}.{key}" for group, keys in values.items() if isinstance(keys, dict) for key in keys]
    near = difflib.get_close_matches(name, known, n=2)
    return f" (is {' or '.join(near)} meant?)" if near else ""


def main(arguments: list[str]) -> int:
    """Validate the params files named on the command line, all groups at once; prints each mistake and returns 1 when there is one."""
    failed = 0
    for name in arguments:
        try:
            load_file(Path(name))
        except ParamError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
