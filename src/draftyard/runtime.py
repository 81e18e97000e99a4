"""runtime.yaml: what changes speed but never a result. No stage depends on it."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from draftyard.params.base import build, require
from draftyard.params.yaml_file import read_yaml

WORK_DIR_VARIABLE = "DRAFTYARD_WORK_DIR"
EXPERIMENTS = (".dvc", "tmp", "exps")
"""Where DVC keeps the copies of the repository that queued experiments run in."""
WATCHING = ("start_seconds", "stall_seconds", "max_restarts")


@dataclass(frozen=True, kw_only=True)
class EngineRuntime:
    """How vLLM uses this machine."""

    max_num_seqs: int
    """Sequences in flight."""
    max_num_batched_tokens: int
    """Tokens per engine step."""
    kv_cache_gib: int
    """CPU only: memory for the KV cache, GiB."""
    gpu_memory_utilization: float
    """GPU only: fraction of device memory."""
    tensor_parallel_size: int
    """GPUs that share every layer of the verifier."""
    pipeline_parallel_size: int
    """Groups of such GPUs (nodes), each with a part of the layers. Aux states do not cross groups in vLLM 0.32: where they are needed, keep it 1."""
    enable_expert_parallel: bool
    """Mixtures of experts: whole experts on each GPU instead of a slice of every one."""
    samples_per_shard: int
    """Prompts answered between two commits to the work area."""
    start_seconds: float
    """Longest start of an engine, loading the weights included."""
    stall_seconds: float
    """Longest silence of a working engine; then it is taken for hung and replaced."""
    max_restarts: int
    """Failures of the engine in a row, without anything answered between them, before the stage fails."""

    def __post_init__(self) -> None:
        for key in ("max_num_seqs", "max_num_batched_tokens", "kv_cache_gib", "tensor_parallel_size", "pipeline_parallel_size", "samples_per_shard"):
            require(getattr(self, key) >= 1, f"engine.{key}", getattr(self, key), "must be at least 1")
        require(0 < self.gpu_memory_utilization <= 1, "engine.gpu_memory_utilization", self.gpu_memory_utilization, "must lie in (0, 1]")
        for key in ("start_seconds", "stall_seconds"):
            require(getattr(self, key) > 0, f"engine.{key}", getattr(self, key), "must be positive")
        require(self.max_restarts >= 0, "engine.max_restarts", self.max_restarts, "must not be negative")

    def batching(self) -> dict[str, object]:
        """What decides how requests share batches, and so the last bits of a result; the other keys only bound waiting."""
        return {key: value for key, value in asdict(self).items() if key not in WATCHING}


@dataclass(frozen=True, kw_only=True)
class EndpointRuntime:
    """How `generate` reaches an OpenAI-compatible server (generate.engine: endpoint). Which of several equal servers answers changes no result."""

    base_url: str
    """Of the API, as in http://host:8000/v1."""
    api_key_variable: str | None
    """Environment variable that holds the API key, if the server wants one; null: none is sent. The key itself is written nowhere."""
    max_in_flight: int
    """Requests at a time; a vLLM server queues what exceeds its own --max-num-seqs."""
    max_attempts: int
    """Attempts per request before the stage gives up."""
    request_timeout_seconds: float
    """Longest attempt, from connecting to the last byte, waiting in the server's queue included."""
    max_wait_seconds: float
    """Longest wait between two attempts, which grows from 1 s; a server that asks for more (Retry-After) ends the stage."""

    def __post_init__(self) -> None:
        url = urlsplit(self.base_url)
        # Without the value: it may hold a password.
        require("@" not in self.base_url, "endpoint.base_url", None, "must not hold a user or a password; name the variable of a key in api_key_variable")
        require(
            url.scheme in ("http", "https") and bool(url.hostname) and not url.query and not url.fragment,
            "endpoint.base_url",
            self.base_url,
            "must be an http or https URL such as http://host:8000/v1",
        )
        require(not self.base_url.endswith("/"), "endpoint.base_url", self.base_url, "must not end with a slash")
        name = self.api_key_variable
        # Without the value: whoever takes this for the key itself must not find it in a log.
        rule = "must be the NAME of an environment variable (capital letters, digits, _), or null; never the key"
        require(name is None or re.fullmatch("[A-Z_][A-Z0-9_]*", name) is not None, "endpoint.api_key_variable", None, rule)
        for key in ("max_in_flight", "max_attempts"):
            require(getattr(self, key) >= 1, f"endpoint.{key}", getattr(self, key), "must be at least 1")
        for key in ("request_timeout_seconds", "max_wait_seconds"):
            require(getattr(self, key) > 0, f"endpoint.{key}", getattr(self, key), "must be positive")


@dataclass(frozen=True, kw_only=True)
class RayRuntime:
    """The cluster that makes the shards of generate and hidden_states (executor: ray). All nodes see repository and work area under the same paths."""

    address: str
    """Of the cluster: "auto" for the one that this machine belongs to, or host:port of its head."""
    num_engines: int
    """Engines at a time, at most. One that has no room waits for a node that has."""
    cpus_per_engine: int
    """Ray CPUs that an engine reserves."""
    gpus_per_engine: int
    """Ray GPUs that an engine reserves: tensor_parallel_size x pipeline_parallel_size; 0 on CPUs."""

    def __post_init__(self) -> None:
        require(bool(self.address), "ray.address", self.address, "must be auto or host:port")
        require(self.num_engines >= 1, "ray.num_engines", self.num_engines, "must be at least 1")
        require(self.cpus_per_engine >= 0, "ray.cpus_per_engine", self.cpus_per_engine, "must not be negative")
        require(self.gpus_per_engine >= 0, "ray.gpus_per_engine", self.gpus_per_engine, "must not be negative")
        # An actor that reserves nothing is placed without a limit.
        require(self.cpus_per_engine + self.gpus_per_engine > 0, "ray.cpus_per_engine", self.cpus_per_engine, "must be positive where gpus_per_engine is 0")


@dataclass(frozen=True, kw_only=True)
class StoreRuntime:
    """Where the shards of hidden states lie with hidden_states.storage: store. The same shards elsewhere are the same result."""

    url: str | None
    """A directory (relative to the repository) or an fsspec URL such as s3://bucket/path; null: no store. Credentials come from the environment."""
    cache_gib: float
    """Local copies of a store behind a URL, GiB, in the work area; a directory is read in place."""

    def __post_init__(self) -> None:
        require(self.url is None or bool(self.url.strip()), "store.url", self.url, "must name a directory or a URL, or be null")
        # Without the value: it holds a password.
        require(self.url is None or not urlsplit(self.url).password, "store.url", None, "must not hold a password; credentials come from the environment")
        require(self.cache_gib > 0, "store.cache_gib", self.cache_gib, "must be positive")


@dataclass(frozen=True, kw_only=True)
class TrainRuntime:
    """How training uses this machine."""

    device: Literal["auto", "cpu", "cuda"]
    """auto: a GPU when there is one."""
    micro_batch_tokens: int
    """Tokens per forward pass; gradients are accumulated up to train.batch_tokens."""
    checkpoint_every_steps: int
    """Optimizer steps between two resume points."""
    num_processes: int
    """Processes that share the micro-batches of every step: torchrun's on this machine; with executor ray, workers of Ray Train."""
    sharding: Literal["none", "fsdp"]
    """none: every process holds the whole draft, its gradients and its optimizer state. fsdp: a share of them each, for a draft that one device cannot hold."""
    logger: Literal["tensorboard", "wandb", "mlflow"] | None
    """Where the curves are also shown while training runs; null: only in reports/training.csv."""

    def __post_init__(self) -> None:
        require(self.micro_batch_tokens >= 8, "train.micro_batch_tokens", self.micro_batch_tokens, "must be at least 8")
        require(self.checkpoint_every_steps >= 1, "train.checkpoint_every_steps", self.checkpoint_every_steps, "must be at least 1")
        require(self.num_processes >= 1, "train.num_processes", self.num_processes, "must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The whole of runtime.yaml."""

    engine: EngineRuntime
    endpoint: EndpointRuntime
    ray: RayRuntime
    store: StoreRuntime
    train: TrainRuntime
    threads: int | None
    """CPU threads; null: all cores this process may use."""
    executor: Literal["local", "ray"]
    """Who makes the shards of generate and hidden_states: an engine of this machine, or engines of a Ray cluster."""

    def __post_init__(self) -> None:
        require(self.threads is None or self.threads >= 1, "threads", self.threads, "must be at least 1, or null for all")
        gpus, sizes = self.ray.gpus_per_engine, self.engine.tensor_parallel_size * self.engine.pipeline_parallel_size
        if self.executor == "ray" and gpus:
            require(gpus == sizes, "ray.gpus_per_engine", gpus, f"must be engine.tensor_parallel_size x engine.pipeline_parallel_size = {sizes}")

    def num_threads(self) -> int:
        """CPU threads to use: `threads`, or every core of this process's affinity mask."""
        return self.threads or len(os.sched_getaffinity(0))


def load_runtime(root: Path) -> Runtime:
    """Read and validate runtime.yaml of the repository `root`. Raises ParamError."""
    return build(Runtime, "runtime", read_yaml(root / "runtime.yaml"))


def work_dir(root: Path) -> Path:
    """The resume area: $DRAFTYARD_WORK_DIR, or .work in the repository (of a queued experiment: in the repository that queued it)."""
    return Path(os.environ.get(WORK_DIR_VARIABLE) or repository(root) / ".work").absolute()


def repository(root: Path) -> Path:
    """`root` itself; for the copy in .dvc/tmp/exps/ that DVC runs a queued experiment in, the repository that queued it.

    The copy holds tracked files and outputs only, and is deleted at the end: verifiers, logs and unfinished work belong to the original.
    """
    for parent in root.absolute().parents:
        if parent.parts[-3:] == EXPERIMENTS:
            return parent.parents[2]
    return root
