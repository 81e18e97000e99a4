"""The environment that vLLM must find before the interpreter starts, owned in this one place."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from draftyard.hardware import openmp_library
from draftyard.runtime import Runtime

OPENMP_RUNTIMES = ("libgomp", "libiomp", "libomp")
"""How the files of the OpenMP runtimes are named that vLLM looks for in LD_PRELOAD."""


def engine_environment(runtime: Runtime, log_file: Path) -> dict[str, str]:
    """This process's environment with what vLLM needs.

    The engine stays in the calling process (its own scheduler process would hold one core back), every allowed core
    works for the model, Intel OpenMP is preloaded where it is installed (alone: vLLM refuses two of its kind), and
    vLLM's log goes to `log_file`.
    """
    cores = sorted(os.sched_getaffinity(0))[: runtime.num_threads()]
    log_file.parent.mkdir(parents=True, exist_ok=True)
    config = log_file.with_suffix(".logging.json")
    handler = {"class": "logging.FileHandler", "filename": str(log_file), "formatter": "plain", "level": "INFO"}
    logging_config = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
        "handlers": {"file": handler},
        "loggers": {"vllm": {"handlers": ["file"], "level": "INFO", "propagate": False}},
    }
    config.write_text(json.dumps(logging_config), encoding="utf-8")
    environment = dict(os.environ)
    environment.update(
        {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_CPU_KVCACHE_SPACE": str(runtime.engine.kv_cache_gib),
            "VLLM_LOGGING_CONFIG_PATH": str(config),
            "VLLM_NO_USAGE_STATS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            "MALLOC_MMAP_THRESHOLD_": str(1 << 32),  # freed blocks stay with the process: page faults cost a CPU engine dearly
            "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONWARNINGS": "ignore",
            "HF_HUB_OFFLINE": "1",
        }
    )
    library = openmp_library()
    if library is not None:
        preloaded = re.split(r"[\s:]+", environment.get("LD_PRELOAD", ""))  # ld.so takes both separators
        others = [path for path in preloaded if path and not Path(path).name.startswith(OPENMP_RUNTIMES)]
        environment["LD_PRELOAD"] = " ".join([str(library), *others])
    return environment
