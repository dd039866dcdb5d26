"""Context parallelism: ranks share a sequence, and attend to each other's keys.

Both ways to attend are exact, and take the place of `CausalAttention`. Which tokens a rank computes
queries, keys and values of is decided in `trainer.parallel.inputs`.

* `allgather_kv` gathers the keys and values of all ranks ("The Llama 3 Herd of Models", 2024,
  section 3.3.2). They are few where query heads share them, and any number of heads will do.
* `ulysses` (Jacobs et al., DeepSpeed Ulysses, 2023) exchanges tokens for heads and back. A rank
  sends a share of its queries, keys and values that shrinks with the number of ranks, but there can
  be no more ranks than key heads.

Shapes: B sequences, S tokens of a whole sequence, T of them on this rank, H query heads, K key
heads, W head width, N ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.attention.bias import causal_lower_right

from trainer.models.attention import CausalAttention
from trainer.models.base import Model
from trainer.models.documents import Mask, attend_within_documents
from trainer.torch_versions import all_gather_single_autograd
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout


def apply(model: Model, mesh: DeviceMesh, spec: JobSpec, _: Layout) -> None:
    """Let each layer attend with the tokens of all context-parallel ranks; in place."""
    group = mesh["cp"].get_group()
    for layer in model.layers.values():
        attention = layer.get_submodule("attention")
        match spec.parallelism.cp_method:
            case "allgather_kv":
                attention.attend = AllGatherAttention(group, spec.training.seq_len)
            case "ulysses":
                attention.attend = UlyssesAttention(group)


class AllGatherAttention(CausalAttention):
    """Attends to the gathered keys of all ranks with the queries of this one.

    Rank r of N holds chunks r and 2N-1-r of the 2N chunks of each sequence. Each chunk sees the
    keys up to its own end, so that the two of a rank need 2N+1 chunks x chunks of scores, whatever
    the rank.

    Args:
        group: the context-parallel ranks.
        seq_len: tokens of a whole sequence.
    """

    def __init__(self, group: dist.ProcessGroup, seq_len: int) -> None:
        super().__init__()
        self._group = group
        self._ranks = group.size()
        chunk = seq_len // (2 * self._ranks)
        ends = (group.rank() + 1) * chunk, seq_len - group.rank() * chunk
        # The causal mask of queries that stand at the end of their keys; no tensor is kept. Made
        # here, because torch.compile cannot make it.
        self._masks = [(end, causal_lower_right(chunk, end)) for end in ends]

    def forward(
        self, q_BHTW: Tensor, k_BKTW: Tensor, v_BKTW: Tensor, mask: Mask | None = None
    ) -> Tensor:
        """Return the mixed values, shaped as the queries; K divides H."""
        k_BKSW, v_BKSW = self._gather(k_BKTW, v_BKTW)
        if mask is not None:
            return attend_within_documents(q_BHTW, k_BKSW, v_BKSW, mask)
        grouped = q_BHTW.shape[1] != k_BKSW.shape[1]
        mixed = [
            F.scaled_dot_product_attention(
                q, k_BKSW[:, :, :end], v_BKSW[:, :, :end], attn_mask=causal, enable_gqa=grouped
            )
            for q, (end, causal) in zip(q_BHTW.chunk(2, dim=2), self._masks, strict=True)
        ]
        return torch.cat(mixed, dim=2)

    def _gather(self, k_BKTW: Tensor, v_BKTW: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the whole sequences, in order, of shape [B, K, S, W]."""
        mine = torch.stack((k_BKTW, v_BKTW))
        gathered = all_gather_single_autograd(mine, gather_dim=0, group=self._group)
        # Of each rank, in this order: keys and values, B, K, its early and its late chunk.
        early, late = gathered.unflatten(0, (self._ranks, 2)).chunk(2, dim=-2)
        chunks = torch.cat((early, late.flip(0)))
        k_BKSW, v_BKSW = chunks.movedim(0, -3).flatten(-3, -2)
        return k_BKSW, v_BKSW


class UlyssesAttention(CausalAttention):
    """Attends with all tokens and the N-th part of the heads; rank r holds the r-th part of tokens.

    Args:
        group: the context-parallel ranks; their number divides K and H.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self._group = group
        self._ranks = group.size()

    def forward(
        self, q_BHTW: Tensor, k_BKTW: Tensor, v_BKTW: Tensor, mask: Mask | None = None
    ) -> Tensor:
        """Return the mixed values, shaped as the queries; K divides H."""
        # Queries, keys and values go in one exchange: to each rank those heads that it attends
        # with.
        parts = [x.unflatten(1, (self._ranks, -1)) for x in (q_BHTW, k_BKTW, v_BKTW)]
        heads = [part.shape[2] for part in parts]
        received = self._exchange(torch.cat(parts, dim=2).movedim(1, 0))
        q, k, v = received.movedim(0, 2).flatten(2, 3).split(heads, dim=1)
        mixed = super().forward(q, k, v, mask)
        returned = self._exchange(mixed.unflatten(2, (self._ranks, -1)).movedim(2, 0))
        return returned.movedim(0, 1).flatten(1, 2)

    def _exchange(self, parts: Tensor) -> Tensor:
        """Return the parts that all ranks, in order, have for this one, of `parts[rank]`."""
        return all_to_all_single_autograd(parts.contiguous(), None, None, self._group)
