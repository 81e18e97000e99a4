"""runtime.yaml: the shipped file, its rules, and where the resume area is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from draftyard.errors import ParamError
from draftyard.runtime import WORK_DIR_VARIABLE, load_runtime, work_dir

ROOT = Path(__file__).parents[1]


def write(directory: Path, group: str | None = None, **changes: object) -> Path:
    values = yaml.safe_load((ROOT / "runtime.yaml").read_text())
    (values if group is None else values[group]).update(changes)
    (directory / "runtime.yaml").write_text(yaml.safe_dump(values))
    return directory


def test_the_shipped_file_is_valid() -> None:
    runtime = load_runtime(ROOT)
    assert runtime.threads is None
    assert runtime.num_threads() == len(os.sched_getaffinity(0))
    assert runtime.train.device == "auto"


def test_how_long_an_engine_is_waited_for_is_no_part_of_the_batching(tmp_path: Path) -> None:
    """A resumed shard may be finished under other bounds: the key of the resume area has none of them."""
    patient = load_runtime(write(tmp_path, "engine", stall_seconds=9.0, start_seconds=9.0, max_restarts=9)).engine
    shipped = load_runtime(ROOT).engine
    assert patient != shipped
    assert patient.batching() == shipped.batching()
    assert load_runtime(write(tmp_path, "engine", max_num_seqs=9)).engine.batching() != shipped.batching()


def test_threads_are_taken_as_written(tmp_path: Path) -> None:
    assert load_runtime(write(tmp_path, threads=3)).num_threads() == 3


@pytest.mark.parametrize(
    ("group", "key", "value", "rule"),
    [
        (None, "threads", 0, "must be at least 1, or null for all"),
        ("engine", "max_num_seqs", 0, "engine.max_num_seqs=0: must be at least 1"),
        ("engine", "samples_per_shard", 0, "engine.samples_per_shard=0: must be at least 1"),
        ("engine", "kv_cache_gib", 0, "must be at least 1"),
        ("engine", "gpu_memory_utilization", 1.2, r"must lie in \(0, 1\]"),
        ("engine", "gpu_memory", 1, "unknown key"),
        ("engine", "stall_seconds", 0.0, "engine.stall_seconds=0.0: must be positive"),
        ("engine", "start_seconds", -1.0, "engine.start_seconds=-1.0: must be positive"),
        ("engine", "max_restarts", -1, "engine.max_restarts=-1: must not be negative"),
        ("store", "url", " ", "must name a directory or a URL, or be null"),
        ("store", "url", "ssh://me:secret@host/x", "must not hold a password"),
        ("store", "cache_gib", 0, "must be positive"),
        ("endpoint", "base_url", "gpu-node:8000/v1", r"endpoint.base_url='gpu-node:8000/v1': must be an http or https URL"),
        ("endpoint", "base_url", "http:///v1", "must be an http or https URL"),
        ("endpoint", "base_url", "http://host/v1?key=1", "must be an http or https URL"),
        ("endpoint", "base_url", "http://host/v1/", "must not end with a slash"),
        ("endpoint", "base_url", "http://me:secret@host/v1", "endpoint.base_url: must not hold a user or a password"),
        ("endpoint", "api_key_variable", "sk-secret", "endpoint.api_key_variable: must be the NAME of an environment variable"),
        ("endpoint", "max_in_flight", 0, "must be at least 1"),
        ("endpoint", "max_attempts", 0, "must be at least 1"),
        ("endpoint", "request_timeout_seconds", 0, "must be positive"),
        ("endpoint", "max_wait_seconds", 0, "must be positive"),
        ("train", "device", "gpu", "must be one of auto, cpu, cuda"),
        ("train", "micro_batch_tokens", 7, "must be at least 8"),
        ("train", "checkpoint_every_steps", 0, "must be at least 1"),
        ("train", "num_processes", 0, "train.num_processes=0: must be at least 1"),
        ("train", "sharding", "ddp", "train.sharding='ddp': must be one of none, fsdp"),
        (None, "executor", "slurm", "executor='slurm': must be one of local, ray"),
        ("ray", "num_engines", 0, "ray.num_engines=0: must be at least 1"),
        ("ray", "cpus_per_engine", 0, "ray.cpus_per_engine=0: must be positive where gpus_per_engine is 0"),
        ("ray", "address", "", "must be auto or host:port"),
    ],
)
def test_a_broken_rule_is_named(group: str | None, key: str, value: object, rule: str, tmp_path: Path) -> None:
    with pytest.raises(ParamError, match=rule):
        load_runtime(write(tmp_path, group, **{key: value}))


def test_a_key_that_stands_in_the_file_is_refused_without_showing_it(tmp_path: Path) -> None:
    for key, value in (("base_url", "http://me:sk-secret@host/v1"), ("api_key_variable", "sk-secret")):
        with pytest.raises(ParamError) as caught:
            load_runtime(write(tmp_path, "endpoint", **{key: value}))
        assert "secret" not in str(caught.value)


def test_an_engine_on_a_cluster_reserves_the_gpus_that_it_uses(tmp_path: Path) -> None:
    values = yaml.safe_load((ROOT / "runtime.yaml").read_text())
    values["executor"] = "ray"
    values["engine"].update(tensor_parallel_size=4, pipeline_parallel_size=2)
    values["ray"]["gpus_per_engine"] = 4
    (tmp_path / "runtime.yaml").write_text(yaml.safe_dump(values))
    rule = r"ray\.gpus_per_engine=4: must be engine\.tensor_parallel_size x engine\.pipeline_parallel_size = 8"
    with pytest.raises(ParamError, match=rule):
        load_runtime(tmp_path)
    write(tmp_path, "ray", gpus_per_engine=4)  # with executor: local nobody reserves anything
    assert load_runtime(tmp_path).ray.gpus_per_engine == 4


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParamError, match=r"runtime\.yaml: no such file$"):
        load_runtime(tmp_path)


def test_the_resume_area_is_absolute_and_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORK_DIR_VARIABLE, raising=False)
    assert work_dir(tmp_path) == tmp_path / ".work"
    monkeypatch.chdir(tmp_path)
    assert work_dir(Path()).is_absolute()
    monkeypatch.setenv(WORK_DIR_VARIABLE, str(tmp_path / "elsewhere"))
    assert work_dir(ROOT) == tmp_path / "elsewhere"
    monkeypatch.setenv(WORK_DIR_VARIABLE, "")
    assert work_dir(tmp_path) == tmp_path / ".work"
