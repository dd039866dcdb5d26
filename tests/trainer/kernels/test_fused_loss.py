"""The kernels of a GPU compute the loss and the gradients of the plain version."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.data.batches import NO_LABEL
from trainer.models.head import TokenLoss
from trainyard.training import logit_chunks

C, D = 37, 64
V = 10_007
"""More than two blocks of a kernel, and not a multiple of one."""


def draw(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x_BSD = torch.randn(1, C, D, generator=generator)
    weight_VD = torch.randn(V, D, generator=generator)
    labels_BS = torch.randint(0, V, (1, C), generator=generator)
    labels_BS[0, 0], labels_BS[0, 1] = 0, V - 1
    labels_BS[0, 5:9] = NO_LABEL
    x_BSD, weight_VD = (t.cuda().to(dtype).requires_grad_() for t in (x_BSD, weight_VD))
    return x_BSD, weight_VD, labels_BS.cuda()


@pytest.mark.cuda
@pytest.mark.parametrize("tokens", [10, C])
@pytest.mark.parametrize(
    ("dtype", "off"), [(torch.float32, 1e-5), (torch.bfloat16, 2**-7)], ids=["float32", "bfloat16"]
)
def test_loss_and_gradients_are_those_of_whole_logits(
    dtype: torch.dtype, off: float, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logit_chunks, "FUSED_LOGITS_PER_CHUNK", tokens * V)
    x_BSD, weight_VD, labels_BS = draw(dtype)
    whole_x, whole_weight = (t.detach().double().requires_grad_() for t in (x_BSD, weight_VD))
    # The product is rounded to its type, as in any model that computes in it.
    logits_BSV = (whole_x @ whole_weight.T).to(dtype).double()
    expected = F.cross_entropy(logits_BSV.flatten(0, 1), labels_BS.flatten(), reduction="sum")
    (expected / 8).backward()

    loss = TokenLoss()(x_BSD, weight_VD, labels_BS)
    (loss / 8).backward()
    torch.testing.assert_close(loss.double(), expected, rtol=off, atol=0)
    for mine, whole in ((x_BSD.grad, whole_x.grad), (weight_VD.grad, whole_weight.grad)):
        assert mine is not None
        assert whole is not None
        assert mine.dtype == dtype
        assert (mine.double() - whole).norm() <= off * whole.norm()
    with torch.no_grad():
        torch.testing.assert_close(TokenLoss()(x_BSD, weight_VD, labels_BS), loss)


@pytest.mark.cuda
def test_rows_of_ranks_give_the_whole_gradient() -> None:
    from trainer.kernels.fused_loss import replace_by_gradient, sums_and_label_logits

    generator = torch.Generator().manual_seed(1)
    logits_CV = torch.randn(C, V, generator=generator).cuda() * 8
    labels_C = torch.randint(0, V, (C,), generator=generator).cuda()
    labels_C[3] = NO_LABEL
    cut = 6_001
    parts = [(0, logits_CV[:, :cut]), (cut, logits_CV[:, cut:])]
    found = [sums_and_label_logits(part, labels_C, first) for first, part in parts]
    log_sums_C = torch.stack([sums for sums, _ in found]).logsumexp(0)
    label_logits_C = torch.stack([logits for _, logits in found]).amax(0)
    torch.testing.assert_close(log_sums_C, logits_CV.logsumexp(-1))
    counted = labels_C != NO_LABEL
    picked = logits_CV.gather(1, labels_C.clamp(min=0)[:, None])[:, 0]
    assert torch.equal(label_logits_C[counted], picked[counted])
    expected = logits_CV.softmax(-1)
    expected[torch.arange(C).cuda(), labels_C.clamp(min=0)] -= 1
    expected[3] = 0
    for first, part in parts:
        replace_by_gradient(
            part, labels_C, log_sums_C=log_sums_C, first_row=first, no_label=NO_LABEL
        )
    torch.testing.assert_close(logits_CV, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.cuda
def test_a_logit_that_is_no_number_shows_in_the_loss() -> None:
    x_BSD, weight_VD, labels_BS = draw(torch.float32)
    with torch.no_grad():
        weight_VD[V // 2, 0] = torch.nan
    assert TokenLoss()(x_BSD, weight_VD, labels_BS).isnan()


@pytest.mark.cuda
@pytest.mark.parametrize("label", [V, V + 7, -1])
def test_a_label_that_is_no_token_shows_in_the_loss(label: int) -> None:
    x_BSD, weight_VD, labels_BS = draw(torch.float32)
    labels_BS[0, 4] = label
    assert TokenLoss()(x_BSD, weight_VD, labels_BS).isinf()


@pytest.mark.cuda
def test_labels_may_lie_apart_in_memory() -> None:
    x_BSD, weight_VD, labels_BS = draw(torch.float32)
    apart_BS = torch.stack([labels_BS, torch.zeros_like(labels_BS)], dim=2)[:, :, 0]
    expected = TokenLoss()(x_BSD, weight_VD, labels_BS)
    torch.testing.assert_close(TokenLoss()(x_BSD, weight_VD, apart_BS), expected)
