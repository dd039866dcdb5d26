"""Dropout of hub models by keyed masks, which are equal on every layout.

Shapes: B sequences, S tokens of a sequence, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from trainer.errors import LaunchError
from trainer.models.stateless_rng import Noise
from trainyard.spec.job import JobSpec


class NoiseSource:
    """Holds the noise of the current forward pass for all dropout modules of a model."""

    noise: Noise | None = None


class KeyedDropout(nn.Module):
    """`nn.Dropout` with a mask that depends on the sequence, and on the module's name.

    A second call in the same block gets another mask. If the backward pass runs a block again, the
    block counts its calls from the start, so the masks are the same.
    """

    def __init__(self, p: float, name: str, *, source: NoiseSource) -> None:
        super().__init__()
        self.p, self.name, self.calls = p, name, 0
        self._source = source

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return the input after dropout; unchanged without noise, as in evaluation.

        Raises:
            LaunchError: the input has other dimensions than sequences, tokens and features.
        """
        noise = self._source.noise
        if noise is None or not self.training:
            return x_BSD
        if x_BSD.ndim != 3:
            raise LaunchError(
                f"model.hugging_face: dropout {self.name} with probability {self.p} has an input "
                f"with {x_BSD.ndim} dimensions instead of [B, S, D]; legal: probability 0"
            )
        site = self.name if self.calls == 0 else f"{self.name}:{self.calls}"
        self.calls += 1
        return noise.dropout(x_BSD, self.p, site)


def use_keyed_dropout(model: nn.Module, blocks: Iterable[nn.Module]) -> NoiseSource:
    """Put a `KeyedDropout` in place of each active `nn.Dropout`; return their source of noise."""
    source = NoiseSource()
    for name, module in [*model.named_modules()]:
        if isinstance(module, nn.Dropout) and module.p > 0:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, KeyedDropout(module.p, name, source=source))
    for block in blocks:
        if any(dropouts_of(block)):
            # No hook, because a recomputation calls only `forward`.
            block.forward = partial(_run_block, block, block.forward)
    return source


def _run_block(block: nn.Module, forward: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    restart(block)
    return forward(*inputs, **options)


def dropouts_of(model: nn.Module) -> Iterator[KeyedDropout]:
    """Yield the keyed dropout modules of a model."""
    yield from (module for module in model.modules() if isinstance(module, KeyedDropout))


def restart(model: nn.Module) -> None:
    """Let each dropout module count its calls from the start."""
    for dropout in dropouts_of(model):
        dropout.calls = 0


def rates(config: Any) -> dict[str, float]:
    """Return the positive dropout probabilities of a config, by field."""
    values = {name: value for name, value in vars(config).items() if _is_rate(name)}
    return {name: value for name, value in values.items() if isinstance(value, float) and value > 0}


def _is_rate(name: str) -> bool:
    if name.startswith(("classifier_", "summary_")):  # rates of heads for other tasks
        return False
    return "dropout" in name or name.endswith(("pdrop", "dropout_prob"))


def check_dropout(model: nn.Module, spec: JobSpec) -> None:
    """Reject dropout if the layout or a setting would change the masks.

    Raises:
        LaunchError: a dropout module has a positive probability, and the job has tensor
            parallelism, a compiled model, or a pipeline.
    """
    found = next(dropouts_of(model), None)
    if found is None:
        return
    axes = spec.parallelism
    given = {
        f"parallelism.tp={axes.tp}": axes.tp > 1,
        f"parallelism.pp={axes.pp}": axes.pp > 1,
        "compile.enabled=true": spec.compile.enabled is True,
    }
    for setting, applies in given.items():
        if applies:
            raise LaunchError(
                f"model.hugging_face: dropout {found.name} has probability {found.p}, which "
                f"{setting} does not support; legal: probability 0 in config.json, or "
                f"{setting.partition('=')[0]} at its default"
            )
