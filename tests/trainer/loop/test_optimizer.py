"""The optimizer against torch's own, on plain and sharded parameters, and its moments' types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.optim import Adam, AdamW, Optimizer

from tests.trainer.ranks import run_ranks
from trainer.loop import optimizer as module
from trainer.loop.optimizer import ShardAdamW, build_optimizer, materialize_state
from trainyard.spec.job import JobSpec, parse_job_spec

STEPS = 4


class Toy(nn.Module):
    """An embedding, a layer with a bias, a norm: 5 and 2 rows, so three ranks shard unevenly.

    `frozen` gets no gradient, and `unused` is never part of the loss.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 5)
        self.norm = nn.LayerNorm(5)
        self.output = nn.Linear(5, 2)
        self.unused = nn.Parameter(torch.ones(3, 3))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        hidden: Tensor = self.output(self.norm(self.embedding(tokens_BS)))
        return hidden


def job(**optimizer: Any) -> JobSpec:
    return parse_job_spec({"optimizer": {"lr": 1e-2, **optimizer}})


def built() -> Toy:
    torch.manual_seed(0)
    model = Toy()
    if dist.is_initialized():
        model.frozen = model.unused = None  # type: ignore[assignment]  # FSDP shards all or nothing
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def trained(make: Callable[[Toy], Optimizer], steps: int = STEPS) -> dict[str, Tensor]:
    """Weights and states by name after some steps, this rank's part of them."""
    model = built()
    optimizer = make(model)
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randint(11, (4, 6))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    tensors = {name: local(p.detach()) for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}.{key}"] = local(value)
    return tensors


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def ours(**optimizer: Any) -> Callable[[Toy], Optimizer]:
    return lambda model: build_optimizer(model, job(**optimizer))


def torch_adamw(model: Toy) -> Optimizer:
    section = job().optimizer
    names = dict(model.named_parameters())
    groups = [
        {"params": [p for n, p in names.items() if n in MATRICES], "weight_decay": 0.1},
        {"params": [p for n, p in names.items() if n not in MATRICES], "weight_decay": 0.0},
    ]
    betas = (section.beta1, section.beta2)
    return AdamW(groups, lr=section.lr, betas=betas, eps=section.eps, fused=True)


def torch_adam(model: Toy) -> Optimizer:
    betas = (job().optimizer.beta1, job().optimizer.beta2)
    return Adam(model.parameters(), lr=1e-2, betas=betas, eps=job().optimizer.eps, fused=True)


MATRICES = {"embedding.weight", "output.weight", "unused"}


def check_against_torch() -> None:
    for name, reference in (("adamw", torch_adamw), ("adam", torch_adam)):
        expected, got = trained(reference), trained(ours(name=name))
        # torch makes no state where there is no gradient; ours has it from the start.
        assert got.keys() - expected.keys() <= {f"unused.{key}" for key in STATE}
        for key, value in expected.items():
            assert torch.equal(got[key], value), (name, key)


STATE = ("step", "exp_avg", "exp_avg_sq")


def test_it_is_torchs_own_bit_by_bit() -> None:
    check_against_torch()


@pytest.mark.parametrize("world_size", [2, 3])
def test_it_is_torchs_own_bit_by_bit_when_sharded(world_size: int) -> None:
    run_ranks(world_size, check_against_torch)


def test_decay_goes_to_matrices_and_embeddings_only() -> None:
    model = Toy()
    names = {parameter: name for name, parameter in model.named_parameters()}
    for asked, expected in (("adamw", 0.1), ("adam", 0.0)):
        decay = {
            names[parameter]: group["weight_decay"]
            for group in build_optimizer(model, job(name=asked)).param_groups
            for parameter in group["params"]
        }
        assert decay.keys() == set(names.values()) - {"frozen"}
        assert all(decay[name] == (expected if name in MATRICES else 0.0) for name in decay)


def test_a_part_of_a_name_takes_its_matrices_out_of_the_decay() -> None:
    model = Toy()
    decaying, others = build_optimizer(model, job(no_decay=["embed", "unused"])).param_groups
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert {names[p] for p in decaying["params"]} == {"output.weight"}
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert len(others["params"]) + 1 == len([p for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_the_state_is_there_before_the_first_step_and_changes_nothing(state_dtype: str) -> None:
    def materialized(model: Toy) -> Optimizer:
        optimizer = build_optimizer(model, job(state_dtype=state_dtype))
        materialize_state(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter in parameters:
            state = optimizer.state[parameter]
            assert tuple(state) == STATE
            assert not any(tensor.any() for tensor in state.values())
            assert state["step"].dtype == torch.float32
            assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == optimizer.state_dtype
        return optimizer

    got, expected = trained(materialized), trained(ours(state_dtype=state_dtype))
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[key], expected[key]) for key in got)


def test_parameters_may_lie_on_different_meshes() -> None:
    run_ranks(2, check_meshes)


def check_meshes() -> None:
    weights = {
        "sharded": torch.ones(6, 2),
        "plain": torch.ones(3),
        "on another mesh": torch.ones(4),
    }
    one, other = (
        init_device_mesh("cpu", shape, mesh_dim_names=names)
        for shape, names in (((2,), ("a",)), ((1, 2), ("b", "c")))
    )
    parameters = [
        nn.Parameter(distribute_tensor(weights["sharded"], one, [Shard(0)])),
        nn.Parameter(weights["plain"]),
        nn.Parameter(distribute_tensor(weights["on another mesh"], other["c"], [Shard(0)])),
    ]
    optimizer = ShardAdamW([{"params": parameters}], lr=0.1, betas=(0.9, 0.95), eps=1e-8)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for parameter in parameters:
        assert torch.allclose(local(parameter.detach()), torch.tensor(0.9 - 0.1 * 0.01), atol=1e-4)


# ---- moments in bfloat16 -------------------------------------------------------------------------


def test_a_gradient_that_is_placed_otherwise_than_its_weight_is_refused() -> None:
    run_ranks(2, check_placement)


def check_placement() -> None:
    mesh = init_device_mesh("cpu", (2,))
    weight = nn.Parameter(distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)]))
    optimizer = ShardAdamW(
        [{"params": [weight], "weight_decay": 0.0}], lr=1e-2, betas=(0.9, 0.95), eps=1e-8
    )
    whole = torch.arange(12.0).view(4, 3)
    weight.grad = distribute_tensor(whole, mesh, [Replicate()])
    with pytest.raises(AssertionError, match="not placed as its parameter"):
        optimizer.step()
    assert torch.equal(local(weight.detach()), torch.ones(2, 3))
    weight.grad = distribute_tensor(whole, mesh, [Shard(0)])
    optimizer.step()
    assert not torch.equal(local(weight.detach()), torch.ones(2, 3))


def reference_step(
    weight: Tensor, gradient: Tensor, *, moments: tuple[Tensor, Tensor], step: int
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the update of the paper (Loshchilov and Hutter, 2019, algorithm 2), in float64."""
    lr, beta1, beta2, eps, decay = 1e-2, 0.9, 0.95, 1e-8, 0.1
    first = beta1 * moments[0] + (1 - beta1) * gradient
    second = beta2 * moments[1] + (1 - beta2) * gradient.square()
    unbiased = first / (1 - beta1**step), second / (1 - beta2**step)
    weight = weight - lr * (unbiased[0] / (unbiased[1].sqrt() + eps) + decay * weight)
    return weight, (first.bfloat16().double(), second.bfloat16().double())


@pytest.mark.parametrize("bucket", [1 << 26, 7])
def test_moments_in_bfloat16_are_rounded_once_a_step(
    bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the parameters are cut into buckets."""
    monkeypatch.setattr(module, "BUCKET_ELEMENTS", bucket)
    generator = torch.Generator().manual_seed(1)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    optimizer = ShardAdamW(
        [{"params": parameters, "weight_decay": 0.1}],
        lr=1e-2,
        betas=(0.9, 0.95),
        eps=1e-8,
        state_dtype=torch.bfloat16,
    )
    expected = [p.detach().double() for p in parameters]
    moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in expected]
    for step in range(1, 21):
        for index, parameter in enumerate(parameters):
            # A gradient of other strides than its parameter's.
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = gradient.t().contiguous().t() if gradient.ndim == 2 else gradient
            expected[index], moments[index] = reference_step(
                expected[index], gradient.double(), moments=moments[index], step=step
            )
        optimizer.step()
    for index, parameter in enumerate(parameters):
        state = optimizer.state[parameter]
        assert state["exp_avg"].dtype == torch.bfloat16
        assert torch.allclose(parameter.detach().double(), expected[index], atol=2e-4)
        # Rounding ties apart, the very same moments.
        for moment, exact in zip(
            (state["exp_avg"], state["exp_avg_sq"]), moments[index], strict=True
        ):
            assert torch.allclose(moment.double(), exact, rtol=2**-7, atol=1e-6)


SHAPES = [(5, 3), (8,), (2, 2), (30, 1)]


def test_moments_in_bfloat16_stay_within_the_stated_distance() -> None:
    """2^-8 / (1 - beta) of the exact ones: a moment stops moving when a step is too small."""
    for beta in (0.9, 0.95, 0.99):
        parameter = nn.Parameter(torch.zeros(1000))
        optimizer = ShardAdamW(
            [{"params": [parameter]}],
            lr=1e-3,
            betas=(beta, beta),
            eps=1e-8,
            state_dtype=torch.bfloat16,
        )
        gradient = torch.linspace(0.1, 10, 1000)
        for _ in range(2000):
            parameter.grad = gradient.clone()
            optimizer.step()
        state, limit = optimizer.state[parameter], 2**-8 / (1 - beta)
        for moment, exact in ((state["exp_avg"], gradient), (state["exp_avg_sq"], gradient**2)):
            off = (moment.float() / exact - 1).abs().max().item()
            assert 0.2 * limit < off <= limit, (beta, off, limit)


def check_bfloat16() -> None:
    wide, narrow = trained(ours(), 20), trained(ours(state_dtype="bfloat16"), 20)
    for key, value in narrow.items():
        kind = torch.bfloat16 if "exp_avg" in key else torch.float32
        assert value.dtype == kind, key
        if not key.endswith(STATE):
            # 20 steps of at most lr each; the moments' rounding may change a tenth.
            assert torch.allclose(value, wide[key], atol=0.1 * 20 * 1e-2), key


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_weights_stay_near_those_of_float32_moments(world_size: int) -> None:
    run_ranks(world_size, check_bfloat16)
