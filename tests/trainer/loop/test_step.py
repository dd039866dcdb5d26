"""Clipping on one rank against torch's own; under layouts it is part of test_parallelize."""

import math

import pytest
import torch
from torch import nn

from trainer.loop.step import clip_grad_norm


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    found = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 4), (5,), (2, 2), (7,))]
    for parameter in found[:-1]:  # the last one has no gradient
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return found


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_norm_and_gradients_are_those_of_torch(max_norm: float) -> None:
    ours, theirs = parameters(), parameters()
    norm = clip_grad_norm(ours, max_norm)
    expected = nn.utils.clip_grad_norm_(theirs, max_norm)
    torch.testing.assert_close(norm, expected)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_the_norm_of_gradients_in_bfloat16_is_float32() -> None:
    """A sum of squares in bfloat16 would have three digits."""
    (gradient,) = given = [nn.Parameter(torch.zeros(1001, dtype=torch.bfloat16))]
    gradient.grad = torch.ones_like(gradient)
    assert clip_grad_norm(given, math.inf).item() == pytest.approx(1001**0.5, rel=1e-6)
    clip_grad_norm(given, 1.0)
    assert gradient.grad.unique().item() == pytest.approx(1001**-0.5, rel=2**-8)


def test_an_infinite_limit_changes_nothing() -> None:
    ours, before = parameters(), parameters()
    assert math.isfinite(clip_grad_norm(ours, math.inf).item())
    for a, b in zip(ours[:-1], before[:-1], strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.equal(a.grad, b.grad)


def test_a_gradient_that_is_not_finite_shows_in_the_norm() -> None:
    ours = parameters()
    assert ours[1].grad is not None
    ours[1].grad[2] = math.nan
    assert math.isnan(clip_grad_norm(ours, 1.0).item())
