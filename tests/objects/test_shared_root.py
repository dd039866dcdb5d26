"""Nodes of an attempt prove with objects that they see the same bucket."""

from __future__ import annotations

import os
from pathlib import Path

from tests.trainer.ranks import run_ranks
from tests.trainer.runs import JOB, SmallJob
from trainer.checkpoint import shared_root
from trainer.checkpoint.shared_root import PROBE, check_shared_root, remove_probes
from trainer.distributed import joined
from trainer.errors import LaunchError
from trainer.run import open_run
from trainer.storage.object_path import ObjectPath
from trainyard.spec.layout import Layout


def _check(run: str, roots: tuple[str, str]) -> str:
    rank = int(os.environ["RANK"])
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    shared_root.SEEN_SECONDS = 0.3
    opened = open_run(Path(run), world_size=2, roots={"checkpoints": roots[rank]})
    try:
        with joined("cpu", hang_seconds=60) as ranks:
            check_shared_root(opened, ranks)
    except LaunchError as error:
        return str(error)
    return ""


def test_one_bucket_is_proved_and_two_are_named(bucket: ObjectPath, tmp_path: Path) -> None:
    run = SmallJob(tmp_path).prepare(1, Layout(dp_shard=2))
    other = bucket / "other"
    assert run_ranks(2, _check, str(run), (str(bucket), str(bucket)), initialize=False) == ["", ""]
    assert list(bucket.beneath()) == []
    refused = run_ranks(2, _check, str(run), (str(bucket), str(other)), initialize=False)
    assert refused[0].startswith("rank 0: ")
    assert f"does not see {bucket}/{JOB}/{PROBE}1-" in refused[0]
    assert list(bucket.beneath()) == []


def test_what_a_killed_attempt_left_is_removed(bucket: ObjectPath) -> None:
    for name in (f"{PROBE}1-0", f"{PROBE}3-0", "a1"):
        (bucket / JOB / name).put(b"")
    remove_probes(bucket / JOB, attempt=2)
    assert [path.name for path in bucket.beneath()] == [f"{PROBE}3-0", "a1"]
