"""Buffers that checkpoints hold, and what forward does to them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

Versions = Mapping[str, tuple[Tensor, int]]
"""Buffers, which forward may replace, and how often each was changed, by name."""


class SavedBuffers:
    """The buffers of a module that checkpoints hold: none with `persistent=False`."""

    def __init__(self, module: nn.Module) -> None:
        self._owners = {
            f"{prefix}.{key}" if prefix else key: (owner, key)
            for prefix, owner in module.named_modules()
            for key, buffer in owner._buffers.items()
            if buffer is not None and key not in owner._non_persistent_buffers_set
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return the buffers, as they are now, by name."""
        found = {name: owner._buffers[key] for name, (owner, key) in self._owners.items()}
        return {name: buffer for name, buffer in found.items() if buffer is not None}

    def versions(self) -> Versions:
        """Return the buffers, and how often each was changed."""
        return {name: (buffer, buffer._version) for name, buffer in self.tensors().items()}

    def changed(self, before: Versions) -> list[str]:
        """Return the names of the buffers that are not as `before`."""
        now = self.versions()
        return [
            name
            for name, (buffer, version) in before.items()
            if name not in now or now[name][0] is not buffer or now[name][1] != version
        ]
