"""The errors a user can mend. Everything else is a bug and keeps its traceback."""

from __future__ import annotations

import errno

MACHINE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENOMEM})
"""What a machine refuses: disk, quota, permission, files, memory."""


class DraftyardError(Exception):
    """A mistake in the input or the machine, told as: where, what was found, the rule, the remedy.

    Stage scripts and the command line print it without a traceback and exit non-zero.
    """


class ParamError(DraftyardError):
    """A value of params.yaml or runtime.yaml that breaks a rule.

    `key` is the dotted name ("draft.head_dim"), `rule` a sentence that says what would be accepted.
    `value` is what was found; None where there is nothing to show (a missing file, a null).
    """

    def __init__(self, key: str, value: object, rule: str) -> None:
        super().__init__(f"{key}: {rule}" if value is None else f"{key}={value!r}: {rule}")
        self.key = key
        self.value = value
        self.rule = rule


class ArtifactError(DraftyardError):
    """A file of the build that is missing, damaged, or does not fit what it is combined with."""


def sentence(error: BaseException) -> str | None:
    """What to tell the user of `error`; None for a bug, whose traceback is wanted."""
    if isinstance(error, DraftyardError):
        return str(error)
    if isinstance(error, OSError) and error.errno in MACHINE_ERRNOS:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; mend that and run the same command again, it goes on where it stood"
    return None
