"""Recomputation changes memory and repeated work, and no bit of the gradients."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.models.base import Model
from trainer.models.families import build_model
from trainer.models.initial_weights import init_weights
from trainer.models.stateless_rng import sequence_keys
from trainer.parallel.activation_checkpoint import KEPT, checkpoint_activations
from trainer.parallel.compile import compile_blocks
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.sections.parallelism import ActivationCheckpointSection, CompileSection

LAYERS = 10
"""More than the compiler's limit of eight programs per function."""

SPEC: JobSpec = parse_job_spec({"model": {"n_layers": LAYERS, "dropout": 0.1}})


class _Counted(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def _model(mode: Any = "none", backend: Any = None) -> Model:
    model = build_model(SPEC)
    model.to_empty(device="cpu")
    init_weights(model, 0)
    blocks = list(model.layers.values())
    checkpoint_activations(
        blocks, ActivationCheckpointSection(mode=mode, memory_budget=0.3), own_randomness=False
    )
    compile_blocks(
        blocks, CompileSection(enabled=backend is not None, backend=backend or "inductor")
    )
    return model


def _gradients(model: Model) -> dict[str, torch.Tensor]:
    tokens_BT = torch.randint(0, 256, (2, 65), generator=torch.Generator().manual_seed(0))
    keys_B = sequence_keys(0, 1, torch.tensor([3, 4]))
    model(tokens_BT[:, :-1], tokens_BT[:, 1:], keys_B=keys_B).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("mode", "products", "attentions"),
    [("none", 21, 1), ("selective", 24, 1), ("full", 28, 2)],
)
def test_products_and_attentions_of_a_block(mode: str, products: int, attentions: int) -> None:
    counted = _Counted()
    model = _model(mode)
    with counted:
        gradients = _gradients(model)
    of_the_head = 3
    assert counted.calls["mm"] == LAYERS * products + of_the_head
    forwards = [
        n for name, n in counted.calls.items() if "attention" in name and "back" not in name
    ]
    assert forwards == [LAYERS * attentions]
    for name, expected in _gradients(_model()).items():
        assert torch.equal(gradients[name], expected), name


class _Scaled(torch.nn.Module):
    """A product of a tensor that is scaled by its largest element, as float8 casts it."""

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        scale = x_BD.abs().max()
        return (x_BD / scale).sin() @ x_BD.t()


@pytest.mark.parametrize(("mode", "passes"), [("none", 1), ("selective", 1), ("full", 2)])
def test_the_largest_element_is_found_once(mode: Any, passes: int) -> None:
    block = _Scaled()
    section = ActivationCheckpointSection(mode=mode)
    checkpoint_activations([block], section, own_randomness=False)
    with _Counted() as counted:
        block(torch.ones(4, 4, requires_grad=True)).sum().backward()
    assert counted.calls["max"] == passes


def test_attention_in_blocks_is_kept() -> None:
    assert torch._higher_order_ops.flex_attention in KEPT


# The compiler reads the gradient of any tensor, and hides the warning of that in its own way.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("mode", ["none", "selective", "full", "memory_budget"])
def test_compiled_blocks_compute_the_same(mode: str) -> None:
    gradients = _gradients(_model(mode, "aot_eager"))
    for name, expected in _gradients(_model()).items():
        torch.testing.assert_close(gradients[name], expected, msg=name)


def test_names_stay_what_they_are() -> None:
    names = [name for name, _ in _model("selective", "aot_eager").named_parameters()]
    assert names == [name for name, _ in _model().named_parameters()]
