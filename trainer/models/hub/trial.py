"""A forward pass of a hub model on the meta device, which shows how its blocks relate tokens.

The attention functions of the pass compute nothing; they record their calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.utils._python_dispatch import TorchDispatchMode

COUNTED = "trainyard_counted"
"""Name of the attention function at transformers that records its calls."""
TOKENS = 16
"""Number of tokens of the sequence; all counts are linear in it."""


class AttentionCalls:
    """The modules that attend in a forward pass, their widths, and what is wrong with them."""

    def __init__(self) -> None:
        self.modules: set[nn.Module] = set()
        self.masks: set[int] = set()
        """Addresses of the storages of the masks that the pass has built."""
        self.problems: list[str] = []
        self.full = 0
        self.sliding = 0
        self.window: int | None = None

    def problem(self, blocks: Collection[nn.Module]) -> str | None:
        """Return a reason why documents or later tokens would be visible; None if there is none."""
        without = (block for block in blocks if self.modules.isdisjoint(block.modules()))
        found = [
            f"{type(block).__name__} does not attend through AttentionInterface"
            for block in without
        ]
        found = found if blocks else ["no block is published in _no_split_modules"]
        return next(iter([*found, *self.problems]), None)

    def add(self, module: nn.Module, width: int, window: int | None) -> None:
        """Add a call; of several windows, the largest counts."""
        self.modules.add(module)
        if window is None:
            self.full += width
            return
        self.sliding += width
        self.window = max(window, self.window or 0)

    def check(self, module: nn.Module, mask: Tensor | None) -> None:
        """Record a problem if a module sees later tokens, or attends with another mask."""
        name = type(module).__name__
        if getattr(module, "is_causal", True) is False:
            self.problems.append(f"{name} attends to later tokens (is_causal=false)")
        if mask is not None and mask.untyped_storage()._cdata not in self.masks:
            self.problems.append(f"{name} makes a mask of its own")


_CALLS: ContextVar[AttentionCalls] = ContextVar("calls")


def attend_on_meta(causal: Any) -> AttentionCalls:
    """Run a model, whose tensors are on the meta device; return the calls of attention."""
    _register()
    causal.set_attn_implementation(COUNTED)
    for module in causal.modules():
        # Tables of other types read the largest position, a value.
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, dict):  # by type of layer
            module.rope_type = dict.fromkeys(kinds, "default")
        elif kinds is not None:
            module.rope_type = "default"
    calls = AttentionCalls()
    token = _CALLS.set(calls)
    try:
        ids = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
        causal.base_model(input_ids=ids, attention_mask=ids.bool(), use_cache=False)
    finally:
        _CALLS.reset(token)
    return calls


def find_problem(causal: Any, blocks: Collection[nn.Module]) -> str | None:
    """Return a reason why a model cannot train exactly, from a pass in training; None if it can.

    Args:
        causal: a model of transformers that nothing else uses; it is moved to the meta device.
        blocks: the model's blocks.
    """
    operations = _Operations()
    causal.to(device="meta").train()
    with operations:
        calls = attend_on_meta(causal)
    return calls.problem(blocks) or next(operations.problems(), None)


class _Operations(TorchDispatchMode):
    """Records the operations that a layout cannot repeat, or that relate neighbouring tokens."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._random: dict[str, None] = {}
        self._mixing: dict[str, None] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._random[str(func)] = None
        if func is torch.ops.aten.convolution.default:
            self._mixing[str(func)] = None
        return func(*args, **(kwargs or {}))

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the recorded operations."""
        for name in self._random:
            yield f"training draws random numbers by {name} outside of nn.Dropout"
        for name in self._mixing:
            yield f"{name} relates neighbouring tokens, also of other documents"


class _FusedAttention(torch.autograd.Function):
    """Saves what a fused kernel saves for backward: queries, keys, values and the output."""

    @staticmethod
    def forward(ctx: FunctionCtx, *tensors: Tensor) -> Tensor:
        """Return an output [B, heads, S, width of a value]; its values are undefined."""
        query, _, value = tensors
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        ctx.save_for_backward(*tensors, output)
        return output


@cache
def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(COUNTED, _attend)
    AttentionMaskInterface.register(COUNTED, _mask)


def _attend(module: nn.Module, *tensors: Any, **options: Any) -> tuple[Tensor, None]:
    query, key, value, *rest = tensors
    calls = _CALLS.get()
    calls.check(module, options.get("attention_mask", rest[0] if rest else None))
    width = query.shape[1] * (key.shape[-1] + value.shape[-1]) // 2
    calls.add(module, width, options.get("sliding_window"))
    fused: Any = _FusedAttention  # its `apply` has no types
    output: Tensor = fused.apply(query, key, value)
    return output.transpose(1, 2).contiguous(), None


def _mask(*, q_length: int, kv_length: int, **options: Any) -> Tensor:
    calls = _CALLS.get()
    pattern = options.get("mask_function")
    if pattern is not None and _sees_later_tokens(pattern):
        calls.problems.append("its mask shows later tokens")
    mask = torch.empty(1, 1, q_length, kv_length, device="meta")
    calls.masks.add(mask.untyped_storage()._cdata)
    return mask


def _sees_later_tokens(pattern: Callable[..., Any]) -> bool:
    zero, one = torch.tensor(0), torch.tensor(1)
    try:
        return bool(pattern(zero, zero, zero, one))
    except (NotImplementedError, RuntimeError):  # chunks read tensors of the pass, without values
        return False
