"""Who writes, and what reaches the others: two real processes of torch.distributed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from draftyard.training.ranks import Ranks

ROOT = Path(__file__).parents[2]
PROCESS = """
import sys
from types import SimpleNamespace
import torch
from draftyard.errors import DraftyardError
from draftyard.training.ranks import Ranks

rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
ranks = Ranks(SimpleNamespace(num_processes=2, is_main_process=rank == 0, device=torch.device("cpu")))

def fail(error):
    raise error

print("value", ranks.first(lambda: {"path": "\\u00e9", "rank": rank}))
print("none", ranks.first(lambda: None))
for error in (DraftyardError("no room"), OSError(28, "No space left on device"), ZeroDivisionError("bug"), KeyboardInterrupt()):
    try:
        ranks.first(lambda: fail(error))
    except BaseException as caught:
        print(type(caught).__name__, caught)
"""


def test_on_one_process_it_is_a_plain_call() -> None:
    ranks = Ranks(SimpleNamespace(num_processes=1, is_main_process=True))
    assert ranks.first(lambda: (1, "two")) == (1, "two")
    with pytest.raises(ZeroDivisionError):
        ranks.first(lambda: 1 // 0)


def test_what_the_first_process_finds_reaches_the_other(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROCESS]
    children = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [child.communicate(timeout=900) for child in children]
    first, second = (out.splitlines() for out, _ in outputs)
    assert first == ["value {'path': 'é', 'rank': 0}", "none None", "DraftyardError no room", "OSError [Errno 28] No space left on device",
                     "ZeroDivisionError bug", "KeyboardInterrupt "], outputs[0][1][-2000:]  # fmt: skip
    assert second[:2] == first[:2]
    assert [line.split(":")[0] for line in second[2:]] == ["DraftyardError the first process failed"] * 4
    assert second[2].endswith("no room")
    assert "No space left" in second[3]
