"""Starts torchtitan's own trainer on a CPU; run by its Python, which has none of our packages.

torchtitan 0.3.0 requires an accelerator. This module provides what a CPU lacks:

- the name of the device, and empty functions of the device's module;
- empty functions in place of the Triton kernels of mixtures of experts, which a Llama does not use;
- torch's `scaled_dot_product_attention`, by torchtitan's own module for it: FlexAttention has no
  backward pass on a CPU. It is causal over the whole sequence, also where that packs documents;
- sums of gradients in gloo's form: `set_gradient_divide_factor(1.0)` needs a kind of reduction that
  only NCCL supports;
- no shorter timeouts after the first step, because setting them needs a device with an index.
"""

from __future__ import annotations

import importlib
import runpy
import sys
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
llama: Any = importlib.import_module("torchtitan.models.llama3")
llama.get_attention_config = lambda _backend: attention.ScaledDotProductAttention.Config()

if __name__ == "__main__":
    utils: Any = importlib.import_module("torchtitan.distributed.utils")
    utils.set_pg_timeouts = _nothing
    runpy.run_module("torchtitan.train", run_name="__main__")
