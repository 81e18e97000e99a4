"""Progress lines: on a terminal, in a log, with a clock that the test owns."""

from __future__ import annotations

import io

import pytest

from draftyard import progress
from draftyard.progress import Progress, format_seconds


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (59.9, "59s"), (60, "1m00s"), (185, "3m05s"), (3600, "1h00m"), (7645, "2h07m")])
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_log_gets_a_plain_line_now_and_then(clock: Clock) -> None:
    stream = io.StringIO()
    bar = Progress("train", 100, "steps", stream=stream)
    for done in range(1, 41):
        clock.now += 1
        bar.update(done, f"loss {done}")
    lines = stream.getvalue().splitlines()
    assert lines == [
        "train:  15% 15/100 steps, 1/s, 15s elapsed, 1m25s left | loss 15",
        "train:  30% 30/100 steps, 1/s, 30s elapsed, 1m10s left | loss 30",
    ]


def test_a_terminal_gets_a_live_line_that_the_last_one_ends(clock: Clock) -> None:
    stream = Terminal()
    bar = Progress("train", 4, "steps", stream=stream)
    clock.now += 0.1
    bar.update(1)
    assert stream.getvalue() == ""
    clock.now += 0.9
    bar.update(2)
    bar.update(4)
    bar.close("done")
    assert stream.getvalue() == (
        "\r\x1b[2K[==========>         ] train:  50% 2/4 steps, 2/s, 1s elapsed, 1s left\r\x1b[2Ktrain: 100% 4/4 steps, 4/s, 1s elapsed | done\n"
    )


def test_a_live_line_never_wraps(clock: Clock) -> None:
    stream = Terminal()
    clock_bar = Progress("train", 4, "steps", stream=stream)
    clock.now += 1
    clock_bar.update(2, "x" * 500)
    assert len(stream.getvalue().removeprefix("\r\x1b[2K")) == progress.DEFAULT_COLUMNS - 1


@pytest.mark.parametrize(
    ("done", "total", "shown"), [(0, 4, "[>         ]"), (2, 4, "[=====>    ]"), (4, 4, "[==========]"), (9, 4, "[==========]"), (0, 0, "[==========]")]
)
def test_bar(done: int, total: int, shown: str) -> None:
    assert progress.bar(done, total, 10) == shown


def test_the_log_has_the_plain_lines_of_a_terminal_too(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="draftyard.progress")
    bar = Progress("train", 100, "steps", stream=Terminal())
    for done in range(1, 41):
        clock.now += 1
        bar.update(done)
    bar.close("done")
    assert caplog.messages == [
        "train:  15% 15/100 steps, 1/s, 15s elapsed, 1m25s left",
        "train:  30% 30/100 steps, 1/s, 30s elapsed, 1m10s left",
        "train:  40% 40/100 steps, 1/s, 40s elapsed, 1m00s left | done",
    ]


def test_resumed_units_do_not_count_into_the_rate(clock: Clock) -> None:
    stream = io.StringIO()
    bar = Progress("train", 100, "steps", done=80, stream=stream)
    clock.now += 20
    bar.update(90)
    assert stream.getvalue() == "train:  90% 90/100 steps, 0.5/s, 20s elapsed, 20s left\n"


def test_nothing_to_do_is_all_done(clock: Clock) -> None:
    stream = io.StringIO()
    Progress("generate", 0, "prompts", stream=stream).close()
    assert stream.getvalue() == "generate: 100% 0/0 prompts, 0/s, 0s elapsed\n"
