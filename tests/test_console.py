"""A stage's terminal and its log: who sees what, with real file descriptors in a real child process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from draftyard.console import MAX_LOG_BYTES, TAIL_LINES, Chatter, chatter_to

NOISE = """
import os, subprocess, sys
from pathlib import Path
from draftyard.console import chatter_to, terminal
print("before", file=sys.stderr)
with chatter_to(Path("logs/stage.log")) as chatter:
    print("python chatter", file=sys.stderr)
    os.write(2, b"compiled chatter\\n")
    subprocess.run([sys.executable, "-c", "import sys; print('child chatter', file=sys.stderr)"])
    print("told", file=terminal())
    print("result")
    tail = chatter.tail()
print("after", tail, file=sys.stderr)
"""


def test_chatter_goes_to_the_log_and_words_to_the_user(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", NOISE], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout == "result\n"
    lines = ["python chatter", "compiled chatter", "child chatter"]
    assert result.stderr == f"before\ntold\nafter {lines}\n"
    assert (tmp_path / "logs/stage.log").read_text() == "".join(f"{line}\n" for line in lines)


def test_an_exec_gets_the_terminal_back(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom draftyard.console import chatter_to, restore_standard_error\n"
        "with chatter_to(Path('stage.log')):\n    os.write(2, b'first\\n')\n    restore_standard_error()\n"
        "    os.execv(sys.executable, [sys.executable, '-c', 'import sys; print(\"second\", file=sys.stderr)'])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stderr == "second\n"
    assert (tmp_path / "stage.log").read_text() == "first\n"


def test_the_tail_is_of_this_run_and_of_libraries(tmp_path: Path) -> None:
    log = tmp_path / "stage.log"
    log.write_text("an earlier run\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.write("2026-11-30 10:00:00,123 draftyard train: 3 of 4 tokens\nloading:   0%\rloading: 100%\n\n")
        file.writelines(f"line {number}\n" for number in range(TAIL_LINES - 1))
    assert Chatter(log, start).tail() == ["loading: 100%", *(f"line {number}" for number in range(TAIL_LINES - 1))]
    assert Chatter(log, start).tail(2) == [f"line {TAIL_LINES - 3}", f"line {TAIL_LINES - 2}"]
    assert Chatter(tmp_path / "none.log", 0).tail() == []


def test_a_log_goes_on_and_a_huge_one_is_started_over(tmp_path: Path) -> None:
    log = tmp_path / "stage.log"
    log.write_text("kept\n")
    with chatter_to(log) as chatter:
        assert chatter.start == 5
    with log.open("ab") as file:
        file.truncate(MAX_LOG_BYTES + 1)
    with chatter_to(log) as chatter:
        assert chatter.start == 0
