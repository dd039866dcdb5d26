"""Samples text from a checkpoint on the CPU, with limits on time and on memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from trainer.data.open_tokenizer import open_tokenizer
from trainer.errors import LaunchError
from trainer.models.families import build_model
from trainer.operations.operation_folder import ProgressWriter, checkpoint_of
from trainer.sample import generate, load_weights
from trainyard.protocol.operations import (
    SAMPLE_SECONDS,
    OperationOrder,
    OperationOutcome,
    SampleTask,
)

MEMORY = Path("/proc/meminfo")


def draw(
    order: OperationOrder, operation: Path, *, clock: Callable[[], float] = time.monotonic
) -> OperationOutcome:
    """Generate the text for the task.

    Raises:
        LaunchError: the task has no sample or no single checkpoint, or the model cannot be built or
            needs too much memory.
        DataError: the tokenizer cannot be opened.
        CheckpointError: the checkpoint is damaged, or the storage reports an error.
    """
    task = order.task.sample
    if task is None:
        raise LaunchError("the task has no `sample`")
    folder, point = checkpoint_of(order)
    tokenizer = open_tokenizer(task.spec, order.roots)
    _check_room(task, order)
    progress = ProgressWriter(operation, total=task.max_tokens)
    progress.begin("loads the weights")
    model = load_weights(task.spec, folder, order.roots, point=point)
    until = clock() + SAMPLE_SECONDS

    def proceed(drawn: int) -> bool:
        progress.advance(min(drawn, 1))
        progress.begin("draws")
        return clock() < until

    result = generate(
        model,
        tokenizer,
        task.prompt,
        tokens=task.max_tokens,
        temperature=task.temperature,
        seed=task.seed,
        proceed=proceed,
    )
    ended = result.ended.value.replace("_", " ")
    return OperationOutcome(
        outcome="succeeded", message=f"{result.tokens} tokens ({ended})", sample=result
    )


def _check_room(task: SampleTask, order: OperationOrder) -> None:
    """Reject weights larger than half of the free memory, because attempts need memory too."""
    model = build_model(task.spec, order.roots)  # on the meta device
    needed = sum(p.numel() * p.element_size() for p in model.parameters())
    lines = MEMORY.read_text(encoding="ascii").splitlines()
    free = next(int(line.split()[1]) * 2**10 for line in lines if line.startswith("MemAvailable"))
    if 2 * needed > free:
        raise LaunchError(
            f"the weights take {needed / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB are free on "
            "this node, of which a sample takes at most half; export the checkpoint and draw "
            "elsewhere"
        )
