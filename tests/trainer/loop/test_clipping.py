"""Clipping on one rank against torch's own; under layouts it is part of test_parallelize."""

import math

import pytest
import torch
from torch import nn

from trainer.loop.clipping import clip_grad_norm
from trainer.loop.optimizer import ShardAdamW


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    found = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 4), (5,), (2, 2), (7,))]
    for parameter in found[:-1]:  # the last one has no gradient
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return found


def optimizer_of(parameters: list[nn.Parameter]) -> ShardAdamW:
    return ShardAdamW(
        [{"params": parameters, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95), eps=1e-8
    )


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_norm_and_gradients_are_those_of_torch(max_norm: float) -> None:
    ours, theirs = parameters(), parameters()
    optimizer = optimizer_of(ours)
    norm = clip_grad_norm(optimizer, max_norm)
    expected = nn.utils.clip_grad_norm_(theirs, max_norm)
    torch.testing.assert_close(norm, expected)
    optimizer.step()
    torch.optim.AdamW(theirs, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0).step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)
        torch.testing.assert_close(a, b)


def test_the_norm_of_gradients_in_bfloat16_is_float32() -> None:
    """A sum of squares in bfloat16 would have three digits."""
    (gradient,) = given = [nn.Parameter(torch.zeros(1001, dtype=torch.bfloat16))]
    gradient.grad = torch.ones_like(gradient)
    optimizer = optimizer_of(given)
    assert clip_grad_norm(optimizer, math.inf).item() == pytest.approx(1001**0.5, rel=1e-6)
    clip_grad_norm(optimizer, 1.0)
    optimizer.step()
    assert gradient.grad.unique().item() == pytest.approx(1001**-0.5, rel=2**-8)


def test_an_infinite_limit_changes_nothing() -> None:
    ours, before = parameters(), parameters()
    optimizer = optimizer_of(ours)
    clip_grad_norm(optimizer, 0.5)
    assert math.isfinite(clip_grad_norm(optimizer, math.inf).item())
    optimizer.step()
    for a, b in zip(ours[:-1], before[:-1], strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.equal(a.grad, b.grad)


def test_a_gradient_that_is_not_finite_shows_in_the_norm() -> None:
    ours = parameters()
    assert ours[1].grad is not None
    ours[1].grad[2] = math.nan
    assert math.isnan(clip_grad_norm(optimizer_of(ours), 1.0).item())


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_updates_as_a_cpu_does(dtype: torch.dtype) -> None:
    here = [nn.Parameter(p.to(dtype)) for p in parameters()]
    there = [nn.Parameter(p.detach().cuda()) for p in here]
    for a, b, drawn in zip(here, there, parameters(), strict=True):
        if drawn.grad is not None:
            a.grad = drawn.grad.to(dtype)
            b.grad = a.grad.cuda()
    for given in (here, there):
        optimizer = optimizer_of(given)
        clip_grad_norm(optimizer, 0.5)
        optimizer.step()
    for a, b in zip(here[:-1], there[:-1], strict=True):
        assert b.grad is not None
        torch.testing.assert_close(b.grad.cpu(), a.grad)
        torch.testing.assert_close(b.cpu(), a)
