"""When a failed save is retried."""

from __future__ import annotations

import errno

import pytest

from trainer.checkpoint.pending_save import PendingSave
from trainer.checkpoint.save_retry import BACKOFF, SaveRetry
from trainer.errors import CheckpointError
from trainer.storage.io_errors import storage_errors
from trainer.storage.root import StoragePath
from trainyard.protocol.manifest import DataState, SaveFailed, TrainState


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def _described(retry: SaveRetry) -> SaveFailed:
    state = TrainState(step=1, tokens=0, data=DataState(dataset_digest="d" * 32))
    save = PendingSave(state, kind="interval")
    return retry.describe(save, OSError("why"), saved_step=0, step=1)


def test_pauses_double_up_to_the_longest_and_the_last_try_comes_when_the_time_is_up() -> None:
    clock = _Clock()
    retry = SaveRetry(3600.0, clock=clock)
    pauses = []
    while retry.failed():
        began = clock.now
        while not retry.due:
            clock.now += 1.0
        pauses.append(clock.now - began)
    assert pauses[:4] == [BACKOFF.first * 2**n for n in range(4)]
    assert max(pauses) == BACKOFF.longest
    assert clock.now == 1000.0 + 3600.0
    failed = _described(retry)
    assert failed.tries == len(pauses) + 1
    assert (failed.give_up_at - failed.failing_since).total_seconds() == pytest.approx(
        3600.0, abs=0.1
    )


def test_a_success_forgets_the_failures() -> None:
    clock = _Clock()
    retry = SaveRetry(60.0, clock=clock)
    assert retry.failed()
    clock.now += 59.0
    retry.succeeded()
    assert not retry.due
    assert retry.failed()
    failed = _described(retry)
    assert failed.tries == 1
    assert (failed.next_try_at - failed.failing_since).total_seconds() == pytest.approx(
        5.0, abs=0.1
    )


def test_with_no_time_the_first_failure_is_the_last() -> None:
    assert not SaveRetry(0.0).failed()


@pytest.mark.parametrize(
    ("number", "passes"),
    [
        (errno.ENOSPC, True),
        (errno.EROFS, True),
        (errno.EIO, True),
        (errno.EREMOTEIO, True),  # 5xx of a bucket
        (errno.EACCES, False),
        (errno.EFBIG, False),
        (errno.ENOTDIR, False),
        (errno.EPROTO, False),  # 4xx of a bucket
    ],
)
def test_which_errors_of_storage_may_pass(
    number: int, tmp_path: StoragePath, *, passes: bool
) -> None:
    with pytest.raises(CheckpointError) as caught, storage_errors("write", tmp_path):
        raise OSError(number, "why")
    assert caught.value.transient == passes
