"""Tensor parallelism: ranks divide each matrix, including embedding and head.

Shapes: B sequences, S tokens, T = B x S tokens, C tokens of a chunk, D model width, V vocabulary,
R rows of the vocabulary on this rank, N ranks.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._symmetric_memory import enable_symm_mem_for_group
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement

from trainer.errors import LaunchError
from trainer.models.base import Model
from trainer.models.decoder import Block
from trainer.models.head import Head
from trainer.models.own.own_model import OwnModel
from trainer.parallel.own_model import split_by_plan
from trainer.parallel.split_loss import GatheredTokenLoss, SplitTokenLoss
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.parallelism import ParallelismSection


def apply(model: Model, mesh: DeviceMesh, spec: JobSpec, _: Layout) -> None:
    """Split the model's matrices over the mesh's `tp` axis, in place.

    Raises:
        LaunchError: `async_tp` is set without symmetric memory, or an own model cannot be split.
    """
    if isinstance(model, OwnModel):
        split_by_plan(model, mesh, spec.parallelism)
    else:
        split_matrices(model, mesh, spec.parallelism)
    if spec.parallelism.async_tp:
        overlap_communication(mesh)


def split_matrices(model: Model, mesh: DeviceMesh, section: ParallelismSection) -> None:
    """Split the model's matrices over the mesh's `tp` axis, in place.

    The first matrices of attention and feed-forward are split by columns and the second ones by
    rows, so each rank has its own heads and hidden features (Shoeybi et al., Megatron-LM, 2019).
    The residual stream in between is split along the sequence (Korthikanti et al., Reducing
    Activation Recomputation, 2022); with `sequence_parallel=false` it is replicated.

    Afterwards every parameter is a DTensor on the tensor-parallel mesh; norms are replicated.
    """
    tp = mesh["tp"]
    stream: Placement = Shard(1) if section.sequence_parallel else Replicate()
    if model.tok_embeddings is not None:
        style = RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
        parallelize_module(model.tok_embeddings, tp, style)
        # While its collective is pending, the output is an AsyncCollectiveTensor, a subclass that
        # the backward pass of a compiled block does not accept. `clone` waits and returns a plain
        # tensor.
        model.tok_embeddings.register_forward_hook(lambda _module, _ids, x_BSD: x_BSD.clone())
    for block in model.layers.values():
        parallelize_module(block, tp, _block_plan(block, stream))
    if model.norm is not None:
        parallelize_module(model.norm, tp, _norm(stream, use_local_output=True))
    if model.output is not None:
        parallelize_module(model.output, tp, _SplitHead(stream, section.loss_parallel))
    assert all(isinstance(p, DTensor) for p in model.parameters()), "a parameter is not in the plan"


def overlap_communication(mesh: DeviceMesh) -> None:
    """Let torch.compile overlap tensor-parallel communication with matrix products.

    Raises:
        LaunchError: the ranks have no symmetric memory.
    """
    if mesh.device_type != "cuda":
        raise LaunchError(
            "parallelism.async_tp=true needs symmetric memory, which CUDA devices have; "
            f"these ranks run on {mesh.device_type!r}: set async_tp=false"
        )
    with warnings.catch_warnings():
        # torch deprecates this call, but the compiler pass still requires a registered group.
        warnings.simplefilter("ignore", FutureWarning)
        enable_symm_mem_for_group(mesh.get_group("tp").group_name)
    torch._inductor.config._micro_pipeline_tp = True


def _block_plan(block: nn.Module, stream: Placement) -> dict[str, ParallelStyle]:
    """Return the split of each module in a block, by name."""
    assert isinstance(block, Block)
    plan: dict[str, ParallelStyle] = {
        "attention_norm": _norm(stream),
        "attention": PrepareModuleInput(
            # Inputs: stream, cosines, sines, mask. One all-gather of the stream serves wq, wk and
            # wv.
            input_layouts=(stream, None, None, None),
            desired_input_layouts=(Replicate(), None, None, None),
        ),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=stream),
        "feed_forward_norm": _norm(stream),
        "feed_forward": PrepareModuleInput(
            input_layouts=(stream,), desired_input_layouts=(Replicate(),)
        ),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w3": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=stream),
    }
    for name, module in block.attention.named_children():
        # Other modules with weights, such as Qwen3's q_norm, act on each head separately. If an
        # input is declared as sharded along any dimension except the last, DTensor sums their
        # gradients over ranks.
        if f"attention.{name}" not in plan and any(True for _ in module.parameters()):
            plan[f"attention.{name}"] = SequenceParallel(sequence_dim=1, use_local_output=True)
    return plan


def _norm(stream: Placement, *, use_local_output: bool = False) -> ParallelStyle:
    if isinstance(stream, Shard):
        return SequenceParallel(use_local_output=use_local_output)
    return _Replicated(use_local_output=use_local_output)


class _Replicated(ParallelStyle):
    """A module whose weights and input are replicated."""

    def __init__(self, *, use_local_output: bool) -> None:
        self._use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(
            module,
            device_mesh,
            None,
            self._wrap,
            self._unwrap,  # type: ignore[arg-type]  # declared without a result, which is used
        )

    def _wrap(self, _module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
        return DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False)

    def _unwrap(self, _module: nn.Module, output: DTensor, _mesh: DeviceMesh) -> Tensor:
        return output.to_local() if self._use_local_output else output


class _SplitHead(ParallelStyle):
    """A head split by the vocabulary's rows; a tied head uses the rows of the embedding."""

    def __init__(self, stream: Placement, loss_parallel: bool) -> None:
        self._stream = stream
        self._loss = SplitTokenLoss if loss_parallel else GatheredTokenLoss

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, Head)
        if module.weight is not None:
            rows = distribute_tensor(module.weight, device_mesh, [Shard(0)], src_data_rank=None)
            module.weight = nn.Parameter(rows)
        module.token_loss = self._loss(self._stream, device_mesh)
        return module
