"""The command line: exit codes, one sentence per error, and a start without heavy imports."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from draftyard import __version__
from draftyard.cli import main
from tests.verification.checkpoints import write_kimi_headers

ROOT = Path(__file__).parents[1]
KIMI = str(ROOT / "profiles/kimi-k2.5.yaml")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_version_and_help() -> None:
    assert run("--version") == (0, f"draftyard, version {__version__}\n")
    code, text = run("--help")
    assert code == 0
    assert all(command in text for command in ("check", "plan", "export", "doctor"))


@pytest.mark.parametrize("command", [["--help"], ["check", "--help"], ["plan", "--help"]])
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    code = (
        "import sys, time\nt = time.process_time()\nfrom draftyard.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'vllm', 'dvc', 'speculators', 'numpy'} & set(sys.modules)\n"
        "print('heavy', sorted(heavy), 'seconds', time.process_time() - t)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    text = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True, env=environment).stdout
    assert "heavy []" in text
    assert float(text.split("seconds")[-1]) < 0.3


def test_check_does_not_import_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom draftyard.cli import main\ntry:\n"
        f"    main(['check', {str(tmp_path)!r}])\nexcept SystemExit as e:\n    print(e.code, 'torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment).stdout
    assert text.endswith("2 False\n")


def test_check_of_nothing_is_an_error(tmp_path: Path) -> None:
    code, text = run("check", str(tmp_path))
    assert code == 2
    assert text.startswith("ERROR ")
    assert len(text.splitlines()) == 1
    code, text = run("check", str(tmp_path), "--json")
    values = json.loads(text)
    assert code == 2
    assert (values["status"], values["layout"], values["parameters"]) == ("error", None, {"saved": 0, "total": 0, "trainable": 0})
    assert values["checks"][0]["status"] == "fail"


def test_plan_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = run("plan", "--params", KIMI, "--set", "draft.head_dim=112", "--json")
    values = json.loads(text)
    assert code == 0
    assert values["parameters"]["total"] == 2_543_356_928
    assert values["storage"]["bytes_per_token"] == 57344
    assert isinstance(values["warnings"], list)


def test_errors_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = run("plan")
    assert code == 1
    assert text.startswith("draftyard: params.yaml")
    assert text.endswith(": no such file\n")
    assert len(text.splitlines()) == 1
    code, text = run("plan", "--params", KIMI, "--set", "draft.vocab_size=200000")
    assert code == 1
    assert text == "draftyard: draft.vocab_size=200000: is larger than the verifier's vocabulary of 163840 tokens, of which it is a subset\n"
    code, text = run("export", str(tmp_path), str(tmp_path / "out"), "--layout", "midlayer")
    assert code == 1
    assert "no model.safetensors" in text


def test_debug_shows_the_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["--debug", "plan"])
    assert type(result.exception).__name__ == "ParamError"


def test_kimi_sized_headers_within_a_second(tmp_path: Path) -> None:
    """2.4 GB of tensors as a sparse file: the headers are read in under a second and 200 MB."""
    write_kimi_headers(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    code = (
        "import re, time\nfrom draftyard.cli import main\nt = time.process_time()\n"
        f"try:\n    main(['check', {str(tmp_path)!r}, '--headers-only'])\nexcept SystemExit as e:\n"
        "    print(e.code, time.process_time() - t, re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    started = time.perf_counter()
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment).stdout
    assert time.perf_counter() - started < 30
    exit_code, seconds, kilobytes = text.splitlines()[-1].split()
    assert exit_code == "0"
    assert float(seconds) < 1
    assert int(kilobytes) < 200_000


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_ask_draftyard(shell: str) -> None:
    code, text = run("completion", shell)
    assert code == 0
    assert f"_DRAFTYARD_COMPLETE={shell}_complete" in text


def completed(*words: str) -> list[str]:
    """What bash would offer for the last word."""
    variables = {"_DRAFTYARD_COMPLETE": "bash_complete", "COMP_WORDS": shlex.join(["draftyard", *words]), "COMP_CWORD": str(len(words))}
    result = CliRunner().invoke(main, [], prog_name="draftyard", env=variables)
    return [line.partition(",")[2] for line in result.output.splitlines() if line]


def test_commands_options_and_params_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert completed("do") == ["doctor"]
    assert completed("plan", "--s") == ["--set"]
    assert completed("plan", "--set", "draft.he") == ["draft.head_dim="]
    assert completed("plan", "--params", "nowhere.yaml", "--set", "draft.he") == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["plan", "--params", "{dir}"], 1),
        (["plan", "--params", "{binary}"], 1),
        (["plan", "--params", KIMI, "--set", "draft"], 1),
        (["plan", "--params", KIMI, "--set", "draft.nothing=1"], 1),
        (["plan", "--params", KIMI, "--verifier-config", "{binary}"], 1),
        (["plan", "--nothing"], 2),
        (["check", "{binary}"], 2),
        (["check", "{dir}/nowhere"], 2),
        (["export", "{dir}/nowhere", "{dir}/out", "--layout", "midlayer"], 1),
        (["lineage", "nowhere"], 1),
        (["nothing"], 2),
    ],
)
def test_a_users_mistake_is_a_sentence_and_a_documented_exit_code(arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1: a finding or a mistake; 2: what was given cannot be read, or no such option. Never a traceback."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00" * 50)
    found, text = run(*(word.format(dir=tmp_path, binary=tmp_path / "binary") for word in arguments))
    assert (found, bool(text.strip())) == (code, True), text


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("draftyard.params.load.load_file", interrupted)
    code, text = run("plan", "--params", KIMI)
    assert (code, text) == (130, "draftyard: interrupted\n")
