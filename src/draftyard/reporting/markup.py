"""HTML and SVG elements as text. Whatever is not already markup is escaped, so a stranger's text cannot become an element."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Union

from draftyard.reporting.text import clean

VOID = frozenset({"meta", "br", "hr"})


class Markup(str):
    """Text that is finished HTML. Only `tag`, `join` and constants of this package make it."""

    __slots__ = ()


Child = Union[str, int, float, None, Iterable["Child"]]  # noqa: UP007 (the forward reference needs Union)


def join(*children: Child) -> Markup:
    """The children one after another: Markup as it is, anything else escaped, None left out."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, (str, int, float)):
            parts.append(html.escape(clean(child), quote=False))
        else:
            parts.append(join(*child))
    return Markup("".join(parts))


def tag(name: str, /, *children: Child, **attributes: str | int | float | None) -> Markup:
    """`<name ...>children</name>`. Attribute names: `class_` is class, `stroke_width` is stroke-width; None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(clean(value), quote=True)}"' for key, value in attributes.items() if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def table(headers: Iterable[Child], body: Iterable[Iterable[Child]], *, class_: str = "stack", caption: Child = None) -> Markup:
    """A table whose first column heads its row. Each cell names its column (data-label), for a phone shows a "stack" of cells."""
    names = list(headers)
    head = tag("tr", [tag("th", name, scope="col") for name in names])
    lines = []
    for cells in body:
        first, *rest = list(cells)
        lines.append(tag("tr", tag("th", first, scope="row"), [tag("td", cell, data_label=str(name)) for name, cell in zip(names[1:], rest, strict=True)]))
    return tag("table", tag("caption", caption) if caption else None, tag("thead", head), tag("tbody", lines), class_=class_)


def definition_list(pairs: Iterable[tuple[Child, Child]]) -> Markup:
    """Names and values, as a description list."""
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs])
