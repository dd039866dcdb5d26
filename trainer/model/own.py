"""Somebody's own model: any module that maps tokens to logits, built by `model.factory`.

Shapes: B sequences, S tokens, V vocabulary.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specs.job import JobSpec
from specs.loss import NO_LABEL
from trainer.data.places import resolve
from trainer.errors import LaunchError
from trainer.model.attention import Positions
from trainer.model.base import Model
from trainer.model.noise import Noise

STD = 0.02


class OwnModel(Model):
    """Gives a module of others the face of ours: a loss, blocks, and values for its buffers.

    Args:
        spec: gives factory, arguments, vocabulary, length and the classes of the blocks.
        roots: path of each named root, for `model.code`.

    Raises:
        LaunchError: the factory is not there, fails, returns no module, or the module has no block
            of a class that the spec names.
    """

    def __init__(self, spec: JobSpec, roots: Mapping[str, str]) -> None:
        super().__init__()
        self._build = _builder(spec, roots)
        self.vocab_size = spec.architecture.vocab_size
        self.net = self._build()
        self.positions = Positions(2, spec.training.seq_len, theta=10_000.0)
        self.tok_embeddings, self.norm, self.output = None, None, None
        self._takes_noise = "noise" in inspect.signature(self.net.forward).parameters
        blocks = _blocks(self.net, spec.model.block_classes)
        # Not registered: each block has its name within the module, and needs no second one.
        object.__setattr__(self, "layers", nn.ModuleDict({str(i): b for i, b in enumerate(blocks)}))

    def forward(
        self,
        tokens_BS: Tensor,
        labels_BS: Tensor | None = None,
        *,
        keys_B: Tensor | None = None,
        segments_BS: Tensor | None = None,
    ) -> Tensor:
        """Return logits [B, S, V], or with labels the sum of their losses, as a `Transformer` does.

        Raises:
            LaunchError: the module returns something else than logits.
        """
        assert segments_BS is None, "an own model is not told of documents"
        options: dict[str, Any] = {}
        if self._takes_noise and keys_B is not None:
            options["noise"] = Noise(keys_B, self.positions.stream[: tokens_BS.shape[1]])
        logits_BSV = self.net(tokens_BS, **options)
        wanted = (*tokens_BS.shape, self.vocab_size)
        if not isinstance(logits_BSV, Tensor) or logits_BSV.shape != wanted:
            found = getattr(logits_BSV, "shape", type(logits_BSV).__name__)
            raise LaunchError(
                f"model.factory: forward must return logits [B, S, V] = {list(wanted)}, got {found}"
            )
        if labels_BS is None:
            return logits_BSV
        return F.cross_entropy(
            logits_BSV.flatten(0, 1).float(),
            labels_BS.flatten(),
            ignore_index=NO_LABEL,
            reduction="sum",
        )

    @property
    def tied(self) -> bool:
        """Whether weights are shared is the module's affair: what no block holds is the root's."""
        return False

    def initial_std(self, _name: str) -> float:
        """Return that of every matrix: 0.02."""
        return STD

    def initial_weights(self, seed: int) -> dict[str, Tensor] | None:
        """Return what the module's own `init_weights(seed)` makes of a whole one on the CPU."""
        if not hasattr(self.net, "init_weights"):
            return None
        whole = self._build()
        whole.init_weights(seed)
        return {f"net.{name}": parameter.detach() for name, parameter in whole.named_parameters()}

    @torch.no_grad()
    def reset_buffers(self) -> None:
        """Copy the buffers of the module as its constructor makes them."""
        self.positions.reset()
        buffers = dict(self.net.named_buffers())
        if buffers:
            for name, buffer in self._build().named_buffers():
                buffers[name].copy_(buffer)


def _builder(spec: JobSpec, roots: Mapping[str, str]) -> Callable[[], Any]:
    """Return a function that builds the module, on whatever device is torch's default then."""
    section = spec.model
    assert section.factory is not None, "the spec names no factory"
    factory = _imported(section.factory, _code(section.code, roots))
    arguments = {
        "vocab_size": spec.architecture.vocab_size,
        "seq_len": spec.training.seq_len,
        **section.arguments,
    }

    def build() -> Any:
        try:
            module = factory(**arguments)
        except Exception as error:
            given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
            raise LaunchError(
                f"model.factory={section.factory!r} failed on ({given}): "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(module, nn.Module):
            raise LaunchError(
                f"model.factory={section.factory!r} returned {type(module).__name__}, "
                "but a torch.nn.Module is needed"
            )
        return module

    return build


def _code(place: str | None, roots: Mapping[str, str]) -> Path | None:
    return None if place is None else resolve(place, f"model.code={place!r}", roots)[1]


def _imported(name: str, code: Path | None) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    if code is not None and str(code) not in sys.path:
        sys.path.insert(0, str(code))
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the code of others raises when it is imported
        where = f" in {code}" if code else ""
        raise LaunchError(
            f"model.factory={name!r} cannot be imported{where}: {type(error).__name__}: {error}"
        ) from error
    return factory


def _blocks(net: nn.Module, classes: tuple[str, ...]) -> list[nn.Module]:
    """Return the outermost modules of the named classes, in order."""
    blocks: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in net.modules():
        if module is not net and type(module).__name__ in classes and module not in inside:
            blocks.append(module)
            inside |= set(module.modules())
    missing = set(classes) - {type(block).__name__ for block in blocks}
    if missing:
        there = sorted({type(module).__name__ for module in net.modules() if module is not net})
        raise LaunchError(
            f"model.block_classes: the model has no {', '.join(sorted(missing))}; "
            f"legal: {', '.join(there)}"
        )
    return blocks
