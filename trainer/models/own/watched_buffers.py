"""Watches the buffers of a module for changes by the forward pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor, nn

Versions = Mapping[str, tuple[Tensor | None, int]]
"""Buffer and number of its in-place changes, by name. Forward may also replace the buffer by
another one.
"""


class WatchedBuffers:
    """The current buffers of a module, or of some of its submodules."""

    def __init__(self, module: nn.Module, *, within: Collection[nn.Module] | None = None) -> None:
        """Watch the buffers of the modules `within`; by default, the buffers in checkpoints.

        A checkpoint holds no buffer that is None or has `persistent=False`.
        """
        self._owners = {
            f"{prefix}.{key}" if prefix else key: (owner, key)
            for prefix, owner in module.named_modules()
            if within is None or owner in within
            for key, buffer in owner._buffers.items()
            if within is not None
            or (buffer is not None and key not in owner._non_persistent_buffers_set)
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return the existing buffers by name."""
        return {name: each for name, (each, _) in self.versions().items() if each is not None}

    def versions(self) -> Versions:
        """Return the buffers, each with the number of changes to it."""
        found = {name: owner._buffers[key] for name, (owner, key) in self._owners.items()}
        return {name: (each, 0 if each is None else each._version) for name, each in found.items()}

    def changed(self, before: Versions) -> list[str]:
        """Return the names of buffers that changed since `before`; empty if `before` is empty."""
        now = self.versions() if before else {}
        return [
            name
            for name, (buffer, version) in before.items()
            if now[name][0] is not buffer or now[name][1] != version
        ]
