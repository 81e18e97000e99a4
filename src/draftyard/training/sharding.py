"""Sharding the draft, its gradients and its optimizer over the processes of a training: torch's FSDP2.

Each process keeps its rows of every weight as a DTensor, and so of every gradient and moment. torch gathers a weight when it is used
(torch.distributed.fsdp.fully_shard). Resume points and the checkpoint hold whole tensors: `whole` gathers one, `cut` takes a process's
part of one. A tensor that is not sharded passes through all of these as it is, so that the training loop is one for both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Computation(nn.Module):
    """The root of the sharding: what `forward` is given to compute finds the weights that are read directly (norms, lm_head) gathered."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], Any]) -> Any:
        """`compute()`."""
        return compute()


class Sharding:
    """Shards `model` (an Eagle3DraftModel) over all processes, in place; its parameters become DTensors.

    Every module that is called is a unit of its own: gathered for each call of the forward and of the backward, freed after it.
    All processes must compute the same number of micro-batches.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
        self.units: list[Any] = [fully_shard(unit, mesh=mesh, reshard_after_forward=True) for unit in called_modules(model)]
        model.embed_tokens.set_unshard_in_backward(False)  # frozen
        self.root: Any = fully_shard(Computation(model), mesh=mesh)
        for unit in (*self.units, self.root):
            # A step's loss is a sum over the rows of all processes: its gradient is one too. gloo knows no other sum than the plain one.
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)

    def compute(self, compute: Callable[[], tuple[Tensor, Any]]) -> tuple[Tensor, Any]:
        """Run a forward. `compute` returns (loss, anything); the loss's backward leaves each parameter's gradient, summed over processes."""
        loss, rest = self.root(compute)
        return loss, rest

    @torch.no_grad()
    def compute_gathered(self, compute: Callable[[], Any]) -> Any:
        """Run a computation without gradients while all weights are gathered: many forwards share one gathering.

        The gathering happens here because tensors made inside of torch.inference_mode could not be trained afterwards.
        """

        def gathered() -> Any:
            for unit in self.units:
                unit.unshard()
            return compute()

        self._keep_gathered(True)
        found = self.root(gathered)
        self._keep_gathered(False)
        for unit in (*self.units, self.root):
            unit.reshard()
        return found

    def _keep_gathered(self, keep: bool) -> None:
        for unit in self.units:
            unit.set_reshard_after_forward(not keep, recurse=False)


def called_modules(model: Any) -> list[Any]:
    """The modules that TttForward calls; of all others it reads the weights."""
    found = [model.embed_tokens, model.fc]
    for layer in model.layers:
        attention = layer.self_attn
        found += [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, layer.mlp]
    return found


def own(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor; shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, in host memory. Of a sharded one every process must ask."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu().contiguous()


def cut(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Of a whole tensor, what this process holds if it is sharded as `parameter` is; one of another number of dimensions is not."""
    if not isinstance(parameter, DTensor) or tensor.ndim != parameter.ndim:
        return tensor
    parts = torch.chunk(tensor, parameter.device_mesh.size())
    rank = parameter.device_mesh.get_local_rank()
    return (parts[rank] if rank < len(parts) else tensor[:0]).clone()  # not a view, which would keep all of it


def joined(part: Tensor, parameter: Tensor) -> Tensor:
    """The tensor of which each process gives its `part`, sharded as `parameter` is and on its device; a part of another number of dimensions is whole."""
    if not isinstance(parameter, DTensor) or part.ndim != parameter.ndim:
        return part
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(part.to(parameter.device), mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride())
