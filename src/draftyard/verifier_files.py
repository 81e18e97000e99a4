"""The files of a model directory that decide what a verifier computes, and their digests.

Weights can be a terabyte: their SHA-256 is remembered under (size, mtime, ctime, inode) in a directory outside the model, so that an
unchanged file is hashed once and a changed one is noticed.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import stat
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from draftyard.artifacts.card import FileDigest
from draftyard.artifacts.files import digest_file, digest_json, read_json, write_json
from draftyard.errors import ArtifactError
from draftyard.progress import Progress

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
INDEX = "model.safetensors.index.json"
WEIGHTS = "*.safetensors"
FOREIGN_WEIGHTS = "consolidated*.safetensors"
"""The same weights again in Mistral's own layout; the engine skips them beside a Hugging Face checkpoint."""
TOKENIZER_PATTERNS = ("tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "tekken.json", "*.model", "*.tiktoken")
IDENTITY_PATTERNS = (CONFIG, "*_config.json", "*.safetensors.index.json", "chat_template.*", *TOKENIZER_PATTERNS)
CODE_PATTERN = "*.py"
"""Part of the identity when verifier.trust_remote_code allows it to run."""
MAX_JSON_BYTES = 1 << 28
SHOW_PROGRESS_BYTES = 4 << 30
"""Less is hashed within seconds."""
RACY_SECONDS = 2.0
"""A file changed this recently could change again without a new time stamp: its digest is not remembered."""


def weight_files(directory: Path) -> list[str]:
    """Names of the safetensors files with the model's weights: those of the index, or all of them.

    Raises ArtifactError when there are none, or the index names a file that is missing or lies elsewhere.
    """
    if (directory / INDEX).exists():
        index = read_json(directory / INDEX, max_bytes=MAX_JSON_BYTES)
        mapping = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(mapping, dict) or not mapping or not all(isinstance(name, str) for name in mapping.values()):
            raise ArtifactError(f"{directory / INDEX}: weight_map must map tensor names to file names")
        names = sorted(set(mapping.values()))
        for name in names:
            if Path(name).name != name or not fnmatch.fnmatchcase(name, WEIGHTS):
                raise ArtifactError(f"{directory / INDEX}: names the weight file {name!r:.200}; weights are {WEIGHTS} files beside the index")
            if not (directory / name).is_file():
                raise ArtifactError(f"{directory / name}: no such file, but {INDEX} lists it; the copy of the model is incomplete")
        return names
    names = sorted(p.name for p in directory.glob(WEIGHTS) if not fnmatch.fnmatchcase(p.name, FOREIGN_WEIGHTS))
    if not names:
        raise ArtifactError(f"{directory}: no {WEIGHTS} file; weights are read from safetensors only (pickle files can run code): convert the model first")
    return names


def identity_files(directory: Path, *, code: bool, weights: bool = True) -> list[str]:
    """Names of all files that decide what the model computes, weights among them unless not `weights`; with the *.py files when `code`.

    Links are followed (the hub's cache is made of them); what is no regular file in the end is refused.
    """
    patterns = (*IDENTITY_PATTERNS, CODE_PATTERN) if code else IDENTITY_PATTERNS
    with os.scandir(directory) as entries:
        names = {entry.name for entry in entries if any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in patterns)}
    kept = sorted(names | set(weight_files(directory) if weights else ()))
    for name in kept:
        try:
            regular = stat.S_ISREG((directory / name).stat().st_mode)
        except OSError as error:
            raise ArtifactError(f"{directory / name}: cannot be read ({error.strerror}); a dangling link?") from None
        if not regular:
            raise ArtifactError(f"{directory / name}: is not a regular file; remove it, or point verifier.name at a clean copy of the model")
    return kept


def digest_files(directory: Path, names: list[str], cache: Path) -> dict[str, FileDigest]:
    """Size and SHA-256 of each file; weight files through the digests remembered in `cache`."""
    digests = {}
    weights = [name for name in names if fnmatch.fnmatchcase(name, WEIGHTS)]
    for name in names:
        if name not in weights:
            path = directory / name
            digests[name] = FileDigest(path.stat().st_size, digest_file(path))
    total = sum((directory / name).stat().st_size for name in weights)
    progress = Progress("hashing the verifier's weights", total >> 20, "MiB") if total > SHOW_PROGRESS_BYTES else None
    done = 0
    with ThreadPoolExecutor(max_workers=max(1, min(4, len(weights), len(os.sched_getaffinity(0))))) as pool:  # hashlib releases the GIL
        running = {pool.submit(remembered_digest, directory / name, cache): name for name in weights}
        for future in as_completed(running):
            entry = digests[running[future]] = future.result()
            done += entry.size
            if progress:
                progress.update(done >> 20)
    if progress:
        progress.close()
    return dict(sorted(digests.items()))


def remembered_digest(path: Path, cache: Path) -> FileDigest:
    """Size and SHA-256 of a file, from `cache` when the file is unchanged since it was hashed.

    Raises ArtifactError when it changes while it is read.
    """
    record = cache / f"{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]}.json"
    started, before = time.time(), _state(path)
    try:
        known = json.loads(record.read_bytes())
        if known["state"] == before:
            return FileDigest(before[0], str(known["sha256"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never hashed, or the record is damaged: hash
    sha256 = digest_file(path)
    if _state(path) != before:
        raise ArtifactError(f"{path}: changed while it was read; wait until the copy is complete")
    if started - max(before[1], before[2]) / 1e9 > RACY_SECONDS:
        write_json(record, {"state": before, "sha256": sha256})
    return FileDigest(before[0], sha256)


def _state(path: Path) -> list[int]:
    """Size, mtime_ns, ctime_ns, inode: a copy that keeps its mtime still changes ctime."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def verify_files(directory: Path, expected: Mapping[str, FileDigest], cache: Path, *, code: bool, remedy: str, weights: bool = True) -> None:
    """Hold the files of `directory`, but for its weights when not `weights`, against a card.

    Raises ArtifactError naming the file, both digests and `remedy`.
    """
    if not directory.is_dir():
        raise ArtifactError(f"{directory}: no such directory; {remedy}")
    if not weights:
        expected = {name: digest for name, digest in expected.items() if not fnmatch.fnmatchcase(name, WEIGHTS)}
    for name in sorted(expected):
        path = directory / name
        if not path.is_file():
            raise ArtifactError(f"{path}: no such file, but the verifier's card lists it; {remedy}")
        if path.stat().st_size != expected[name].size:
            raise _changed(path, FileDigest(path.stat().st_size, digest_file(path)), expected[name], remedy)
    names = identity_files(directory, code=code, weights=weights)
    for name in names:
        if name not in expected:
            raise ArtifactError(f"{directory / name}: is not listed in the verifier's card, yet it can change what the model computes; {remedy}")
    found = digest_files(directory, sorted(expected), cache)
    for name, digest in found.items():
        if digest != expected[name]:
            raise _changed(directory / name, digest, expected[name], remedy)


def _changed(path: Path, found: FileDigest, expected: FileDigest, remedy: str) -> ArtifactError:
    return ArtifactError(
        f"{path}: has changed: SHA-256 {found.sha256} ({found.size} bytes), the verifier's card pins {expected.sha256} ({expected.size} bytes); {remedy}"
    )


def tokenizer_digest(directory: Path, digests: Mapping[str, FileDigest]) -> str:
    """SHA-256 of tokenizer.json; without one, of the names and digests of the tokenizer's files. Raises ArtifactError when there is none."""
    if TOKENIZER in digests:
        return digests[TOKENIZER].sha256
    files = {
        name: entry.sha256
        for name, entry in digests.items()
        if name != "tokenizer_config.json" and any(fnmatch.fnmatchcase(name, pattern) for pattern in TOKENIZER_PATTERNS)
    }
    if not files:
        raise ArtifactError(f"{directory}: no tokenizer ({TOKENIZER}, or {', '.join(TOKENIZER_PATTERNS[1:])}); copy it beside {CONFIG}")
    return digest_json(files)


def chat_template(directory: Path) -> str | None:
    """The chat template's text, looked for where transformers does: chat_template.jinja, chat_template.json, tokenizer_config.json."""
    jinja = directory / "chat_template.jinja"
    if jinja.is_file():
        try:
            return jinja.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ArtifactError(f"{jinja}: is not UTF-8 text ({error})") from None
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = directory / name
        values: Any = read_json(path, max_bytes=MAX_JSON_BYTES) if path.is_file() else {}
        template = values.get("chat_template") if isinstance(values, dict) else None
        if isinstance(template, list):  # several named templates
            template = next((item.get("template") for item in template if isinstance(item, dict) and item.get("name") == "default"), None)
        if isinstance(template, str):
            return template
    return None
