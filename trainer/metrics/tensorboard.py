"""Metrics as TensorBoard files."""

from __future__ import annotations

from pathlib import Path


class TensorBoard:
    """Writes the values of logged steps below a folder; global rank 0 has one."""

    def __init__(self, folder: Path) -> None:
        # Lazy: the import takes a second, and `training.tensorboard` is off by default.
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def write(self, step: int, values: dict[str, float]) -> None:
        """Write the values of a step and flush: a killed run closes no file."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
