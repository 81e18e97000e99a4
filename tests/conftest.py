"""What every test may rely on."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Ctrl-C interrupts: a run started in the background inherits that SIGINT is ignored, and would wait for ever in the tests that send it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
