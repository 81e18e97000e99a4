"""Which local files a stage script runs: its imports, followed through the package, function-level ones included."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = "draftyard"


def module_file(root: Path, module: str) -> Path | None:
    """The file of a dotted module of the package, or None."""
    base = root / "src" / Path(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def imported_modules(path: Path) -> set[str]:
    """Dotted names of package modules that `path` imports anywhere except under TYPE_CHECKING; `from a import b` yields a and a.b."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return {name for name in names if name.split(".")[0] == PACKAGE}


def local_files(root: Path, script: Path) -> list[str]:
    """Paths, relative to `root`, of the script and every package file it imports, directly or not. Empty __init__ files count as well."""
    seen: set[Path] = set()
    queue = [script]
    while queue:
        path = queue.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in imported_modules(path):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                found = module_file(root, ".".join(parts[:end]))
                if found is not None:
                    queue.append(found)
    return sorted(path.relative_to(root).as_posix() for path in seen)
