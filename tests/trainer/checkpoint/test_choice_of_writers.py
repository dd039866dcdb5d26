"""Any choice of writers, and any origin of a checkpoint, gives the same loaded state."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from tests.trainer.checkpoint.toy import (
    JOB,
    Refusal,
    build,
    full_tensors,
    load,
    manager,
    refusal,
    resume_point,
    state_at,
    train,
)
from tests.trainer.ranks import run_ranks
from trainer.checkpoint.manifest import check_contents, read_manifest
from trainer.checkpoint.reader.metadata import read_metadata
from trainer.checkpoint.writer import checkpoint_writer, storage_writer
from trainer.checkpoint.writer.save_plan import Writers
from trainer.checkpoint.writer.storage_writer import BUFFERS, Receiver
from trainer.errors import RunError
from trainer.operations.metadata_file import main
from trainyard.protocol.manifest import INDEX, Manifest
from trainyard.spec.layout import Layout
from trainyard.spec.sections.checkpoint import CheckpointSection

FSDP2 = Layout(dp_shard=2)
FSDP4 = Layout(dp_shard=4)
HSDP = Layout(dp_replicate=2, dp_shard=2)
WIDTH = 4096  # so that headers are a small part of a file
KIB = 2**10


def _save(
    root: Path, layout: Layout, section: CheckpointSection, width: int
) -> tuple[Manifest, dict[str, Tensor]]:
    model, optimizer = build(layout, seed=1, width=width)
    train(model, optimizer, steps=1, width=width)
    saver = manager(root, layout, section=section)
    for step in (1, 2):  # the second one by the cached plan
        manifest = saver.save(model, optimizer, state_at(step), kind="interval")
    return manifest, full_tensors(model, optimizer)


def _load(root: Path, layout: Layout, manifest: Manifest, width: int) -> dict[str, Tensor]:
    model, optimizer = build(layout, seed=2, width=width)
    load(root, layout, model=model, optimizer=optimizer, resume=resume_point(manifest))
    return full_tensors(model, optimizer)


def _saved(
    root: Path, layout: Layout, *, width: int = WIDTH, **options: object
) -> tuple[Manifest, dict[str, Tensor]]:
    section = CheckpointSection.model_validate(options)
    answer: tuple[Manifest, dict[str, Tensor]] = run_ranks(
        layout.world_size, _save, root, layout, section, width
    )[0]
    return answer


def _tensor_bytes(metadata: Metadata) -> int:
    return sum(
        math.prod(chunk.sizes) * entry.properties.dtype.itemsize
        for entry in metadata.state_dict_metadata.values()
        if isinstance(entry, TensorStorageMetadata)
        for chunk in entry.chunks
    )


def _metadata(root: Path) -> Metadata:
    path = root / JOB / "a1" / "step-2" / ".metadata"
    return read_metadata(path.read_bytes(), path)


def _check_same(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert tensors.keys() == expected.keys()
    for name in expected:
        assert torch.equal(tensors[name], expected[name]), name


def test_one_replica_writes_what_two_ranks_without_replicas_write(tmp_path: Path) -> None:
    fsdp, _ = _saved(tmp_path / "fsdp", FSDP2, writers="all")
    hsdp, expected = _saved(tmp_path / "hsdp", HSDP, writers="one_replica")
    assert [w.rank for w in hsdp.writers] == [0, 1]
    assert {f.path for f in hsdp.files} == {
        ".metadata",
        "index.json",
        "__0_0.distcp",
        "__1_0.distcp",
    }
    assert _tensor_bytes(_metadata(tmp_path / "hsdp")) == _tensor_bytes(
        _metadata(tmp_path / "fsdp")
    )
    sizes = [sum(w.size for w in manifest.writers) for manifest in (hsdp, fsdp)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)
    for layout in (FSDP2, HSDP):
        for tensors in run_ranks(layout.world_size, _load, tmp_path / "hsdp", layout, hsdp, WIDTH):
            _check_same(tensors, expected)


@pytest.mark.parametrize(
    ("layout", "writers", "ranks"),
    [
        (FSDP4, 1, [0]),
        (FSDP4, 2, [0, 2]),
        (FSDP4, 3, [0, 1, 2]),
        (HSDP, 1, [0]),
        (HSDP, "all", [0, 1, 2, 3]),
        (HSDP, "auto", [0, 1, 2, 3]),
    ],
)
def test_exactly_so_many_ranks_write(
    tmp_path: Path, layout: Layout, writers: Writers, ranks: list[int]
) -> None:
    manifest, expected = _saved(tmp_path, layout, writers=writers)
    assert [w.rank for w in manifest.writers] == ranks
    folder = tmp_path / JOB / "a1" / "step-2"
    data = {file.name: file.stat().st_size for file in folder.glob("*.distcp")}
    assert data == {f"__{w.rank}_0.distcp": w.size for w in manifest.writers}
    assert all(data.values())
    assert all(w.files == 1 and w.write_seconds > 0 for w in manifest.writers)
    check_contents(folder, manifest.files)
    if layout == FSDP4 and writers == 2:
        assert max(data.values()) < 1.1 * min(data.values())
    for tensors in run_ranks(2, _load, tmp_path, FSDP2, manifest, WIDTH):
        _check_same(tensors, expected)


def test_dcp_itself_reads_what_was_streamed(tmp_path: Path) -> None:
    manifest, expected = _saved(tmp_path, FSDP4, writers=2, async_mode="async")
    assert manifest == read_manifest(tmp_path / JOB / "a1" / "step-2")
    found = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    with pytest.warns(UserWarning, match=r"torch\.distributed is disabled"):
        dcp.load(found, checkpoint_id=tmp_path / JOB / "a1" / "step-2", no_dist=True)
    _check_same(found, expected)


def test_a_checkpoint_of_many_chunks_gets_its_metadata_on_demand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 24 tensors, 18 of them with a chunk on each of two ranks.
    manifest, expected = run_ranks(2, _save_without_metadata, tmp_path)[0]
    folder = tmp_path / JOB / "a1" / "step-2"
    assert {f.path for f in manifest.files} == {INDEX, "__0_0.distcp", "__1_0.distcp"}
    assert not (folder / ".metadata").exists()
    for tensors in run_ranks(1, _load, tmp_path, Layout(), manifest, WIDTH):
        _check_same(tensors, expected)
    assert main([str(folder)]) == 0
    assert ".metadata: 42 chunks, " in capsys.readouterr().out
    found = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    with pytest.warns(UserWarning, match=r"torch\.distributed is disabled"):
        dcp.load(found, checkpoint_id=folder, no_dist=True)
    _check_same(found, expected)
    check_contents(folder, read_manifest(folder).files)
    assert main([str(tmp_path)]) == 2
    assert "no committed checkpoint" in capsys.readouterr().err


def test_metadata_that_is_there_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _saved(tmp_path, FSDP2)
    folder = tmp_path / JOB / "a1" / "step-2"
    before = (folder / ".metadata").stat().st_mtime_ns
    assert main([str(folder)]) == 0
    assert "is a part of the checkpoint already" in capsys.readouterr().out
    assert (folder / ".metadata").stat().st_mtime_ns == before


def _save_without_metadata(root: Path) -> tuple[Manifest, dict[str, Tensor]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_writer, "WRITTEN_CHUNKS", 41)
        return _save(root, FSDP2, CheckpointSection(), WIDTH)


class _Counted(Receiver):
    """A receiver that records its memory."""

    largest = 0

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        _Counted.largest = max(_Counted.largest, self.memory)


def _save_counted(root: Path, section: CheckpointSection) -> tuple[int, Manifest]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage_writer, "Receiver", _Counted)
        manifest, _ = _save(root, FSDP4, section, WIDTH)
    return _Counted.largest, manifest


def test_a_writer_stays_below_its_ceiling(tmp_path: Path) -> None:
    ceiling = 20 * KIB  # a shard of the first layer has 32 KiB and more
    section = CheckpointSection(writers=1, staging_gib=ceiling / 2**30)
    (taken, manifest), *others = run_ranks(4, _save_counted, tmp_path, section)
    assert 0 < taken <= ceiling
    assert [memory for memory, _ in others] == [0, 0, 0]
    assert storage_writer.piece_bytes(2**40) * BUFFERS == 2**28  # and a large one is not exhausted
    expected = run_ranks(4, _save, tmp_path / "all", FSDP4, CheckpointSection(), WIDTH)[0][1]
    for tensors in run_ranks(2, _load, tmp_path, FSDP2, manifest, WIDTH):
        _check_same(tensors, expected)


def _save_with_failure(root: Path, failing: int) -> Refusal:
    section = CheckpointSection(writers=2)
    model, optimizer = build(FSDP4, seed=1, width=WIDTH)
    saver = manager(root, FSDP4, section=section)

    def fail(*_: object) -> Tensor:
        raise OSError(5, "Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == failing:
            patch.setattr(storage_writer, "_on_host", fail)
        with pytest.raises(RunError) as caught:
            saver.save(model, optimizer, state_at(0), kind="preflight")
    return refusal(caught.value)


@pytest.mark.parametrize("failing", [0, 1], ids=["a writer", "a sender"])
def test_nobody_waits_for_a_rank_that_failed_between_two_shards(
    tmp_path: Path, failing: int
) -> None:
    answers = run_ranks(4, _save_with_failure, tmp_path, failing, timeout_seconds=40)
    assert len({answer[:3] for answer in answers}) == 1
    assert f"rank {failing}" in answers[0][1]
    assert "Input/output error" in answers[0][1]
    assert not (tmp_path / JOB / "a1" / "step-0").exists()
