"""Compiled kernels shared by attempts of a node: reused, and never a cause of failure."""

from __future__ import annotations

import errno
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from torch._dynamo.utils import counters

from tests.trainer.ranks import run_ranks
from tests.trainer.runs import Attempt, Meddling, SmallJob, train_rank
from trainer.loop import kernel_cache
from trainer.loop.kernel_cache import KernelCache
from trainer.run import TrainerRun, open_run
from trainyard.protocol.attempt import AttemptSpec
from trainyard.spec.layout import Layout

PATIENT: dict[str, Any] = {"initialize": False, "timeout_seconds": 600.0}
"""A C++ compiler needs 15 s of processor time for the kernels of a model."""


def _prepare(job: SmallJob, attempt: int, store: Path) -> Path:
    """Write the run directory of an attempt that may use the node's archives."""
    run = job.prepare(attempt, Layout())
    path = run / "attempt.json"
    described = AttemptSpec.model_validate_json(path.read_text())
    path.write_text(described.model_copy(update={"kernel_cache": str(store)}).model_dump_json())
    return run


def _train(run: str) -> tuple[int, int]:
    """Train with the caches of torch in the run directory; return hits and misses of graphs."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{run}/kernels"
    train_rank(run, Meddling())
    return counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"]


def test_the_next_attempt_compiles_nothing_and_computes_the_same(tmp_path: Path) -> None:
    store = tmp_path / "store.zip"
    job = SmallJob(tmp_path).changed(
        tmp_path,
        model={"n_layers": 1},
        training={"steps": 2},
        lr_schedule={"warmup_steps": 0},
        compile={"enabled": True},
    )
    first, second = (_prepare(job, number, store) for number in (1, 2))
    ((hits, misses),) = run_ranks(1, _train, str(first), **PATIENT)
    assert hits == 0 < misses
    archive = first / "kernels.zip"
    assert archive.stat().st_mode & 0o777 == 0o644
    archive.rename(store)  # as the worker does
    ((hits, again),) = run_ranks(1, _train, str(second), **PATIENT)
    assert (hits, again) == (misses, 0)
    assert (second / "kernels.zip").stat().st_size == 0
    losses = [Attempt(run).values("train/loss") for run in (first, second)]
    assert losses[0] == losses[1]


@pytest.fixture
def run(tmp_path: Path) -> TrainerRun:
    prepared = _prepare(SmallJob(tmp_path), 1, tmp_path / "store.zip")
    return open_run(prepared, world_size=1, roots={})


def _stored(run: TrainerRun) -> Path:
    return Path(str(run.attempt.kernel_cache))


def _cache(run: TrainerRun) -> KernelCache:
    return KernelCache(run, _stored(run))


def _compile(run: TrainerRun, **files: str) -> None:
    for name, content in files.items():
        path = run.directory.kernels / "ab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def _left(run: TrainerRun) -> Path:
    return Path(run.directory.kernel_archive)


def test_new_kernels_are_added_to_those_of_the_archive(run: TrainerRun) -> None:
    with zipfile.ZipFile(_stored(run), "w") as archive:
        archive.writestr("ab/one", "first")
    cache = _cache(run)
    cache.fetch()
    _compile(run, two="second", **{".draft": "half", "two.lock": ""})
    (run.directory.kernels / "locks").mkdir()
    (run.directory.kernels / "locks" / "x").touch()
    cache.archive()
    with zipfile.ZipFile(_left(run)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            "ab/one": b"first",
            "ab/two": b"second",
        }


def test_a_damaged_archive_is_replaced(run: TrainerRun) -> None:
    with zipfile.ZipFile(_stored(run), "w") as archive:
        archive.writestr("ab/one", "first")
    content = bytearray(_stored(run).read_bytes())
    content[content.index(b"first")] ^= 1
    _stored(run).write_bytes(content)
    cache = _cache(run)
    cache.fetch()
    assert not run.directory.kernels.exists(), "half an archive would be loaded as code"
    _compile(run, one="first")
    cache.archive()
    assert _left(run).stat().st_size > 0


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + bytes(10)])
def test_what_is_no_archive_costs_the_compilation_alone(run: TrainerRun, content: bytes) -> None:
    _stored(run).write_bytes(content)
    _cache(run).fetch()
    assert not run.directory.kernels.exists()


def test_no_name_in_an_archive_leads_out_of_the_caches(run: TrainerRun) -> None:
    with zipfile.ZipFile(_stored(run), "w") as archive:
        archive.writestr("../../spec.json", "planted")
        archive.writestr("/etc/planted", "planted")
    before = run.directory.spec.read_text()
    _cache(run).fetch()
    assert run.directory.spec.read_text() == before
    assert not Path("/etc/planted").exists()


def test_a_full_disk_costs_the_archive_alone(
    run: TrainerRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    _compile(run, one="first")
    monkeypatch.setattr(zipfile.ZipFile, "write", full)
    _cache(run).archive()
    assert not _left(run).exists()
    with zipfile.ZipFile(_stored(run), "w") as archive:
        archive.writestr("ab/one", "first")
    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    _cache(run).fetch()
    assert not run.directory.kernels.exists()


def test_kernels_beyond_the_bound_are_not_shared(
    run: TrainerRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    _compile(run, one="first")
    monkeypatch.setattr(kernel_cache, "LARGEST_ARCHIVE", 4)
    _cache(run).archive()
    assert not _left(run).exists()
    with zipfile.ZipFile(_stored(run), "w") as archive:
        archive.writestr("ab/two", "second")
    _cache(run).fetch()
    assert not run.directory.kernels.exists()
