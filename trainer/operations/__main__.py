"""`python -m trainer.operations FOLDER`: runs the operation in a folder.

The folder contains `task.json`; `trainyard.protocol.operations` defines it and the output files.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

from trainer.errors import LaunchError, RunError
from trainer.operations.operation_folder import write_record
from trainer.process import leave
from trainyard.protocol.operations import (
    OUTCOME,
    TASK,
    OperationKind,
    OperationOrder,
    OperationOutcome,
)

logger = logging.getLogger("trainer")


def main(folder: Path) -> int:
    """Run an operation; return 0 if it completed, with any result, and 1 if it failed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        outcome = _run(folder)
    except RunError as error:
        outcome = OperationOutcome(outcome="failed", message=error.explained[:4000])
    except Exception as error:
        logger.exception("the operation failed")
        outcome = OperationOutcome(outcome="failed", message=repr(error)[:4000])
    logger.info("%s: %s", outcome.outcome, outcome.message)
    write_record(folder / OUTCOME, outcome)
    return 0 if outcome.outcome == "succeeded" else 1


def _run(folder: Path) -> OperationOutcome:
    try:
        order = OperationOrder.model_validate_json((folder / TASK).read_bytes())
    except (OSError, ValueError) as error:
        raise LaunchError(f"{folder / TASK}: {error}", path=str(folder / TASK)) from error
    return _command(order.task.kind)(order, folder)


def _command(kind: OperationKind) -> Callable[[OperationOrder, Path], OperationOutcome]:
    """Return the function for a kind; lazy imports let a deletion run without torch."""
    match kind:
        case OperationKind.VERIFY | OperationKind.SCRUB:
            from trainer.operations.verify import verify

            return verify
        case OperationKind.DELETE:
            from trainer.operations.delete import delete_all

            return delete_all
        case OperationKind.EXPORT:
            from trainer.operations.export import export_weights

            return export_weights
        case OperationKind.AUTO_EXPORT:
            from trainer.operations.export_in_place import export_automatically

            return export_automatically
        case OperationKind.SAMPLE:
            from trainer.operations.sample import draw

            return draw
        case OperationKind.RECOVER:
            from trainer.operations.recover import recover

            return recover
        case OperationKind.BUILD:
            raise LaunchError("a build is done by python -m worker.environments", path=None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m trainer.operations")
    parser.add_argument("folder", type=Path, help="folder of the operation; needs task.json")
    leave(main(parser.parse_args().folder))
