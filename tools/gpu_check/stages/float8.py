"""Checks of quantized products: each recipe learns like float32, or the GPU is refused."""

from __future__ import annotations

import torch

from tools.gpu_check.check import Here
from tools.gpu_check.training import alone, compile_section, curve, job
from trainer.errors import LaunchError
from trainyard.prove.figures import Figure, at_least, at_most, equal, largest_difference, reported
from trainyard.spec.job import JobSpec
from trainyard.training.known_devices import LEAST_CAPABILITY

STEPS = 8
OF_EMULATED = 2.0
"""Maximum difference of a loss from float32, as a multiple of the same recipe's difference on a
CPU. Kernels add in another order, and low precision amplifies that from step to step."""


def learns_as_float32(here: Here, recipe: str) -> list[Figure]:
    """Train eight steps, eager and compiled; compare with float32 and with the recipe on a CPU."""
    with alone(here.device) as device:
        if device.type == "cuda" and not _able(recipe):
            return _refused(_spec(here, recipe, compiled=False), device)
        cpu = torch.device("cpu")
        expected = curve(job(here.device), cpu, STEPS)
        emulated = curve(_spec(here, recipe, compiled=False), cpu, STEPS)
        emulated_off = largest_difference(emulated.losses, expected.losses)
        plain = curve(job(here.device, training={"param_dtype": "bfloat16"}), device, STEPS)
        figures = [reported("emulated_loss_off_float32", emulated_off)]
        for compiled in (False, True):
            way = "compiled" if compiled else "eager"
            found = curve(_spec(here, recipe, compiled=compiled), device, STEPS)
            off = largest_difference(found.losses, expected.losses)
            apart = largest_difference(found.losses, plain.losses)
            figures += [
                at_most(f"{way}_loss_off_float32", off, OF_EMULATED * emulated_off),
                # Equal losses would mean that nothing is quantized.
                at_least(f"{way}_loss_off_bfloat16", apart, 1e-7),
                at_most(f"{way}_last_loss_of_first", found.losses[-1] / found.losses[0], 0.95),
            ]
    return figures


def _spec(here: Here, recipe: str, *, compiled: bool) -> JobSpec:
    return job(
        here.device,
        training={"param_dtype": "bfloat16"},
        quantization={"recipe": recipe},
        compile=compile_section(here.device) if compiled else {},
    )


def _able(recipe: str) -> bool:
    number_format = "mxfp8" if recipe == "mxfp8" else "float8"
    return torch.cuda.get_device_capability() >= LEAST_CAPABILITY[number_format]


def _refused(spec: JobSpec, device: torch.device) -> list[Figure]:
    """Return whether training fails with an error that names the field of the recipe."""
    try:
        curve(spec, device, 1)
    except LaunchError as error:
        result = str(error)
    else:
        result = "it trained"
    return [equal("refused_with_the_field", "quantization.recipe=" in result, expected=True)]
