"""The free space is compared with the size of the retained checkpoints."""

import re
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.checkpoint.toy import state_at
from trainer.checkpoint.writer.checkpoint_writer import check_room
from trainer.errors import CheckpointError
from trainyard.spec.auto import resolved
from trainyard.spec.checkpoint_rules import most_kept
from trainyard.spec.job import JobSpec
from trainyard.spec.sections.checkpoint import CheckpointSection
from trainyard.spec.sections.training import TrainingSection

GIB = 2**30
Usage = namedtuple("Usage", "total used free")


def _spec(steps: int = 1000, /, **checkpoint: int | str) -> JobSpec:
    spec = JobSpec(
        training=TrainingSection(steps=steps),
        checkpoint=CheckpointSection.model_validate({"keep_latest_k": 0} | checkpoint),
    )
    return resolved(spec, "cpu")


@pytest.mark.parametrize(
    ("step", "checkpoint", "expected"),
    [
        (0, {"interval_steps": 100}, 10),
        (0, {"interval_steps": 300}, 4),
        (250, {"interval_steps": 100}, 8),
        (0, {"interval_steps": 0}, 1),
        (1000, {"interval_steps": 100}, 0),
        (0, {"interval_steps": 100, "keep_latest_k": 2}, 3),
        (0, {"interval_steps": 100, "keep_latest_k": 2, "export": "dcp"}, 3),
        (0, {"interval_steps": 100, "keep_latest_k": 2, "export": "safetensors"}, 4),
        (0, {"interval_steps": 100, "keep_latest_k": 20}, 10),
        (0, {"interval_steps": 100, "keep_latest_k": 2, "keep_best_k": 3}, 6),
        (0, {"interval_steps": 0, "interval_seconds": 600, "keep_latest_k": 2}, 3),
        (998, {"interval_steps": 0, "interval_seconds": 600, "keep_latest_k": 2}, 2),
        (0, {"interval_steps": 0, "interval_seconds": 600}, 1),
        (0, {"interval_steps": 100, "keep_latest_k": 2, "keep_every_steps": 500}, 5),
    ],
)
def test_checkpoints_that_are_still_to_come(
    step: int, checkpoint: dict[str, int | str], expected: int
) -> None:
    assert most_kept(_spec(**checkpoint), step=step) == expected


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
    assert (
        "(checkpoint.keep_latest_k = 0, which keeps all, checkpoint.interval_steps = 100)" in text
    )
    text = str(caught.value.remedy)
    assert text.startswith("Free space, take another checkpoint.root, ")
    assert "set checkpoint.interval_steps to 125 or more" in text
    assert "or set checkpoint.keep_latest_k to 7 or less" in text
    assert caught.value.path == str(tmp_path)
    check_room(folder, size=5 * GIB, state=state_at(0), spec=_spec(interval_steps=125))
    check_room(folder, size=5 * GIB, state=state_at(0), spec=_spec(keep_latest_k=7))


def test_exports_need_room_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 * GIB, 60 * GIB, 40 * GIB))
    spec = _spec(export="safetensors")
    check_room(tmp_path / "s", size=2 * GIB, exported=GIB, state=state_at(0), spec=spec)
    message = "10 more checkpoints of 5 GiB with their exports are to be kept there"
    with pytest.raises(CheckpointError, match=message):
        check_room(tmp_path / "s", size=4 * GIB, exported=GIB, state=state_at(0), spec=spec)


@pytest.mark.parametrize(
    ("checkpoint", "size", "end"),
    [
        ({}, 41, "Free space, or take another checkpoint.root."),
        ({"interval_steps": 0}, 41, "Free space, or take another checkpoint.root."),
        ({"keep_latest_k": 4}, 9, "or set checkpoint.keep_latest_k to 3 or less."),
        (
            {"keep_latest_k": 4, "keep_every_steps": 500},
            9,
            "or set checkpoint.keep_latest_k to 1 or less.",
        ),
    ],
)
def test_a_remedy_is_named_only_where_it_helps(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: dict[str, int],
    size: int,
    end: str,
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 * GIB, 60 * GIB, 40 * GIB))
    with pytest.raises(CheckpointError) as caught:
        check_room(tmp_path / "s", size=size * GIB, state=state_at(0), spec=_spec(**checkpoint))
    assert str(caught.value.remedy).endswith(end)


@pytest.mark.parametrize("export", ["none", "safetensors"])
@pytest.mark.parametrize("step", [0, 1, 250, 333, 990])
@pytest.mark.parametrize("size", [5, 9, 15, 39])
def test_the_remedies_make_it_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, size: int, export: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 * GIB, 60 * GIB, 40 * GIB))
    given: dict[str, Any] = {"size": size * GIB, "state": state_at(step)}
    with pytest.raises(CheckpointError) as caught:
        check_room(tmp_path / "s", spec=_spec(interval_steps=1, export=export), **given)
    named = re.findall(r"set checkpoint\.(\w+) to ([\d,]+) or", str(caught.value.remedy))
    assert named[0][0] == "interval_steps"
    for field, value in named:
        changed = {"interval_steps": 1, "export": export} | {field: int(value.replace(",", ""))}
        check_room(tmp_path / "s", spec=_spec(**changed), **given)
