"""Restarts in event files: the import equals TensorBoard's view."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.event_files import event, framed, session_start
from tests.library.client.imports.read_runs import points, runs


def written(folder: Path, *sessions: bytes) -> Path:
    """Write a file for each session."""
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(sessions):
        (folder / f"events.out.tfevents.{number}").write_bytes(content)
    return folder


def scalars(steps: range, value: float, *, name: str = "loss") -> bytes:
    return b"".join(event(step, **{name: value}) for step in steps)


VERSION = framed(b"\x09" + struct.pack("<d", 1.7e9) + b"\x1a\x0dbrain.Event:2")


def test_points_from_the_purged_step_on_are_dropped(tmp_path: Path) -> None:
    first = VERSION + scalars(range(10, 151, 10), 1.0) + scalars(range(50, 151, 50), 3.0, name="lr")
    second = VERSION + session_start(100) + scalars(range(105, 206, 10), 2.0)
    (run,) = runs("tensorboard", written(tmp_path / "run", first, second))
    before = [(step, 1.0) for step in range(10, 100, 10)]
    assert points(run, "loss") == before + [(step, 2.0) for step in range(105, 206, 10)]
    assert points(run, "lr") == [(50, 3.0)], "of every series of the folder"
    assert run.points == len(run.series["loss"]) + 1
    assert any("restart" in note for note in run.notes)


def test_a_restart_within_one_file_and_a_second_one(tmp_path: Path) -> None:
    content = scalars(range(1, 11), 1.0)
    content += session_start(5) + scalars(range(5, 8), 2.0)
    content += session_start(6) + scalars(range(7, 9), 3.0)
    (run,) = runs("tensorboard", written(tmp_path / "run", content))
    assert points(run, "loss") == [
        *((step, 1.0) for step in range(1, 5)),
        (5, 2.0),
        (7, 3.0),
        (8, 3.0),
    ]


def test_a_first_session_and_one_before_all_points_drop_what_they_should(tmp_path: Path) -> None:
    begun = written(tmp_path / "begun", session_start(0) + scalars(range(3), 1.0))
    assert len(runs("tensorboard", begun)[0].series["loss"]) == 3
    again = written(tmp_path / "again", scalars(range(3), 1.0), session_start(0))
    assert runs("tensorboard", again)[0].points == 0


def test_a_folder_of_its_own_is_not_purged(tmp_path: Path) -> None:
    written(tmp_path, scalars(range(10), 1.0), session_start(2))
    written(tmp_path / "eval", scalars(range(10), 1.0))
    by_name = {run.name: run.points for run in runs("tensorboard", tmp_path)}
    assert by_name == {tmp_path.name: 2, "eval": 10}


def test_without_a_session_a_series_drops_what_its_next_point_goes_back_over(
    tmp_path: Path,
) -> None:
    first = scalars(range(10, 151, 10), 1.0) + scalars(range(0, 160, 10), 1.0, name="lr")
    second = scalars(range(105, 206, 10), 2.0)
    (run,) = runs("tensorboard", written(tmp_path / "run", VERSION + first, VERSION + second))
    before = [(step, 1.0) for step in range(10, 101, 10)]
    assert points(run, "loss") == before + [(step, 2.0) for step in range(105, 206, 10)]
    assert len(run.series["lr"]) == 16


def test_points_without_steps_are_still_numbered(tmp_path: Path) -> None:
    content = b"".join(event(0, loss=float(value)) for value in range(4))
    (run,) = runs("tensorboard", written(tmp_path / "run", content))
    assert points(run, "loss") == [(step, float(step)) for step in range(4)]
