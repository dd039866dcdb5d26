"""Errors that all ranks share: what fails on one rank is raised on every one, so none hangs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from trainer.errors import CheckpointError, RunError

T = TypeVar("T")

logger = logging.getLogger(__name__)


def on_every_rank(group: dist.ProcessGroup, action: Callable[[], T]) -> list[T]:
    """Run `action` on each rank of a CPU group and return what each returned, by rank.

    Raises:
        RunError: it failed on a rank; the same error, naming the lowest such rank, on every rank.
    """
    rank = dist.get_rank(group)
    answers: list[tuple[T | None, RunError | None]] = [(None, None)] * dist.get_world_size(group)
    dist.all_gather_object(answers, mine := _try(action), group=group)
    answers[rank] = mine  # the original, with its cause and traceback
    failures = {r: error for r, (_, error) in enumerate(answers) if error is not None}
    if failures:
        raise _first(failures)
    return [value for value, _ in answers]  # type: ignore[misc]


def on_rank_0(group: dist.ProcessGroup, action: Callable[[], T]) -> T:
    """Run `action` on rank 0 of a CPU group and return its result on every rank.

    Raises:
        RunError: it failed; the same error on every rank.
    """
    leads = dist.get_rank(group) == 0
    answer = [_try(action) if leads else (None, None)]
    mine = answer[0]
    dist.broadcast_object_list(answer, group=group, group_src=0)
    value, error = mine if leads else answer[0]
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def shared_error(error: CheckpointException, path: str) -> RunError:
    """Return what DCP's own exception, which every rank gets, stands for.

    DCP's exception is a `BaseException`: `except Exception` would miss it.
    """
    return _first({rank: _as_run_error(cause, path) for rank, (cause, _) in error.failures.items()})


def _try(action: Callable[[], T]) -> tuple[T | None, RunError | None]:
    try:
        return action(), None
    except RunError as error:
        return None, error
    except Exception as error:
        logger.exception("unexpected failure while checkpointing")
        return None, _as_run_error(error)


def _as_run_error(error: BaseException, path: str | None = None) -> RunError:
    if isinstance(error, RunError):
        return error
    found = CheckpointError(f"{type(error).__name__}: {error}", path=path)
    found.__cause__ = error
    return found


def _first(failures: Mapping[int, RunError]) -> RunError:
    """Return the failure that stands for all: of the lowest rank, a passing one last."""
    rank = min(failures, key=lambda rank: (getattr(failures[rank], "transient", False), rank))
    error = failures[rank]
    named = type(error)(f"rank {rank}: {error}", path=error.path)
    named.__dict__.update(vars(error))  # what the type adds, such as `transient`
    named.__cause__ = error
    return named
