"""README and docs say what is so: every command exists with its options, the harmless ones run, the picture is dvc.yaml's, the links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from draftyard.cli import main
from draftyard.params.yaml_file import read_yaml

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(text: str) -> list[str]:
    """The lines of all sh fences, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [command for block in blocks for line in block.splitlines() if (command := re.sub(r"(^|\s+)#.*$", "", line))]


COMMANDS = list(dict.fromkeys(command for page in PAGES for command in commands(page.read_text(encoding="utf-8"))))
PLAIN = {
    ". .venv/bin/activate",
    "export DRAFTYARD_ENDPOINT_API_KEY=...",
    "git add .dvc/config",
    "git restore params.yaml dvc.lock reports",
    "cp profiles/qwen3-8b.yaml params.yaml",
    "cp profiles/runtime/qwen3-8b.yaml runtime.yaml",
}
"""Commands that need no check of their own."""
RUN = {"draftyard plan": {0}, "draftyard plan --set draft.head_dim=64": {0}, "draftyard doctor": {0, 1}}
"""Commands that change nothing -> exit statuses (1 of doctor is a finding about the machine)."""


def of(program: str) -> list[str]:
    return [command for command in COMMANDS if shlex.split(command)[0] == program]


def test_every_command_is_of_a_kind_that_is_tested() -> None:
    known = {*PLAIN, *of("make"), *of("draftyard"), *of("dvc"), *of("vllm"), *of("python")}
    assert [command for command in COMMANDS if command not in known] == []
    assert set(RUN) <= set(COMMANDS)
    assert {"make repro", "make test"} <= set(commands(README))


@pytest.mark.parametrize("command", of("make"))
def test_make_target_exists(command: str) -> None:
    _, *arguments = shlex.split(command)
    subprocess.run(["nice", "make", "-n", *arguments], cwd=ROOT, check=True, capture_output=True, timeout=300)


@pytest.mark.parametrize("command", of("draftyard"))
def test_draftyard_command_has_these_options(command: str) -> None:
    _, name, *arguments = shlex.split(command)
    main.commands[name].make_context(name, arguments)  # parses and validates, runs nothing


@pytest.mark.parametrize("command", of("dvc"))
def test_dvc_command_has_these_options(command: str) -> None:
    from dvc.cli import parse_args

    parse_args(shlex.split(command)[1:])


@pytest.mark.parametrize("command", of("python"))
def test_script_has_these_options(command: str) -> None:
    _, script, *arguments = shlex.split(command)
    if script == "-m":
        script, *arguments = arguments[0].replace(".", "/") + ".py", *arguments[1:]
    text = (ROOT / script).read_text(encoding="utf-8")
    assert [word for word in arguments if word.startswith("--") and f'"{word}"' not in text] == []


@pytest.mark.parametrize("command", [command for command in of("vllm") if "--speculative-config" in command])
def test_speculative_config_is_json_for_eagle3(command: str) -> None:
    arguments = shlex.split(command)
    assert arguments[1] == "serve"
    assert json.loads(arguments[arguments.index("--speculative-config") + 1])["method"] == "eagle3"


def run(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["nice", "-n", "5", sys.executable, "-m", "draftyard.cli", *shlex.split(command)[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.parametrize("command", RUN)
def test_harmless_command_runs(command: str) -> None:
    result = run(command)
    assert result.returncode in RUN[command], result.stderr
    assert result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["check", "export"])
def test_help_runs(name: str) -> None:
    result = run(f"draftyard {name} --help")
    assert result.returncode == 0
    assert "CHECKPOINT" in result.stdout


def test_options_in_the_text_exist() -> None:
    """Inline `--option` of the section on the tools belongs to one of draftyard's commands."""
    section = README.partition("## The tools")[2].partition("\n## ")[0]
    known = {name for command in main.commands.values() for parameter in command.params if isinstance(parameter, click.Option) for name in parameter.opts}
    assert set(re.findall(r"`(--[a-z-]+)", section)) <= known


def stage_edges() -> dict[str, set[str]]:
    """Stage -> stages that read what it makes, by dvc.yaml."""
    stages: dict[str, Any] = read_yaml(ROOT / "dvc.yaml")["stages"]
    made = {}
    for name, stage in stages.items():
        for entry in [entry for kind in ("outs", "metrics", "plots") for entry in stage.get(kind, ())]:
            made[next(iter(entry)) if isinstance(entry, dict) else entry] = name
    edges: dict[str, set[str]] = {name: set() for name in stages}
    for name, stage in stages.items():
        for path in stage.get("deps", ()):
            for output, maker in made.items():
                if path == output or path.startswith(f"{output}/"):
                    edges[maker].add(name)
    return edges


def reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    queue = list(edges[start])
    while queue:
        name = queue.pop()
        if name not in found:
            found.add(name)
            queue += edges[name]
    return found


def test_picture_is_the_graph_without_edges_that_follow_from_others() -> None:
    (picture,) = re.findall(r"^```mermaid\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    edges = stage_edges()
    expected = {(a, b) for a, targets in edges.items() for b in targets if not any(b in reachable(edges, other) for other in targets - {b})}
    assert set(re.findall(r"(\w+) --> (\w+)", picture)) == expected


def test_table_lists_the_stages_in_order() -> None:
    table = README.partition("## The graph")[2].partition("```mermaid")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(read_yaml(ROOT / "dvc.yaml")["stages"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_place_is_left_to_be_filled_in(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^[A-Z0-9_]{5,}$|\b(?:TODO|TBD|FIXME|XXX)\b", text, re.MULTILINE) == []


def test_summary_block_is_marked() -> None:
    assert README.count("<!-- begin: summary -->") == README.count("<!-- end: summary -->") == 1
