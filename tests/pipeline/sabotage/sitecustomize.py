"""Put first on PYTHONPATH by a test, which orders by environment variables.

KILL_AT_NAME, KILL_AT_COUNT: kill the process group just before a file whose name matches is renamed into place for the n-th time.
FREE_BYTES: what every disk has left. Always: say at the end whether vLLM was imported.
"""

import atexit
import fnmatch
import os
import shutil
import signal
import sys

_replace, _disk_usage = os.replace, shutil.disk_usage
_left = int(os.environ.get("KILL_AT_COUNT", "0"))


def replace(source, target, **options):
    """os.replace, deadly for one file."""
    global _left
    if fnmatch.fnmatchcase(os.path.basename(target), os.environ.get("KILL_AT_NAME", "")):
        _left -= 1
        if _left == 0:
            os.killpg(0, signal.SIGKILL)
    return _replace(source, target, **options)


def disk_usage(path):
    """shutil.disk_usage of a nearly full disk."""
    return _disk_usage(path)._replace(free=int(os.environ["FREE_BYTES"]))


os.replace = replace
if "FREE_BYTES" in os.environ:
    shutil.disk_usage = disk_usage
atexit.register(lambda: print(f"vllm imported: {'vllm' in sys.modules}", file=sys.stderr))
