"""The loss of an evaluation by Hugging Face's `Trainer`: the same mean at any world size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator

UNCOUNTED = -100
"""The label that the trainer does not count."""


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
        self._size = self._real = 0

    def counted(self, inputs: Any) -> Any:
        """Return a batch without the samples that are repeated.

        A batch of nothing else stays, with labels that do not count, or with the weight 0: all
        ranks join the collectives of the model.
        """
        sizes = [len(value) for value in _values(inputs) if isinstance(value, torch.Tensor)]
        self._size = self._real = sizes[0] if sizes else 0
        state = self._accelerator.gradient_state
        if state.end_of_dataloader and state.remainder > 0:
            before = self._accelerator.process_index * self._size
            self._real = min(max(state.remainder - before, 0), self._size)
        if self._real == self._size:
            return inputs
        if self._real > 0:
            return {name: self._cut(value) for name, value in inputs.items()}
        labels = inputs.get("labels")
        if isinstance(labels, torch.Tensor) and not labels.is_floating_point():
            return {**inputs, "labels": torch.full_like(labels, UNCOUNTED)}
        return inputs

    def restored(self, predicted: Any) -> Any:
        """Return what was predicted in the size of the whole batch; the rest repeats the last."""
        if isinstance(predicted, tuple | list):
            return type(predicted)(self.restored(each) for each in predicted)
        if not isinstance(predicted, torch.Tensor) or predicted.ndim == 0:
            return predicted
        missing = self._size - len(predicted)
        if missing <= 0 or len(predicted) != self._real:
            return predicted
        return torch.cat([predicted, predicted[-1:].expand(missing, *predicted.shape[1:])])

    def add(self, loss: torch.Tensor, labels: torch.Tensor | int | None) -> None:
        """Add the loss of a batch.

        Args:
            loss: the trainer's: the mean over the labels of all ranks' batches, times the number of
                ranks, of those of this rank; without `labels` the mean over the samples.
            labels: how many labels all ranks' batches have; None where the trainer counts none.
        """
        if labels is None:
            weight = torch.tensor(float(self._real))
        else:
            weight = torch.as_tensor(labels).double() / self._accelerator.num_processes
        weight = weight.to(self._sums)
        weighed = torch.where(weight > 0, loss.detach().double().mean() * weight, 0.0)
        self._sums += torch.stack([weighed, weight])

    def value(self) -> float:
        """Return the mean over all ranks, which all call it."""
        total, weight = self._accelerator.reduce(self._sums, reduction="sum").tolist()
        return total / weight if weight else float("nan")

    def _cut(self, value: Any) -> Any:
        is_of_samples = isinstance(value, torch.Tensor) and len(value) == self._size
        return value[: self._real] if is_of_samples else value


def _values(inputs: Any) -> list[Any]:
    return list(inputs.values()) if isinstance(inputs, Mapping) else []
