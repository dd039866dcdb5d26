"""Starts torchtitan's own trainer, or the list of layouts, on a CPU; run by torchtitan's Python.

    python on_cpu.py --module M --config C
    python on_cpu.py layouts --module M --config C --world-size N

torchtitan 0.3.0 requires an accelerator. This module provides what a CPU lacks:

- the name of the device, and empty functions of the device's module;
- empty functions in place of the Triton kernels of one expert parallelism, which none of these
  recipes uses;
- torch's `scaled_dot_product_attention`, by torchtitan's own module for it: the other backends have
  no backward pass on a CPU. It is causal over the whole sequence, also where that packs documents;
- plain operations in its place for gpt-oss, which needs the sums of the softmax;
- products of experts in float32, because bfloat16 takes twenty times as long on a CPU;
- sums of gradients in gloo's form: `set_gradient_divide_factor(1.0)` needs a kind of reduction that
  only NCCL supports;
- no shorter timeouts after the first step, because setting them needs a device with an index.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule


def _nothing(*_args: object, **_kwargs: object) -> None:
    """Do nothing."""


def _kernel(name: str) -> Any:
    if not name.endswith("_kernel"):
        raise AttributeError(name)
    return _nothing


def _sum_gradients(module: FSDPModule, _factor: float) -> None:
    module.set_force_sum_reduction_for_comms(True)
    divide(module, 1.0)


def _grouped_product(rows: torch.Tensor, weights: torch.Tensor, *, offs: torch.Tensor) -> Any:
    """Multiply the rows of each expert, up to its offset, by the expert's weights."""
    sizes = offs.diff(prepend=offs.new_zeros(1)).tolist()
    parts = zip(rows.float().split(sizes), weights.float(), strict=True)
    return torch.cat([part @ weight for part, weight in parts])


products: Any = torch
products._grouped_mm = _grouped_product
divide = FSDPModule.set_gradient_divide_factor
FSDPModule.set_gradient_divide_factor = _sum_gradients  # type: ignore[method-assign,assignment]

device: Any = torch.cpu
device.memory_stats = lambda *_: {}
device.get_device_name = lambda *_: "cpu"
device.get_device_properties = lambda *_: SimpleNamespace(total_memory=2**34)
device.reset_peak_memory_stats = _nothing
device.empty_cache = _nothing
torch._utils._get_available_device_type = lambda: "cpu"

experts: Any = ModuleType("torchtitan.distributed.minimal_async_ep.kernels")
experts.__getattr__ = _kernel
sys.modules[experts.__name__] = experts

attention: Any = importlib.import_module("torchtitan.models.common.attention")


class SummedAttention(attention.ScaledDotProductAttention):  # type: ignore[misc]
    """Causal attention of plain operations, with the logarithm of each sum of a softmax."""

    @dataclass(kw_only=True, slots=True)
    class Config(attention.ScaledDotProductAttention.Config):  # type: ignore[misc]
        """The fields of torchtitan's module."""

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        scale: float,
        out_transform: Any,
        **_options: Any,
    ) -> Any:
        """Return what `out_transform` makes of the output and of the sums."""
        groups = q_BLNH.shape[2] // k_BLNH.shape[2]
        keys, values = (t.repeat_interleave(groups, dim=2) for t in (k_BLNH, v_BLNH))
        scores_BNLM = torch.einsum("blnh,bmnh->bnlm", q_BLNH, keys) * scale
        later = torch.ones(scores_BNLM.shape[-2:], dtype=torch.bool).triu(1)
        scores_BNLM = scores_BNLM.masked_fill(later, -torch.inf)
        out_BLNH = torch.einsum("bnlm,bmnh->blnh", scores_BNLM.softmax(dim=-1), values)
        return out_transform(out_BLNH, scores_BNLM.logsumexp(dim=-1).transpose(1, 2))


for name in ("llama3", "qwen3", "deepseek_v3", "gpt_oss"):
    kind = SummedAttention if name == "gpt_oss" else attention.ScaledDotProductAttention
    model: Any = importlib.import_module(f"torchtitan.models.{name}")
    model.get_attention_config = lambda _backend, kind=kind: kind.Config()

if __name__ == "__main__":
    utils: Any = importlib.import_module("torchtitan.distributed.utils")
    utils.set_pg_timeouts = _nothing
    lists = sys.argv[1:2] == ["layouts"]
    program = "trainyard.adapters.torchtitan" if lists else "torchtitan.train"
    runpy.run_module(program, run_name="__main__")
