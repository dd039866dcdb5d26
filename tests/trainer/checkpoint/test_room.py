"""The free space is compared with the checkpoints that are to be kept."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from specs.job import JobSpec
from specs.sections.checkpoint import CheckpointSection
from specs.sections.training import TrainingSection
from tests.trainer.checkpoint.toy import state_at
from trainer.checkpoint.room import check_room, checkpoints_to_come
from trainer.errors import CheckpointError

GIB = 2**30
Usage = namedtuple("Usage", "total used free")


def _spec(steps: int = 1000, **checkpoint: int) -> JobSpec:
    return JobSpec(
        training=TrainingSection(steps=steps),
        checkpoint=CheckpointSection.model_validate(checkpoint),
    )


@pytest.mark.parametrize(
    ("step", "checkpoint", "expected"),
    [
        (0, {"interval_steps": 100}, 10),
        (0, {"interval_steps": 300}, 4),
        (250, {"interval_steps": 100}, 8),
        (0, {"interval_steps": 0}, 1),
        (1000, {"interval_steps": 100}, 0),
        (0, {"interval_steps": 100, "keep_latest_k": 2}, 3),
        (0, {"interval_steps": 100, "keep_latest_k": 20}, 10),
        (0, {"interval_steps": 100, "keep_latest_k": 2, "keep_every_steps": 500}, 5),
    ],
)
def test_checkpoints_that_are_still_to_come(
    step: int, checkpoint: dict[str, int], expected: int
) -> None:
    assert checkpoints_to_come(state_at(step), _spec(**checkpoint)) == expected


def test_a_disk_that_would_be_full_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 * GIB, 60 * GIB, 40 * GIB))
    folder = tmp_path / "step-0"
    check_room(folder, size=4 * GIB, state=state_at(0), spec=_spec())
    with pytest.raises(CheckpointError) as caught:
        check_room(folder, size=5 * GIB, state=state_at(0), spec=_spec())
    text = str(caught.value)
    assert "has 40 GiB free, but 10 more checkpoints of 5 GiB" in text
    assert "50 GiB in all" in text
    assert "save every 125 steps or more (checkpoint.interval_steps)" in text
    assert caught.value.path == str(tmp_path)
    check_room(folder, size=5 * GIB, state=state_at(0), spec=_spec(interval_steps=125))
