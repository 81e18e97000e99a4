"""Reading a YAML file of settings: YAML 1.2 numbers, no duplicate keys, errors that name the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from draftyard.errors import ParamError


class Yaml12Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2 floats (2e-05, as DVC writes it) and no duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (dict, list)):
                raise ParamError(str(key), None, "a key must be a plain text")
            if key in seen:
                raise ParamError(str(key), None, f"written twice (line {key_node.start_mark.line + 1})")
            seen.add(key)
        return super().construct_mapping(node, deep)


Yaml12Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ParamError with the file, the line and the rule."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ParamError(str(path), None, "no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ParamError(str(path), None, f"cannot be read: {error}") from None
    try:
        values = yaml.load(text, Loader=Yaml12Loader)  # noqa: S506 (a SafeLoader subclass)
    except yaml.YAMLError as error:
        raise ParamError(str(path), None, f"is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ParamError(str(path), None, "is nested too deeply") from None
    if not isinstance(values, dict):
        raise ParamError(str(path), type(values).__name__, "must hold a mapping of groups")
    return values
