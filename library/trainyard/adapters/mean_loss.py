"""Evaluation loss for Hugging Face's `Trainer`, with the same mean at any world size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from transformers.trainer_pt_utils import find_batch_size


class MeanLoss:
    """The mean loss of an evaluation, over all labels or over all samples.

    The loader of an evaluation repeats samples so that the last batches of all ranks have the same
    size. This class leaves out the repeated samples that `gather_for_metrics` drops.

    Args:
        accelerator: the trainer's accelerator.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._sums = torch.zeros(2, dtype=torch.float64, device=accelerator.device)
        self._size = 0
        self.real = 0
        """Number of samples in the current batch without repetitions."""

    def counted(self, inputs: Any) -> Any:
        """Return a batch without its repeated samples.

        A batch that has only repeated samples stays unchanged, because all ranks must join the
        model's collectives; the loss of such a batch does not count.
        """
        self._size = self.real = find_batch_size(inputs) or 0  # type: ignore[no-untyped-call]
        state = self._accelerator.gradient_state
        if state.end_of_dataloader and state.remainder > 0:
            before = self._accelerator.process_index * self._size
            self.real = min(max(state.remainder - before, 0), self._size)
        return self._cut(inputs) if 0 < self.real < self._size else inputs

    def restored(self, predicted: Any) -> Any:
        """Pad predictions to the size of the whole batch, because ranks must gather equal sizes.

        An output may have several rows per sample. The padding repeats the last rows.
        """
        if isinstance(predicted, Mapping):
            return {name: self.restored(each) for name, each in predicted.items()}
        if isinstance(predicted, tuple | list):
            return type(predicted)(self.restored(each) for each in predicted)
        if not 0 < self.real < self._size:
            return predicted
        if not isinstance(predicted, torch.Tensor) or predicted.ndim == 0:
            return predicted
        rows, rest = divmod(len(predicted), self.real)
        if rest or not rows:
            return predicted
        last = predicted[-rows:]
        return torch.cat([predicted, *[last] * (self._size - self.real)])

    def add(self, loss: torch.Tensor, labels: torch.Tensor | int | None) -> None:
        """Add the loss of a batch.

        Args:
            loss: the trainer's loss. With `labels`, it is the sum of the losses of this rank's
                labels, divided by `labels` and multiplied by the number of ranks. Without `labels`,
                it is the mean over the samples.
            labels: number of labels in the batches of all ranks; None if the trainer does not count
            labels.
        """
        share = self._accelerator.num_processes
        weight = self.real if labels is None else torch.as_tensor(labels).double() / share
        both = torch.stack([loss.detach().double().mean() * weight, torch.as_tensor(weight)])
        if self.real == 0:
            both[0] = 0.0
        self._sums += both.to(self._sums)

    def value(self) -> float | None:
        """Return the mean over all ranks, which must all call this; None if no loss was added."""
        total, weight = self._accelerator.reduce(self._sums, reduction="sum").tolist()
        return total / weight if weight else None

    def _cut(self, value: Any) -> Any:
        """Return the first samples of tensors and sequences of samples, also in mappings."""
        if isinstance(value, Mapping):
            return {name: self._cut(each) for name, each in value.items()}
        if isinstance(value, torch.Tensor) and value.ndim == 0:
            return value
        is_of_samples = isinstance(value, torch.Tensor | tuple | list) and len(value) == self._size
        return value[: self.real] if is_of_samples else value
