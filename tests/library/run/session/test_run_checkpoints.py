"""Checkpoints of a script's run: their place, and the event that follows the metrics."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainyard.protocol.manifest import manifest_of_event
from trainyard.protocol.record_parser import parse_record
from trainyard.run.checkpoints.program_manifest import ProgramManifest
from trainyard.run.records import EventRecord, MetricRecord
from trainyard.run.session import Run, program_checkpoints
from trainyard.run.session.process_place import ProcessPlace

ALONE = ProcessPlace()


def run_of(folder: Path, *, spec: Any = None, place: ProcessPlace = ALONE, **attempt: Any) -> Run:
    """Return the run of an attempt with `<folder>/root` as its root `checkpoints`."""
    run, root = folder / "run", folder / "root"
    run.mkdir(exist_ok=True)
    root.mkdir(exist_ok=True)
    (run / "spec.json").write_text(json.dumps(spec or {}))
    launch = {"job_id": "job-1", "attempt": 1, "roots": {"checkpoints": str(root)}} | attempt
    (run / "attempt.json").write_text(json.dumps(launch))
    return Run(run, place)


def test_a_commit_is_an_event_after_the_metrics_up_to_its_step(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.log({"train/loss": 1.0}, step=4)
    with run.checkpoint(4, kind="final") as folder:
        (folder / "model.pt").write_bytes(b"weights")
    assert folder == tmp_path / "root/job-1/a1/step-4"
    assert b'"step":4' in (tmp_path / "run/metrics.jsonl").read_bytes()
    (line,) = (tmp_path / "run/events.jsonl").read_bytes().splitlines()
    event = parse_record(EventRecord, line)
    assert (event.kind, event.step) == ("checkpoint_committed", 4)
    manifest = manifest_of_event(event.data)
    assert isinstance(manifest, ProgramManifest)
    assert (manifest.checkpoint_id, manifest.kind) == ("job-1.a1.step-4", "final")
    assert parse_record(ProgramManifest, (folder / "manifest.json").read_bytes()) == manifest


def test_a_step_of_numpy_names_the_checkpoint_as_pythons_does(tmp_path: Path) -> None:
    with run_of(tmp_path).checkpoint(np.int64(4)) as folder:
        (folder / "model.pt").write_bytes(b"weights")
    assert folder == tmp_path / "root/job-1/a1/step-4"
    manifest = parse_record(ProgramManifest, (folder / "manifest.json").read_bytes())
    assert type(manifest.step) is int


def test_a_commit_without_its_event_is_known_by_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal may come between the two; here the event raises an error instead."""
    run = run_of(tmp_path)
    mark = tmp_path / "run/committing"
    with run.checkpoint(3) as folder:
        (folder / "model.pt").write_bytes(b"weights")
        assert not mark.exists()
    assert not mark.exists()
    monkeypatch.setattr(program_checkpoints, "append_record", refused)
    with pytest.raises(OSError, match="no event"), run.checkpoint(4) as folder:
        (folder / "model.pt").write_bytes(b"weights")
    assert (folder / "COMMITTED").exists()
    assert mark.exists()


def refused(*_: object) -> None:
    raise OSError("no event")


def test_each_of_several_ranks_records_the_step_before_the_commit(tmp_path: Path) -> None:
    runs = [
        run_of(tmp_path, place=ProcessPlace(rank=r, world_size=2, local_rank=r)) for r in (0, 1)
    ]

    def save(run: Run) -> None:
        with run.checkpoint(4) as folder:
            (folder / f"{run.rank}.pt").write_bytes(b"weights")

    with ThreadPoolExecutor(2) as ranks:
        list(ranks.map(save, runs))
    for file in ("metrics.jsonl", "metrics/rank-1.jsonl"):
        record = parse_record(MetricRecord, (tmp_path / "run" / file).read_bytes().strip())
        assert (record.step, record.values, record.ranks) == (4, {}, 2)


def test_a_resume_reads_the_folder_of_the_parent(tmp_path: Path) -> None:
    with run_of(tmp_path).checkpoint(4) as folder:
        (folder / "model.pt").write_bytes(b"weights")
    point = {"checkpoint_id": "job-1.a1.step-4", "path": "job-1/a1/step-4"}
    assert run_of(tmp_path, attempt=2, resume=point).resume_from == folder
    assert (tmp_path / "root/job-1/FENCE").read_text() == "2\n"


def test_the_root_of_an_override_counts(tmp_path: Path) -> None:
    roots = {"other": str(tmp_path / "root")}
    run = run_of(
        tmp_path,
        spec={"checkpoint": {"root": "checkpoints"}},
        overrides={"checkpoint": {"root": "other"}},
        roots=roots,
    )
    with run.checkpoint(1) as folder:
        (folder / "x").write_bytes(b"")
    assert (tmp_path / "root/job-1/a1/step-1/COMMITTED").exists()


@pytest.mark.parametrize(
    ("roots", "words"),
    [
        ({}, "this node has no root of that name"),
        ({"checkpoints": "s3://bucket/x"}, "is the bucket s3://bucket/x"),
    ],
)
def test_a_root_that_is_no_folder_is_refused(
    tmp_path: Path, roots: dict[str, str], words: str
) -> None:
    run = run_of(tmp_path, roots=roots)
    with pytest.raises(ValueError, match=words):
        run.resume_from  # noqa: B018


def test_a_forked_process_saves_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    pid = os.fork()
    if pid == 0:
        try:
            with run.checkpoint(1):
                os._exit(1)
        except RuntimeError:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def test_without_a_job_the_folder_lies_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run(None, ALONE)
    assert run.resume_from is None
    with run.checkpoint(2) as folder:
        (folder / "model.pt").write_bytes(b"weights")
    assert not folder.exists()
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.pt")] == [
        "checkpoints/step-2/model.pt"
    ]


def test_without_a_job_several_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    run = Run(None, ProcessPlace(rank=1, world_size=4, local_rank=1))
    with pytest.raises(RuntimeError, match="save together only in a job"):
        run.resume_from  # noqa: B018
