"""Which tokens of each sequence a rank works on: the one place that says so, for all axes.

Shapes: S tokens of a sequence that a rank holds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.models.base import Model
from trainer.parallel.mesh import Place
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout


def take_tokens(model: Model, spec: JobSpec, layout: Layout, place: Place) -> None:
    """Tell a model which tokens it is given, and which of them its residual stream holds."""
    attended_S = attended_tokens(spec, layout, place)
    exchanged = spec.parallelism.cp_method == "ulysses"
    model.positions.take(
        attended_S=attended_S,
        stream_S=stream_tokens(attended_S, spec, layout, place),
        queries_S=torch.arange(spec.training.seq_len, device="cpu") if exchanged else attended_S,
    )


def attended_tokens(spec: JobSpec, layout: Layout, place: Place) -> Tensor:
    """Return the tokens whose queries, keys and values this rank computes, int64 on the host.

    Tensor-parallel ranks have the same ones. Context-parallel ranks share them out. With
    `allgather_kv` rank r of n has chunks r and 2n-1-r of 2n: an early one, which attends to little,
    and a late one, so that all have as much to do. With `ulysses` it has the r-th of n parts:
    there, each rank attends with all tokens, but with some heads only.
    """
    tokens_S = torch.arange(spec.training.seq_len, device="cpu")
    if spec.parallelism.cp_method == "ulysses" or layout.cp == 1:
        return tokens_S.chunk(layout.cp)[place.cp]
    chunks = tokens_S.chunk(2 * layout.cp)
    return torch.cat((chunks[place.cp], chunks[-1 - place.cp]))


def stream_tokens(attended_S: Tensor, spec: JobSpec, layout: Layout, place: Place) -> Tensor:
    """Return those of the attended tokens that this rank's residual stream holds.

    With sequence parallelism the tensor-parallel ranks share them out, in order.
    """
    parts = layout.tp if spec.parallelism.sequence_parallel else 1
    return attended_S.chunk(parts)[place.tp if parts > 1 else 0]
