"""`python -m trainer verify FOLDER` and the like: run the operation of a folder.

The folder holds `task.json`; `trainyard.protocol.operations` defines it and what is written there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from trainer.errors import LaunchError, RunError
from trainer.operations.operation_folder import write_record
from trainyard.protocol.operations import (
    OUTCOME,
    TASK,
    OperationKind,
    OperationOrder,
    OperationOutcome,
)

logger = logging.getLogger("trainer")


def main(kind: OperationKind, words: list[str]) -> int:
    """Run an operation; 0 when it was done, whatever it found, 1 when it could not be."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder = Path(words[0])
    try:
        outcome = _do(kind, folder)
    except RunError as error:
        outcome = OperationOutcome(outcome="failed", message=error.explained[:4000])
    except Exception as error:
        logger.exception("the operation failed")
        outcome = OperationOutcome(outcome="failed", message=repr(error)[:4000])
    logger.info("%s: %s", outcome.outcome, outcome.message)
    write_record(folder / OUTCOME, outcome)
    return 0 if outcome.outcome == "succeeded" else 1


def _do(kind: OperationKind, folder: Path) -> OperationOutcome:
    try:
        order = OperationOrder.model_validate_json((folder / TASK).read_bytes())
    except (OSError, ValueError) as error:
        raise LaunchError(f"{folder / TASK}: {error}", path=str(folder / TASK)) from error
    if order.task.kind != kind:
        raise LaunchError(f"{folder / TASK} asks to {order.task.kind}, not to {kind}")
    return _command(kind)(order, folder)


def _command(kind: OperationKind) -> Callable[[OperationOrder, Path], OperationOutcome]:
    """Return the function of a kind; each imports what it needs, and only some need torch."""
    if kind == OperationKind.DELETE:
        from trainer.operations.delete import delete_all

        return delete_all
    if kind == OperationKind.EXPORT:
        from trainer.operations.export import export_weights

        return export_weights
    if kind == OperationKind.SAMPLE:
        from trainer.operations.sample import draw

        return draw
    if kind == OperationKind.RECOVER:
        from trainer.operations.recover import recover

        return recover
    from trainer.operations.verify import verify

    return verify
