"""Writing a safetensors file so that it is whole or absent, and a full disk is an OSError like any other."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from draftyard.artifacts.files import atomic_path

_ERRNO = re.compile(r"os error (\d+)")


@contextlib.contextmanager
def tensor_file(path: Path) -> Iterator[Path]:
    """A name beside `path` for `safetensors.*.save_file`; renamed to `path` on success, otherwise nothing of it stays.

    Raises OSError where safetensors tells an error of the system by its number.
    """
    with atomic_path(path) as temporary:
        try:
            yield temporary
        except SafetensorError as error:
            number = _ERRNO.search(str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None
