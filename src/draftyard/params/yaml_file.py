"""Reading a YAML file of settings: YAML 1.2 numbers, no duplicate keys, errors that name the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from draftyard.errors import ParamError

_TAG = "tag:yaml.org,2002:"
_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?(0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)", "-+0123456789"),
    "float": (r"[-+]?((\d[\d_]*)?\.\d[\d_]*|\d[\d_]*\.?)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+0123456789."),
}
"""YAML 1.2's plain scalars (as DVC's ruamel.yaml reads them), where 1.1 has others: there `no` is false and 0123 is 83."""


class Yaml12Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2 (2e-05, as DVC writes it, is a number) and no duplicate keys."""

    # Not inherited: without YAML 1.1's own patterns.
    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own way)
        first: [(tag, pattern) for tag, pattern in resolvers if tag.removeprefix(_TAG) not in _SCALARS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == f"{_TAG}merge":
                continue  # <<: *anchor, which a key of the mapping itself may override
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (dict, list, set)):
                raise ParamError(str(key), None, "a key must be a plain text")
            if key in seen:
                raise ParamError(str(key), None, f"written twice (line {key_node.start_mark.line + 1})")
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_int(self, node: yaml.ScalarNode) -> int:
        """A whole number; a leading zero means nothing."""
        text = str(self.construct_scalar(node)).replace("_", "")
        return int(text, 0 if text.lstrip("+-")[:2] in ("0b", "0o", "0x") else 10)


for _name, (_pattern, _first) in _SCALARS.items():
    Yaml12Loader.add_implicit_resolver(f"{_TAG}{_name}", re.compile(f"^(?:{_pattern})$"), list(_first))
Yaml12Loader.add_constructor(f"{_TAG}int", Yaml12Loader.construct_int)


def parse_yaml(text: str, name: str) -> Any:
    """The value of YAML text. Raises ParamError that begins with `name`."""
    try:
        return yaml.load(text, Loader=Yaml12Loader)  # noqa: S506 (a SafeLoader subclass)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date of month 13, a number of 5000 digits
        raise ParamError(name, None, f"is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ParamError(name, None, "is nested too deeply") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ParamError with the file, the line and the rule."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ParamError(str(path), None, "no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ParamError(str(path), None, f"cannot be read: {error}") from None
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ParamError(str(path), type(values).__name__, "must hold a mapping of groups")
    return values
