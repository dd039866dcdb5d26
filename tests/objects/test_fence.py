"""The fence in a bucket: one object per attempt; the highest counts."""

from __future__ import annotations

import pytest

from tests.trainer.checkpoint.toy import JOB
from trainer.checkpoint.fence import raised_fence, read_fence
from trainer.errors import CheckpointError, OutrunError
from trainer.storage.object_path import ObjectPath
from trainyard.run.checkpoints.checkpoint_names import FENCE


def test_it_only_rises(bucket: ObjectPath) -> None:
    job = bucket / JOB
    assert read_fence(job) == 0
    with raised_fence(job, 2), raised_fence(job, 10):
        assert read_fence(job) == 10
    with pytest.raises(OutrunError, match=r"outrun: .*FENCE belongs to attempt 10"):
        raised_fence(job, 9).__enter__()
    with raised_fence(job, 10):
        pass
    raised = {path.name: path.read_bytes() for path in (job / FENCE).beneath()}
    assert raised == {"2": b"2\n", "10": b"10\n"}


def test_an_object_of_another_name_is_named(bucket: ObjectPath) -> None:
    strange = bucket / JOB / FENCE / "two"
    strange.put(b"2\n")
    with pytest.raises(CheckpointError, match="two holds 'two', no attempt number") as caught:
        read_fence(bucket / JOB)
    assert caught.value.path == str(strange)


@pytest.mark.usefixtures("server")
def test_a_bucket_that_is_not_there_is_named() -> None:
    job = ObjectPath("nowhere") / JOB
    with pytest.raises(CheckpointError, match=r"cannot read s3://nowhere/.*FENCE") as caught:
        read_fence(job)
    assert caught.value.path == str(job / FENCE)
