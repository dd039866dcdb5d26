"""The training loss as a sum over tokens.

Shapes: B sequences, S tokens, V vocabulary.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def token_loss_sum(logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    """Return the sum of the cross entropies of all tokens, a float32 scalar in nats.

    Labels of -100 do not count. The caller divides by the valid tokens of the *global* batch, which
    makes loss and gradients independent of how the batch is dealt to ranks.
    """
    return F.cross_entropy(logits_BSV.flatten(0, 1).float(), labels_BS.flatten(), reduction="sum")
