"""The loss of an evaluation by Hugging Face's `Trainer`: the same mean at any world size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from transformers.trainer_pt_utils import find_batch_size


class MeanLoss:
    """The mean of the losses of an evaluation over its labels, or over its samples.

    The loader of an evaluation repeats samples where the last batches of the ranks would not have
    the same size. `gather_for_metrics` drops what was predicted for them, and so does this.

    Args:
        accelerator: of the trainer.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._sums = torch.zeros(2, dtype=torch.float64, device=accelerator.device)
        self._size = 0
        self.real = 0
        """Samples of the present batch that are no repetitions."""

    def counted(self, inputs: Any) -> Any:
        """Return a batch without its repeated samples.

        A batch of nothing else stays as it is, and its loss does not count: all ranks join the
        collectives of the model.
        """
        self._size = self.real = find_batch_size(inputs) or 0  # type: ignore[no-untyped-call]
        state = self._accelerator.gradient_state
        if state.end_of_dataloader and state.remainder > 0:
            before = self._accelerator.process_index * self._size
            self.real = min(max(state.remainder - before, 0), self._size)
        return self._cut(inputs) if 0 < self.real < self._size else inputs

    def restored(self, predicted: Any) -> Any:
        """Return what was predicted in the size of the whole batch: ranks gather equal sizes.

        An output may have several rows a sample. The rows that are missing repeat the last ones.
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
            loss: the trainer's: the mean over the labels of all ranks' batches, times the number of
                ranks, of those of this rank; without `labels` the mean over the samples.
            labels: how many labels all ranks' batches have; None where the trainer counts none.
        """
        share = self._accelerator.num_processes
        weight = self.real if labels is None else torch.as_tensor(labels).double() / share
        both = torch.stack([loss.detach().double().mean() * weight, torch.as_tensor(weight)])
        if self.real == 0:
            both[0] = 0.0
        self._sums += both.to(self._sums)

    def value(self) -> float | None:
        """Return the mean over all ranks, which all call it; None where no loss was added."""
        total, weight = self._accelerator.reduce(self._sums, reduction="sum").tolist()
        return total / weight if weight else None

    def _cut(self, value: Any) -> Any:
        """Return the part of the first samples, in tensors, sequences and what holds them."""
        if isinstance(value, Mapping):
            return {name: self._cut(each) for name, each in value.items()}
        if isinstance(value, torch.Tensor) and value.ndim == 0:
            return value
        is_of_samples = isinstance(value, torch.Tensor | tuple | list) and len(value) == self._size
        return value[: self.real] if is_of_samples else value
