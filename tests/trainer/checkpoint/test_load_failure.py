"""What a failed load proves about its checkpoint: damage, a temporary failure, or nothing."""

from __future__ import annotations

import errno
from copy import copy
from pathlib import Path

import pytest

from trainer.checkpoint.reader.load import _what_failed
from trainer.errors import CheckpointError, MismatchError
from trainer.metrics.run_writer import failure_of
from trainer.storage.io_errors import storage_errors
from trainyard.protocol.attempt import ResumePoint
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.failures import LoadFailure

POINT = ResumePoint(checkpoint_id="j.a1.step-2", path="j/a1/step-2", step=2, metadata_digest="d")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".trainyard-root").write_text("one")
    return tmp_path


def of_system(number: int, verb: str = "read") -> CheckpointError:
    with pytest.raises(CheckpointError) as caught, storage_errors(verb, Path("there")):
        raise OSError(number, "refused")
    return caught.value


@pytest.mark.parametrize("fault", list(CheckpointFault))
def test_proved_damage_is_named(root: Path, fault: CheckpointFault) -> None:
    found = _what_failed(CheckpointError("x", fault=fault), POINT, root)
    assert found == LoadFailure(checkpoint_id="j.a1.step-2", fault=fault)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.ETIMEDOUT])
def test_what_storage_refuses_may_pass(root: Path, number: int) -> None:
    found = _what_failed(of_system(number), POINT, root)
    assert found == LoadFailure(checkpoint_id="j.a1.step-2", fault=None)


def test_what_is_missing_proves_something_only_on_storage_that_is_there(
    root: Path, tmp_path: Path
) -> None:
    gone = of_system(errno.ENOENT)
    assert gone.fault == CheckpointFault.FILE_MISSING
    uncommitted = CheckpointError("x", fault=CheckpointFault.NOT_COMMITTED)
    for error in (gone, uncommitted):
        found = _what_failed(error, POINT, root)
        assert found is not None
        assert found.fault == error.fault
        unmounted = _what_failed(error, POINT, tmp_path / "unmounted")
        assert unmounted == LoadFailure(checkpoint_id="j.a1.step-2", fault=None)
    assert of_system(errno.ENOENT, "write").fault is None


def test_a_checkpoint_that_does_not_fit_says_nothing_of_itself(root: Path) -> None:
    assert _what_failed(MismatchError("x"), POINT, root) is None


def test_it_reaches_the_record_from_every_rank(root: Path) -> None:
    error = CheckpointError("x", fault=CheckpointFault.FILE_SIZE)
    error.load = _what_failed(error, POINT, root)
    # Copied like the pickle for other ranks.
    assert failure_of(copy(error), rank=1, step=0).load == error.load
