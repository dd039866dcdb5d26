"""Quantized training: matrix products of linear layers in float8 or MX float8, by torchao.

Weights, gradients and optimizer states stay in high precision, under the names of the unquantized
model. So a checkpoint does not depend on the recipe, and any recipe can resume from it. On a CPU
the products are emulated: operands are rounded to the low precision and multiplied in the high
precision.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.optim import Optimizer

from trainer.errors import LaunchError
from trainer.models.base import Model
from trainer.models.own.own_model import OwnModel
from trainer.models.ties import tied_parameters
from trainer.torch_versions import quiet_torchao
from trainyard.base.problems import unmatched
from trainyard.spec.job import JobSpec
from trainyard.spec.precision import BFLOAT16_ONLY, MULTIPLE, number_format, quantizes
from trainyard.spec.sections.parallelism import QuantizationSection
from trainyard.training.known_devices import LEAST_CAPABILITY


def quantize_linear_layers(
    model: nn.Module, spec: JobSpec, *, device_type: str, shards: int | None
) -> None:
    """Replace linear layers by low-precision ones, in place, before any wrapper is applied.

    `quantization.exclude` and `min_dim` exclude layers. The families' head is no `nn.Linear`, so it
    stays in high precision.

    Args:
        model: whole model, or a part of it.
        spec: has the recipe and the excluded layers.
        device_type: type of the device; on `cpu` the products are emulated.
        shards: number of ranks over which FSDP and TP divide the rows of the weights that FSDP
            gathers from the device; None if it gathers no weights. With `float8_tensorwise`, FSDP
            gathers weights in float8, half the bytes of bfloat16. Weights whose rows do not divide
            evenly are gathered in high precision, because torchao cannot gather padded shards; so
            are tied weights. The other recipes gather all weights in high precision, because they
            scale each row or block of the gathered weight.

    Raises:
        LaunchError: as for `refuse_unable`.
    """
    section = spec.quantization
    if section.recipe == "none":
        return
    if device_type == "cuda":
        refuse_unable(spec, torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    emulate, recipe = device_type == "cpu", section.recipe.removeprefix("float8_")
    ties = tied_parameters(model)

    def chosen(module: nn.Module, name: str, *, gathered: bool | None = None) -> bool:
        assert isinstance(module, nn.Linear)
        even = shards is None or module.out_features % shards == 0
        if gathered is not None and gathered != (even and id(module.weight) not in ties):
            return False
        return quantizes(section, name, module.in_features, module.out_features)

    with quiet_torchao():
        if recipe == "mxfp8":
            _to_mxfp8(emulate=emulate)(model, chosen)
            return
        # The float8 all-gather wraps a weight in a tensor subclass, which would break a tie between
        # names. Such weights are gathered in high precision; their scale is the same.
        for gathered in (True, False):
            convert = _to_float8(recipe, emulate=emulate, gathers=gathered and shards is not None)
            convert(model, partial(chosen, gathered=gathered))


def refuse_uneven_layers(model: Model, spec: JobSpec) -> None:
    """Reject an own model if the recipe does not support the shape of a quantized layer on a rank.

    For the model families, the planner makes the same check.

    Args:
        model: whole model, before it is split.
        spec: has the recipe, the excluded layers, and the axes.

    Raises:
        LaunchError: a layer does not fit; the message names it.
    """
    wanted = number_format(spec)
    if wanted is None or not isinstance(model, OwnModel):
        return
    step, recipe = MULTIPLE[wanted], spec.quantization.recipe
    for name, layer in _linear_layers(model):
        sides = [layer.in_features, layer.out_features]
        if not quantizes(spec.quantization, name, *sides):
            continue
        style = model.tensor_plan.get(name.removeprefix("net."))
        shards = (isinstance(style, RowwiseParallel), isinstance(style, ColwiseParallel))
        parts = [spec.parallelism.tp if split else 1 for split in shards]
        if any(side % (step * part) for side, part in zip(sides, parts, strict=True)):
            inner, outer = (f"{s / part:g}" for s, part in zip(sides, parts, strict=True))
            raise LaunchError(
                f"quantization.recipe={recipe!r} needs multiples of {step}, but {name} is {inner} "
                f"x {outer} on each rank; legal: other widths, or a part of its name in "
                "quantization.exclude"
            )


def refuse_unknown_names(model: Model, spec: JobSpec) -> None:
    """Reject entries in `exclude` that match no layer, except defaults and with recipe `none`.

    Raises:
        LaunchError: an entry matches no layer; the message names these entries and the existing
            layers.
    """
    names = [name for name, _ in _linear_layers(model)]
    section = spec.quantization
    given = [part for part in section.exclude if part not in QuantizationSection().exclude]
    unknown = unmatched(given, names)
    if unknown and section.recipe != "none":
        raise LaunchError(
            f"quantization.exclude={list(section.exclude)}: no linear layer has "
            f"{', '.join(unknown)} in its name; legal: parts of {', '.join(names)}"
        )


def _linear_layers(model: nn.Module) -> list[tuple[str, nn.Linear]]:
    return [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]


def refuse_unable(spec: JobSpec, name: str, capability: tuple[int, int]) -> None:
    """Reject a GPU whose tensor cores do not support the recipe's number format.

    Raises:
        LaunchError: the GPU or the job's `param_dtype` is unsuitable for the recipe; the message
            names the field, the GPU or dtype, and the requirement.
    """
    wanted, recipe = number_format(spec), spec.quantization.recipe
    assert wanted is not None
    least = LEAST_CAPABILITY[wanted]
    if capability < least:
        raise LaunchError(
            f"quantization.recipe={recipe!r} needs compute capability {_dotted(least)} or higher, "
            f"but {name} has {_dotted(capability)}; legal here: "
            f"{'none, or a float8 recipe' if capability >= LEAST_CAPABILITY['float8'] else 'none'}"
        )
    dtype = spec.training.param_dtype
    if recipe in BFLOAT16_ONLY and dtype != "bfloat16":
        raise LaunchError(
            f"training.param_dtype={dtype!r}, but products of {recipe} on a GPU give bfloat16 "
            "only; legal: bfloat16"
        )


def keep_scales_fresh(model: nn.Module, optimizer: Optimizer) -> None:
    """Call `refresh_scales` after each step of the optimizer."""
    optimizer.register_step_post_hook(lambda *_: refresh_scales(model))


def refresh_scales(model: nn.Module) -> None:
    """Compute the scales of all weights that FSDP gathers in float8, by one all-reduce.

    This is a collective, required after every change to weights; it does nothing if there are no
    such weights.
    """
    if "torchao.float8" in sys.modules:
        from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

        precompute_float8_dynamic_scale_for_fsdp(model)


def high_precision(tensor: Tensor) -> Tensor:
    """Return a weight without the subclass of the float8 all-gather; both share the same memory."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    plain: Tensor | None = getattr(local, "_tensor", None)
    if plain is None:
        return tensor
    if not isinstance(tensor, DTensor):
        return plain
    return DTensor.from_local(
        plain,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


Convert = Callable[[nn.Module, Callable[[nn.Module, str], bool]], object]
"""Replaces linear layers in a model. The second argument, a predicate on a module and its name,
selects the layers.
"""


def _to_float8(recipe: str, *, emulate: bool, gathers: bool) -> Convert:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = replace(
        Float8LinearConfig.from_recipe_name(recipe),
        emulate=emulate,
        enable_fsdp_float8_all_gather=gathers and recipe == "tensorwise",
    )
    return lambda model, chosen: convert_to_float8_training(
        model, module_filter_fn=chosen, config=config
    )


def _to_mxfp8(*, emulate: bool) -> Convert:
    from torchao.float8.float8_linear_utils import swap_linear_layers
    from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    multiply = partial(
        _to_mxfp8_then_scaled_mm,
        kernel_preference=KernelPreference.EMULATED if emulate else KernelPreference.AUTO,
        # Scales are rounded up, so that no value overflows its block (NVIDIA's recipe for MXFP8).
        scale_calculation_mode=ScaleCalculationMode.RCEIL,
    )
    return lambda model, chosen: swap_linear_layers(
        model, partial(MXLinear, multiply=multiply), module_filter_fn=chosen
    )


class MXLinear(nn.Linear):
    """A linear layer that multiplies in MX float8, where blocks of 32 values share one scale.

    torchao's own layer wraps its weight in a subclass, which checkpoints would then contain. Here
    the weight stays a plain parameter, and `forward` calls torchao's product itself.
    """

    def __init__(self, linear: nn.Linear, *, multiply: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self._multiply = multiply

    def forward(self, x: Tensor) -> Tensor:
        """Return the product over the last dimension, with the bias if there is one."""
        if isinstance(x, DTensor):
            product: Tensor = self._split(x)
        else:
            product = self._multiply(x, self.weight)
        return product if self.bias is None else product + self.bias

    def _split(self, x: DTensor) -> DTensor:
        """Multiply the shards of this tensor-parallel rank; no block spans two ranks."""
        weight = self.weight
        assert isinstance(weight, DTensor)
        by_columns = weight.placements == (Shard(0),)
        local = x.to_local(grad_placements=[Partial()] if by_columns else None)
        product = self._multiply(local, weight.to_local())
        placement = Shard(product.ndim - 1) if by_columns else Partial()
        return DTensor.from_local(product, x.device_mesh, [placement], run_check=False)


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
