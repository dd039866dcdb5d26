"""Context parallelism: the ranks divide each sequence by tokens.

Both methods compute exact attention and replace `CausalAttention`. `trainer.parallel.inputs`
assigns tokens to ranks.

* `allgather_kv` gathers the keys and values of all ranks ("The Llama 3 Herd of Models", 2024,
  section 3.3.2). Grouped-query attention keeps keys and values small, and any number of heads is
  legal.
* `ulysses` (Jacobs et al., DeepSpeed Ulysses, 2023) exchanges tokens for heads and back. The
  traffic per rank decreases with the number of ranks, which must not exceed the number of key
  heads.

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
    """Replace each layer's attention by the attention for `parallelism.cp_method`, in place."""
    group = mesh["cp"].get_group()
    for layer in model.layers.values():
        attention = layer.get_submodule("attention")
        match spec.parallelism.cp_method:
            case "allgather_kv":
                attention.attend = AllGatherAttention(group, spec.training.seq_len)
            case "ulysses":
                attention.attend = UlyssesAttention(group)


class AllGatherAttention(CausalAttention):
    """Attention of this rank's queries to the gathered keys of all ranks.

    Rank r of N holds the chunks r and 2N-1-r of the 2N chunks of each sequence. A chunk attends to
    the keys up to its own end, so the two chunks of any rank together compute (r+1) + (2N-r) = 2N+1
    blocks of scores. So the load is balanced under the causal mask.

    Args:
        group: group of the context-parallel ranks.
        seq_len: number of tokens in a whole sequence.
    """

    def __init__(self, group: dist.ProcessGroup, seq_len: int) -> None:
        super().__init__()
        self._group = group
        self._ranks = group.size()
        chunk = seq_len // (2 * self._ranks)
        ends = (group.rank() + 1) * chunk, seq_len - group.rank() * chunk
        # The causal mask for queries that are aligned with the end of their keys; it holds no
        # tensor. It is created here because torch.compile cannot trace its constructor.
        self._masks = [(end, causal_lower_right(chunk, end)) for end in ends]

    def forward(
        self, q_BHTW: Tensor, k_BKTW: Tensor, v_BKTW: Tensor, mask: Mask | None = None
    ) -> Tensor:
        """Return the attention output in the shape of the queries; K must divide H."""
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
        """Return the whole sequences' keys and values, in order, with shape [B, K, S, W]."""
        mine = torch.stack((k_BKTW, v_BKTW))
        gathered = all_gather_single_autograd(mine, gather_dim=0, group=self._group)
        # Shape [N, 2 (keys, values), B, K, early chunk + late chunk, W]. Early chunks are in the
        # order of the ranks, late chunks in reverse order.
        early, late = gathered.unflatten(0, (self._ranks, 2)).chunk(2, dim=-2)
        chunks = torch.cat((early, late.flip(0)))
        k_BKSW, v_BKSW = chunks.movedim(0, -3).flatten(-3, -2)
        return k_BKSW, v_BKSW


class UlyssesAttention(CausalAttention):
    """Attention over all tokens with 1/N of the heads; rank r holds the r-th part of the tokens.

    Args:
        group: group of the context-parallel ranks; their number must divide K and H.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self._group = group
        self._ranks = group.size()

    def forward(
        self, q_BHTW: Tensor, k_BKTW: Tensor, v_BKTW: Tensor, mask: Mask | None = None
    ) -> Tensor:
        """Return the attention output in the shape of the queries; K must divide H."""
        # One all-to-all transfers queries, keys and values, so that each rank receives its heads.
        parts = [x.unflatten(1, (self._ranks, -1)) for x in (q_BHTW, k_BKTW, v_BKTW)]
        heads = [part.shape[2] for part in parts]
        received = self._exchange(torch.cat(parts, dim=2).movedim(1, 0))
        q, k, v = received.movedim(0, 2).flatten(2, 3).split(heads, dim=1)
        mixed = super().forward(q, k, v, mask)
        returned = self._exchange(mixed.unflatten(2, (self._ranks, -1)).movedim(2, 0))
        return returned.movedim(0, 1).flatten(1, 2)

    def _exchange(self, parts: Tensor) -> Tensor:
        """Send `parts[r]` to rank r; return the received parts in the order of the ranks."""
        return all_to_all_single_autograd(parts.contiguous(), None, None, self._group)
