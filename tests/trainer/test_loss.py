"""The loss is a float32 sum over the tokens that count."""

import torch

from trainer.loss import token_loss_sum


def test_the_sum_is_that_of_minus_log_probabilities() -> None:
    generator = torch.Generator().manual_seed(0)
    logits_BSV = torch.randn(2, 5, 11, generator=generator)
    labels_BS = torch.randint(0, 11, (2, 5), generator=generator)
    picked = logits_BSV.log_softmax(-1).gather(-1, labels_BS[..., None]).squeeze(-1)
    torch.testing.assert_close(token_loss_sum(logits_BSV, labels_BS), -picked.sum())

    labels_BS[0, 1:4] = -100
    picked[0, 1:4] = 0
    torch.testing.assert_close(token_loss_sum(logits_BSV, labels_BS), -picked.sum())


def test_it_is_summed_in_float32() -> None:
    logits_BSV = torch.zeros(4, 256, 320, dtype=torch.bfloat16)
    loss = token_loss_sum(logits_BSV, torch.zeros(4, 256, dtype=torch.int64))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, torch.tensor(1024 * torch.log(torch.tensor(320.0)).item()))
