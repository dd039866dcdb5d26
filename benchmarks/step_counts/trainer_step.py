"""Counts a step of our own trainer as one rank of many, with a GPU's kernels for the loss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from numpy.typing import NDArray

from benchmarks.one_rank import fake_step
from benchmarks.step_counts.counter import StepCounter
from trainer.models import head
from trainer.parallel import split_loss
from trainer.parallel.inputs import InputMaker
from trainyard.spec.job import parse_job_spec


def count(document: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of a step of a job and its operations, on rank 0."""
    counter = StepCounter()

    def on_device(_: InputMaker, array: NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        counter.count_copy_to_device(tensor)
        return tensor

    with (
        mock.patch.object(head, "has_kernels", return_value=True),
        mock.patch.object(head, "fused_loss", return_value=_kernels(counter)),
        mock.patch.object(split_loss, "fused_loss", return_value=_kernels(counter)),
        fake_step(parse_job_spec(document), 0) as step,
    ):
        step(1)  # it computes the shardings
        counter.counts.clear()
        counter.operations.clear()
        with counter, mock.patch.object(InputMaker, "_on_device", on_device):
            step(2)
    return {"counts": dict(counter.counts), "operations": dict(counter.operations)}


def _kernels(counter: StepCounter) -> Any:
    """Return a stand-in for `trainer.kernels.fused_loss` that counts as one operation."""

    def sums_and_label_logits(
        logits_CR: torch.Tensor, labels_C: torch.Tensor, first_row: int
    ) -> tuple[torch.Tensor, ...]:
        del labels_C, first_row
        results = tuple(logits_CR.new_empty(len(logits_CR), dtype=torch.float32) for _ in range(2))
        counter.count_operation("sums_and_label_logits", [logits_CR], [*results])
        return results

    def replace_by_gradient(
        logits_CR: torch.Tensor,
        labels_C: torch.Tensor,
        *,
        log_sums_C: torch.Tensor,
        first_row: int,
        no_label: int,
    ) -> None:
        del labels_C, log_sums_C, first_row, no_label
        # Reads and writes the logits.
        counter.count_operation("replace_by_gradient", [logits_CR], [logits_CR.view_as(logits_CR)])

    return SimpleNamespace(
        sums_and_label_logits=sums_and_label_logits, replace_by_gradient=replace_by_gradient
    )
