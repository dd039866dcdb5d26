"""`kill -9` at each point of a save: no partial save counts, and the curve continues exactly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.points import Moment, dying_at
from tests.trainer.ranks import RankError, run_ranks
from tests.trainer.runs import JOB, Attempt, Meddling, SmallJob, train_rank
from trainer.checkpoint.manifest import check_contents, read_manifest
from trainer.checkpoint.save_folder import Point
from trainer.checkpoint.writer import hashed_file
from trainer.errors import CheckpointError
from trainyard.protocol.manifest import DCP_METADATA, INDEX, Manifest
from trainyard.run.checkpoints.checkpoint_names import COMMITTED, FENCE, MANIFEST, checkpoint_path
from trainyard.spec.layout import Layout

EVERY = 2  # steps between saves
STEPS = 14
DATA = "__{rank}_0.distcp"

EVERY_RANK = [
    Moment(Point.BEGUN),
    Moment(Point.PLANNED),
    Moment(Point.STAGED),
    Moment(Point.FILE_MADE, DATA),
    Moment(Point.PIECE_WRITTEN, DATA, nth=3),
    Moment(Point.FILE_SYNCED, DATA),
    Moment(Point.PART_WRITTEN),
]
RANK_0 = [
    Moment(Point.FENCED, FENCE),
    Moment(Point.FOLDER_MADE),
    Moment(Point.FILE_MADE, INDEX),
    Moment(Point.FILE_SYNCED, INDEX),
    Moment(Point.FILE_MADE, DCP_METADATA),
    Moment(Point.FILE_SYNCED, DCP_METADATA),
    Moment(Point.PARTS_KNOWN),
    Moment(Point.REPLACING, MANIFEST),
    Moment(Point.NAMED, MANIFEST),
    Moment(Point.FENCED, FENCE, nth=2),
    Moment(Point.REPLACING, COMMITTED),
]
RANK_0_AFTER_THE_MARKER = [Moment(Point.NAMED, COMMITTED), Moment(Point.COMMITTED)]
EVERY_RANK_AFTER_THE_MARKER = [Moment(Point.REPORTED)]


@pytest.mark.parametrize(
    ("mode", "world_size", "victim"),
    [
        ("disabled", 1, 0),
        ("async", 2, 1),
        pytest.param("async", 1, 0, marks=pytest.mark.slow),
        pytest.param("async", 2, 0, marks=pytest.mark.slow),
        pytest.param("disabled", 2, 0, marks=pytest.mark.slow),
        pytest.param("disabled", 2, 1, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(400)
def test_a_run_that_is_killed_at_each_point_of_a_save_is_the_same_run(
    tmp_path: Path, mode: str, world_size: int, victim: int
) -> None:
    layout = Layout(dp_shard=world_size)
    sections: dict[str, dict[str, Any]] = {
        "training": {"steps": STEPS},
        "checkpoint": {"interval_steps": EVERY, "async_mode": mode, "preflight": False},
    }
    whole = SmallJob(tmp_path / "whole").changed(tmp_path / "whole", **sections).launch(1, layout)

    job = SmallJob(tmp_path).changed(tmp_path, **sections)
    attempts = [job.launch(1, layout, Meddling(stop_after=1))]
    before = [*EVERY_RANK, *(RANK_0 if victim == 0 else [])]
    after = [*(RANK_0_AFTER_THE_MARKER if victim == 0 else []), *EVERY_RANK_AFTER_THE_MARKER]
    newest = attempts[0].outcome.step
    for number, moment in enumerate([*before, *after], start=2):
        resume = _newest(job)
        assert resume.train_state.step == newest
        attempts.append(
            _kill(job, number, layout=layout, resume=resume, victim=victim, moment=moment)
        )
        newest += EVERY * (moment in after)
        _check_storage(job, number=number, newest=newest, died_at=moment)
    attempts.append(job.launch(len(attempts) + 1, layout, resume=_newest(job)))

    assert attempts[-1].outcome.step == STEPS
    assert [path.name for path in job.storage.rglob("*.part")] == []
    for attempt in attempts:
        assert attempt.digests.items() <= whole.digests.items()
        for name in ("train/loss", "train/grad_norm", "train/lr", "train/tokens"):
            assert attempt.values(name).items() <= whole.values(name).items()
    assert {step for attempt in attempts for step in attempt.lines} == set(whole.lines)


def _kill(
    job: SmallJob, number: int, *, layout: Layout, resume: Manifest, victim: int, moment: Moment
) -> Attempt:
    run = job.prepare(number, layout, resume=resume)
    with pytest.raises(RankError):
        run_ranks(layout.world_size, _train_and_die, str(run), victim, moment, initialize=False)
    assert (run / "died").exists(), f"it never got to {moment}"
    return Attempt(run)


def _train_and_die(run: str, victim: int, moment: Moment) -> str:
    rank = int(os.environ["RANK"])
    hashed_file.PIECE = 65_536  # several pieces even of a small file
    if rank != victim:
        return train_rank(run, Meddling())
    moment = Moment(moment.point, moment.name.format(rank=rank), moment.nth)
    with dying_at(moment, witness=Path(run) / "died"):
        return train_rank(run, Meddling())


def _check_storage(job: SmallJob, *, number: int, newest: int, died_at: Moment) -> None:
    """Check that only whole checkpoints count, older ones are unchanged, older leftovers gone."""
    committed = job.committed().values()
    assert {manifest.train_state.step for manifest in committed} == {
        *range(EVERY, newest + 1, EVERY)
    }, died_at
    folders = {job.storage / checkpoint_path(JOB, m.attempt, m.train_state.step) for m in committed}
    for folder in folders:
        check_contents(folder, read_manifest(folder).files)
    for folder in set(job.storage.glob(f"{JOB}/a*/step-*")) - folders:
        assert folder.parent.name == f"a{number}", "what an earlier attempt left is collected"
        with pytest.raises(CheckpointError, match="COMMITTED is missing"):
            read_manifest(folder)


def _newest(job: SmallJob) -> Manifest:
    return max(job.committed().values(), key=lambda manifest: manifest.train_state.step)
