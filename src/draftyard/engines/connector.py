"""vLLM KV connector that writes each prompt's captured hidden states to a file, on a CPU or a GPU."""

from __future__ import annotations

import fcntl
import os
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    PendingSave,
    extract_from_kv_cache,
)


class _Done:
    """Stands for a copy that has already happened (the interface of a CUDA event)."""

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class HiddenStatesConnector(ExampleHiddenStatesConnector):
    """vLLM's example connector, with a plain copy where there is no CUDA stream to copy on.

    On a GPU the parent's asynchronous copy is used as it is. On a CPU the parent fails (pinned memory, CUDA events).
    """

    def _submit_async_write(self, pending: PendingSave) -> None:
        if self._kv_cache is None or self._kv_cache.device.type != "cpu":
            super()._submit_async_write(pending)
            return
        if not self._is_tp_rank_zero:
            return
        blocks = torch.tensor(pending.block_ids, dtype=torch.long)
        offsets = torch.arange(self._block_size, dtype=torch.long)
        slots = (blocks[:, None] * self._block_size + offsets).flatten()  # (blocks * block_size,)
        states = extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids)).clone()  # (T, layers, H)
        os.makedirs(os.path.dirname(pending.filename), exist_ok=True)
        lock = self._lock_fds.pop(pending.req_id, None)
        done = _Done()
        future = self._executor.submit(self._write_tensors, {"hidden_states": states, "token_ids": pending.token_ids.clone()}, done, pending.filename, lock)
        self._req_copy_events[pending.req_id] = done
        self._req_futures[pending.req_id] = future
        future.add_done_callback(partial(self._on_write_done, pending.req_id))


def take_hidden_states(path: str) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Read and remove a written file; None while it is still being written.

    Never waits: the engine submits a request's write only in the step after the request's last, so a caller
    that waited between steps would wait for itself. Returns (hidden_states [T, layers, H], token_ids int64 [T]).
    """
    lock = Path(f"{path}.lock")
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if not os.path.exists(path):
                return None
            data = load_file(path)
    except (BlockingIOError, FileNotFoundError):
        return None
    os.unlink(path)
    lock.unlink()
    return data["hidden_states"], data["token_ids"]
