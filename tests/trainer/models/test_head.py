"""The loss is a float32 sum over the counted tokens, whatever the chunks."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.models import head
from trainer.models.head import FusedLoss, TokenLoss
from trainyard.training import logit_chunks as specs_loss

B, S, D, V = 2, 5, 8, 11


def draw() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x_BSD = torch.randn(B, S, D, generator=generator).requires_grad_()
    weight_VD = torch.randn(V, D, generator=generator).requires_grad_()
    labels_BS = torch.randint(0, V, (B, S), generator=generator)
    labels_BS[0, 1:4] = -100
    return x_BSD, weight_VD, labels_BS


class Kernels:
    """The functions of `trainer.kernels.fused_loss` in torch."""

    def sums_and_label_logits(
        self, logits_CR: Tensor, labels_C: Tensor, first_row: int
    ) -> tuple[Tensor, Tensor]:
        label_logits_C = logits_CR.gather(1, (labels_C - first_row).clamp(min=0)[:, None])[:, 0]
        return logits_CR.logsumexp(1), label_logits_C

    def replace_by_gradient(
        self,
        logits_CR: Tensor,
        labels_C: Tensor,
        *,
        log_sums_C: Tensor,
        first_row: int,
        no_label: int,
    ) -> None:
        counted_C = labels_C != no_label
        logits_CR.sub_(log_sums_C[:, None]).exp_()
        logits_CR[counted_C, labels_C[counted_C] - first_row] -= 1
        logits_CR[~counted_C] = 0


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, 100])
def test_loss_and_gradients_are_those_of_whole_logits(
    tokens: int, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computed by torch, and as on a GPU, by two kernels."""
    kernels: FusedLoss = Kernels()
    monkeypatch.setattr(head, "has_kernels", lambda _: fused)
    monkeypatch.setattr(head, "fused_loss", lambda: kernels)
    monkeypatch.setattr(specs_loss, "LOGITS_PER_CHUNK", tokens * V)
    x_BSD, weight_VD, labels_BS = draw()
    logits_BSV = x_BSD @ weight_VD.T
    expected = F.cross_entropy(logits_BSV.flatten(0, 1), labels_BS.flatten(), reduction="sum")
    (expected / 7).backward()
    whole_x, whole_weight = x_BSD.grad, weight_VD.grad
    x_BSD.grad = weight_VD.grad = None

    loss = TokenLoss()(x_BSD, weight_VD, labels_BS)
    (loss / 7).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(x_BSD.grad, whole_x)
    torch.testing.assert_close(weight_VD.grad, whole_weight)
    with torch.no_grad():
        torch.testing.assert_close(TokenLoss()(x_BSD, weight_VD, labels_BS), expected)


def test_tokens_without_a_label_add_nothing() -> None:
    x_BSD, weight_VD, labels_BS = draw()
    loss = TokenLoss()(x_BSD, weight_VD, torch.full_like(labels_BS, -100))
    loss.backward()
    assert loss.item() == 0
    assert x_BSD.grad is not None
    assert weight_VD.grad is not None
    assert not x_BSD.grad.any()
    assert not weight_VD.grad.any()


def test_it_is_summed_in_float32() -> None:
    x_BSD = torch.zeros(4, 256, 16, dtype=torch.bfloat16, requires_grad=True)
    weight_VD = torch.zeros(320, 16, dtype=torch.bfloat16, requires_grad=True)
    loss = TokenLoss()(x_BSD, weight_VD, torch.zeros(4, 256, dtype=torch.int64))
    loss.backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, torch.tensor(1024 * torch.log(torch.tensor(320.0)).item()))
    assert x_BSD.grad is not None
    assert x_BSD.grad.dtype == torch.bfloat16
