"""Nodes with different checkpoint roots are named before an attempt's first step."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.trainer.ranks import run_ranks
from tests.trainer.runs import JOB, SmallJob
from trainer.checkpoint import shared_root
from trainer.checkpoint.shared_root import PROBE, remove_probes
from trainer.errors import RunError
from trainer.metrics.run_writer import RunWriter
from trainer.run import open_run
from trainyard.protocol.attempt import AttemptSpec, NodeAllocation
from trainyard.run.directory import RunDirectory
from trainyard.spec.layout import Layout

NODES = ("gpu-01", "gpu-02", "gpu-03")


def _allocated(run: Path, sizes: tuple[int, ...]) -> None:
    """Put the ranks of an attempt on several nodes."""
    path = run / "attempt.json"
    nodes = tuple(
        NodeAllocation(node=NODES[index], node_rank=index, slots=tuple(range(size)))
        for index, size in enumerate(sizes)
    )
    described = AttemptSpec.model_validate_json(path.read_text())
    path.write_text(described.model_copy(update={"allocation": nodes}).model_dump_json())


def _train(run: str, sizes: tuple[int, ...], roots: tuple[str, ...], unwritable: bool) -> list[str]:
    """Train on a node of several: each has its own root; return the type and text of the error."""
    from trainer.loop.train import train

    rank = int(os.environ["RANK"])
    node = next(index for index in range(len(sizes)) if rank < sum(sizes[: index + 1]))
    os.environ["LOCAL_RANK"] = str(rank - sum(sizes[:node]))
    os.environ["LOCAL_WORLD_SIZE"] = str(sizes[node])
    shared_root.SEEN_SECONDS = 0.3
    if unwritable and node:
        os.setuid(65534)
    opened = open_run(
        Path(run), world_size=sum(sizes), roots={"checkpoints": roots[node]} if roots else {}
    )
    writer = RunWriter(RunDirectory(Path(run)), rank=rank, local_rank=rank)
    try:
        train(opened, writer)
    except RunError as error:
        return [type(error).__name__, str(error), error.remedy or ""]
    return []


def _launch(
    job: SmallJob,
    sizes: tuple[int, ...],
    roots: tuple[Path, ...] = (),
    *,
    attempt: int = 1,
    unwritable: bool = False,
) -> tuple[Path, list[list[str]]]:
    ranks = sum(sizes)
    run = job.prepare(attempt, Layout(dp_shard=ranks))
    _allocated(run, sizes)
    places = tuple(map(str, roots))
    return run, run_ranks(ranks, _train, str(run), sizes, places, unwritable, initialize=False)


@pytest.fixture
def job(tmp_path: Path) -> SmallJob:
    return SmallJob(tmp_path).changed(
        tmp_path, training={"steps": 2}, lr_schedule={"warmup_steps": 1}
    )


def _probes(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(f"{PROBE}*")]


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1, 1)], ids=["two nodes", "unequal shares"])
def test_nodes_that_share_the_root_train_and_leave_no_file(
    job: SmallJob, sizes: tuple[int, ...]
) -> None:
    run, errors = _launch(job, sizes)
    assert not any(errors)
    assert f"{JOB}.a1.step-2" in job.committed()
    assert _probes(job.storage) == []
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_root_of_its_own_is_named_with_both_nodes_before_a_step(
    job: SmallJob, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    (own / JOB).mkdir(parents=True)  # like after another attempt with its first rank there
    roots = (job.storage, job.storage, own)
    run, errors = _launch(job, (1, 1, 1), roots)
    # Rank 1 looks for the file of rank 2, which wrote it into its own folder.
    assert [error[0] for error in errors] == ["LaunchError"] * 3
    assert errors[0][1].startswith("rank 1: gpu-02 does not see ")
    assert "which gpu-03 has written: the two nodes have different storage" in errors[0][1]
    assert "Mount one storage under this root on both nodes" in errors[0][2]
    assert not (run / "metrics.jsonl").exists()
    assert job.committed() == {}
    assert _probes(tmp_path) == []


def test_a_root_without_the_folder_of_the_job_is_named(job: SmallJob, tmp_path: Path) -> None:
    empty = tmp_path / "unmounted"
    empty.mkdir()
    _, errors = _launch(job, (1, 1), (job.storage, empty))
    assert errors[0][1].startswith(f"rank 1: gpu-02 does not see {empty / JOB}, ")
    assert list(empty.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_node_that_may_not_write_is_named(job: SmallJob) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        folder = Path(name)
        folder.chmod(0o755)
        open_job = job.changed(folder)
        _, errors = _launch(open_job, (1, 1), (open_job.storage,) * 2, unwritable=True)
        assert errors[0][0] == "CheckpointError"
        assert f"rank 1: cannot write {open_job.storage / JOB}/{PROBE}1-" in errors[0][1]
        assert "Permission denied" in errors[0][1]
        assert _probes(folder) == []


def test_what_a_killed_attempt_left_is_removed_by_the_next(job: SmallJob) -> None:
    folder = job.storage / JOB
    folder.mkdir(parents=True)
    for name in ("1-0", "2-0", "3-0", "strange"):
        (folder / f"{PROBE}{name}").touch()
    remove_probes(folder, attempt=2)
    assert sorted(_probes(folder)) == [f"{PROBE}3-0", f"{PROBE}strange"]
    remove_probes(job.storage / "missing", attempt=2)
    job.launch(3, Layout())  # one node: leftovers are still removed
    assert _probes(folder) == [f"{PROBE}strange"]
