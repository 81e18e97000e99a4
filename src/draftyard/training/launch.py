"""Starting the processes of one training: torchrun's on this machine, Ray Train's workers on a cluster. Each runs the stage's own script.

The script finds its place in RANK, LOCAL_RANK and WORLD_SIZE, as torchrun sets them. Who starts it changes nothing else: the same
loop shares out each step, so a step is the same batch whatever the number of processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from draftyard.errors import DraftyardError
from draftyard.runtime import WORK_DIR_VARIABLE, Runtime
from draftyard.watchdog import DVC_VARIABLE, WATCHED_VARIABLE

STOP_SECONDS = 30.0


def launch(script: Path, root: Path, work: Path, runtime: Runtime) -> bool:
    """Run `script` in train.num_processes processes to their end. Returns False, having done nothing, where this process is one of them or the only one.

    Raises DraftyardError when they fail; what they had to say stands above it.
    """
    if runtime.train.num_processes == 1 or "RANK" in os.environ:
        return False
    if runtime.executor == "ray":
        _on_cluster(script.resolve(), root, work, runtime)
    else:
        count = str(runtime.train.num_processes)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count, str(script)]
        code = _run(command, root, dict(os.environ))
        if code:
            raise DraftyardError(f"the {count} processes of the training failed (exit code {code}); what they said stands above")
    return True


def speak_for_all() -> None:
    """Let the first process tell what all of them do: the others say no more than warnings and errors."""
    if os.environ.get("RANK", "0") != "0":
        for name in ("__main__", "draftyard"):
            logging.getLogger(name).setLevel(logging.WARNING)


def _run(command: list[str], root: Path, environment: dict[str, str]) -> int:
    """Run a command to its end; it does not outlive this call. Returns its exit code."""
    child = subprocess.Popen(command, cwd=root, env=environment)
    try:
        return child.wait()
    except BaseException:
        child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=STOP_SECONDS)
        child.kill()
        child.wait()
        raise


def _on_cluster(script: Path, root: Path, work: Path, runtime: Runtime) -> None:
    """Ray Train places the processes and starts all of them again, from the last resume point, when one is lost."""
    from draftyard.cluster.pool import connect

    connect(runtime)
    import ray
    from ray import train
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer  # without a process group of its own: the script makes one

    resources = {"CPU": runtime.ray.cpus_per_engine, "GPU": runtime.ray.gpus_per_engine}
    trainer = DataParallelTrainer(
        run_as_rank,
        train_loop_config={"script": str(script), "root": str(root), "work": str(work)},
        scaling_config=train.ScalingConfig(num_workers=runtime.train.num_processes, resources_per_worker=resources),
        run_config=train.RunConfig(
            name=script.stem, storage_path=str(work / "ray-train"), failure_config=train.FailureConfig(max_failures=runtime.engine.max_restarts)
        ),
    )
    try:
        trainer.fit()
    except train.TrainingFailedError as error:
        raise DraftyardError(f"the training failed on the cluster: {' '.join(str(error).split())[:500]}") from None
    finally:
        ray.shutdown()


def run_as_rank(config: dict[str, Any]) -> None:
    """What a worker of Ray Train does: run the script as the process that the worker's place says. The first worker's node is where all meet."""
    import ray
    from ray import train
    from ray.train.collective import broadcast_from_rank_zero

    context = train.get_context()
    meeting = broadcast_from_rank_zero({"address": ray.util.get_node_ip_address(), "port": free_port()})
    environment = {
        **os.environ,
        "RANK": str(context.get_world_rank()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "MASTER_ADDR": meeting["address"],
        "MASTER_PORT": str(meeting["port"]),
        WORK_DIR_VARIABLE: config["work"],
        # The script ends when this worker does, as it would with a dvc that is gone.
        DVC_VARIABLE: "train",
        WATCHED_VARIABLE: str(os.getpid()),
    }
    environment.pop("OMP_NUM_THREADS", None)  # Ray's; the script's threads are those of runtime.yaml
    code = _run([sys.executable, config["script"]], Path(config["root"]), environment)
    if code:
        raise RuntimeError(f"process {context.get_world_rank()} of the training ended with exit code {code}")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
