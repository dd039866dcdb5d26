"""A rank reads its share of the files and the bytes that it needs, and nothing else."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from tests.trainer.checkpoint.toy import (
    Refusal,
    full_tensors,
    load,
    manager,
    refusal,
    resume_point,
    state_at,
)
from tests.trainer.ranks import run_ranks
from trainer.checkpoint.tensors import train_tensors
from trainer.errors import RunError
from trainer.loop.build import assemble
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.manifest import Manifest
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout

SPEC: JobSpec = parse_job_spec(
    {
        "model": {"dim": 128, "n_layers": 1, "n_heads": 4, "n_kv_heads": 4, "ffn_dim": 256},
        "training": {"seq_len": 16, "global_batch_size": 4},
        "resources": {"device": "cpu"},
    }
)
FSDP2, FSDP4 = Layout(dp_shard=2), Layout(dp_shard=4)
HSDP = Layout(dp_replicate=2, dp_shard=2)
HEAD = 704
"""Bytes that `torch.save` writes before the numbers; they are read with the numbers."""


class Read(NamedTuple):
    """The reads of a rank, and its contents."""

    bytes_read: int
    rows: int
    """Bytes of the rows that this rank holds parts of, over their whole width, of all tensors."""
    tensors: dict[str, Tensor]


def _save(root: Path, layout: Layout) -> tuple[Manifest, dict[str, Tensor]]:
    assembly = assemble(SPEC, layout, torch.device("cpu"))
    torch.manual_seed(dist.get_rank() % layout.dp_shard)
    with torch.no_grad():
        for tensor in train_tensors(assembly.model, assembly.optimizer).values():
            if isinstance(tensor, DTensor):
                tensor.to_local().normal_()
    saver = manager(root, layout, spec=SPEC)
    saver.raise_fence()
    manifest = saver.save(assembly.model, assembly.optimizer, state_at(1), kind="interval")
    return manifest, full_tensors(assembly.model, assembly.optimizer)


def _load(root: Path, layout: Layout, resume: ResumePoint) -> Read:
    assembly = assemble(SPEC, layout, torch.device("cpu"))
    loaded = load(root, layout, model=assembly.model, optimizer=assembly.optimizer, resume=resume)
    rows = 0
    for tensor in train_tensors(assembly.model, assembly.optimizer).values():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        width = tensor.shape[1:].numel() if tensor.ndim else 1
        rows += (local.shape[0] if tensor.ndim else 1) * width * tensor.itemsize
    return Read(loaded.bytes_read, rows, full_tensors(assembly.model, assembly.optimizer))


def _load_twice(root: Path, resume: ResumePoint, damaged: Path) -> tuple[Read, Refusal]:
    """Load an intact checkpoint, and one with files that differ from the commit."""
    read = _load(root, HSDP, resume)
    with pytest.raises(RunError) as caught:
        _load(damaged, HSDP, resume)
    return read, refusal(caught.value)


def _files(manifest: Manifest) -> list[int]:
    return [file.size for file in manifest.data_files]


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest, dict[str, Tensor]]:
    root = tmp_path_factory.mktemp("four")
    return root, *run_ranks(4, _save, root, FSDP4)[0]


def _loaded(saved: tuple[Path, Manifest, dict[str, Tensor]], layout: Layout) -> list[Read]:
    root, manifest, expected = saved
    ranks: list[Read] = run_ranks(layout.world_size, _load, root, layout, resume_point(manifest))
    for rank in ranks:
        assert rank.tensors.keys() == expected.keys()
        for name, tensor in rank.tensors.items():
            assert torch.equal(tensor, expected[name]), name
    return ranks


def test_where_ranks_need_whole_files_nothing_is_read_twice(
    of_four: tuple[Path, Manifest, dict[str, Tensor]],
) -> None:
    files = _files(of_four[1])
    ranks = _loaded(of_four, FSDP2)
    # Scalars lie in one file each, and every rank needs them.
    scalars = HEAD * len([name for name in of_four[2] if name.endswith(".step")])
    assert sum(files) <= sum(rank.bytes_read for rank in ranks) <= sum(files) + 2 * scalars


# Ranks of FSDP 3 need more than one file of FSDP 4: a quarter of the bytes is read twice, by the
# rank that verifies them and by the rank that needs them. With whole pieces instead of rows it
# would be half. Ranks of tensor parallelism also need columns, and read the bytes between them.
@pytest.mark.parametrize(
    ("layout", "read"), [(Layout(dp_shard=3), 1.27), (Layout(dp_shard=2, tp=2), 1.32)], ids=str
)
def test_a_rank_reads_its_share_of_the_checksums_and_its_own_rows(
    of_four: tuple[Path, Manifest, dict[str, Tensor]], layout: Layout, read: float
) -> None:
    files, pieces = _files(of_four[1]), 4 * len(of_four[2])
    ranks = _loaded(of_four, layout)
    share = max(files) * -(-len(files) // layout.world_size)
    for rank in ranks:
        assert rank.bytes_read <= share + rank.rows + HEAD * pieces
    total = sum(rank.bytes_read for rank in ranks)
    assert sum(files) <= total <= read * sum(files), "every file is read whole by one rank"


def test_one_replica_reads_for_all(
    of_four: tuple[Path, Manifest, dict[str, Tensor]], tmp_path: Path
) -> None:
    root, manifest, expected = of_four
    resume = resume_point(manifest)
    damaged = tmp_path / "damaged"
    shutil.copytree(root, damaged)
    file = damaged / resume.path / "__1_0.distcp"
    content = bytearray(file.read_bytes())
    content[-5000] ^= 4
    file.write_bytes(content)

    fsdp = run_ranks(2, _load, root, FSDP2, resume)
    hsdp = run_ranks(4, _load_twice, root, resume, damaged)
    assert [read.bytes_read for read, _ in hsdp] == [*(read.bytes_read for read in fsdp), 0, 0]
    for read, refused in hsdp:
        assert all(torch.equal(read.tensors[name], expected[name]) for name in expected)
        assert refused == hsdp[0][1]
        assert refused[0] == "CheckpointError"
        assert "is damaged: its checksum is" in refused[1]
        assert refused[2] == str(file)


def test_ranks_without_shards_of_their_own_are_served_by_the_first(
    of_four: tuple[Path, Manifest, dict[str, Tensor]],
) -> None:
    first, second = _loaded(of_four, Layout(dp_replicate=2))
    assert (first.bytes_read, second.bytes_read) == (sum(_files(of_four[1])), 0)
