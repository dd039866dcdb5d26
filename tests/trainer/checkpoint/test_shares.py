"""Every file is read whole by one rank, and the ranks read about equal amounts."""

import pytest

from tests.manifests import make_manifest
from tests.trainer.checkpoint.toy import state_at
from trainer.checkpoint.reader.storage_reader import files_to_verify
from trainyard.protocol.manifest import DCP_METADATA, INDEX, Manifest, ManifestFile
from trainyard.spec.layout import Layout

FSDP4 = Layout(dp_shard=4)
HSDP = Layout(dp_replicate=2, dp_shard=2)
PIPELINE = Layout(pp=2, dp_replicate=2, dp_shard=2)


def _saved(layout: Layout, *writers: int) -> Manifest:
    names = [INDEX, DCP_METADATA, *(f"__{rank}_0.distcp" for rank in writers)]
    files = tuple(ManifestFile(path=name, size=1, xxh3_128="a" * 32) for name in names)
    manifest = make_manifest("job", 1, state_at(1), files=files)
    return manifest.model_copy(update={"layout": layout})


def _shares(manifest: Manifest, layout: Layout) -> list[list[int]]:
    """Return the writers of the files of each rank of the first replica."""
    readers = [
        rank
        for rank in range(layout.world_size)
        if rank // (layout.dp_shard * layout.cp * layout.tp) % layout.dp_replicate == 0
    ]
    names = [files_to_verify(manifest, rank=rank, layout=layout) for rank in readers]
    return [sorted(int(name.split("_")[2]) for name in share) for share in names]


@pytest.mark.parametrize(
    ("saved", "writers", "layout", "shares"),
    [
        (FSDP4, range(4), FSDP4, [[0], [1], [2], [3]]),
        (FSDP4, range(4), Layout(dp_shard=2), [[0, 1], [2, 3]]),
        (FSDP4, range(4), Layout(dp_shard=3), [[0, 1], [2], [3]]),
        (FSDP4, range(4), Layout(dp_shard=8), [[0], [], [1], [], [2], [], [3], []]),
        (FSDP4, [0], Layout(dp_shard=2), [[0], []]),
        # Both replicas wrote: a rank reads the parts of its shards from any of their files.
        (HSDP, range(4), HSDP, [[0, 2], [1, 3]]),
        (HSDP, range(4), Layout(dp_shard=2), [[0, 2], [1, 3]]),
        # Only replicas: all files hold parts of the same tensors, and all ranks read some.
        (Layout(dp_replicate=4), range(4), FSDP4, [[0], [1], [2], [3]]),
        (PIPELINE, range(8), PIPELINE, [[0, 2], [1, 3], [4, 6], [5, 7]]),
        (PIPELINE, range(8), Layout(), [[0, 1, 2, 3, 4, 5, 6, 7]]),
        # Tensor parallelism cuts rows first: its ranks lie farther apart than those of FSDP.
        (FSDP4, range(4), Layout(dp_shard=2, tp=2), [[0], [2], [1], [3]]),
    ],
)
def test_each_file_is_read_whole_once_where_it_is_needed(
    saved: Layout, writers: list[int], layout: Layout, shares: list[list[int]]
) -> None:
    assert _shares(_saved(saved, *writers), layout) == shares
