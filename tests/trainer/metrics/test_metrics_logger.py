"""Records of steps: values at logged steps, the worst rank, and no reads in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.trainer.ranks import run_ranks
from tests.trainer.runs import Attempt, SmallJob
from trainer.errors import LaunchError
from trainer.loop.train import train
from trainer.metrics.metrics_logger import Losses, StepMetrics, share_of
from trainer.metrics.run_writer import RunWriter
from trainer.run import open_run
from trainyard.run.directory import RunDirectory
from trainyard.spec.layout import Layout
from trainyard.training.batch_partition import BatchPartition

READS = {"item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__array__"}


def short_job(folder: Path, **training: Any) -> SmallJob:
    return SmallJob(folder).changed(
        folder, training={"steps": 10, **training}, lr_schedule={"warmup_steps": 1}
    )


# ---- values --------------------------------------------------------------------------------------


def test_the_values_of_a_run_on_cpu_ranks(tmp_path: Path) -> None:
    job = short_job(tmp_path, steps=4).changed(tmp_path, checkpoint={"interval_steps": 2})
    attempt = job.launch(1, Layout(dp_shard=2))
    always = {
        "train/loss",
        "train/loss_max",
        "train/grad_norm",
        "train/lr",
        "train/tokens",
        "train/sequences",
        "perf/tokens_per_second_per_device",
        "perf/compute_tokens_per_second_per_device",
        "perf/step_seconds",
        "perf/data_seconds",
        "perf/data_share",
        "perf/model_tflops_per_device",
        "memory/peak_rss_gib",
    }
    saved = always | {"checkpoint/save_seconds", "checkpoint/stall_seconds"}
    by_rank = {
        *("ranks/own_seconds_median", "ranks/own_seconds_max"),
        *("ranks/wait_seconds_median", "ranks/wait_seconds_min"),
        *("ranks/own_seconds/0", "ranks/own_seconds/1", "ranks/stragglers"),
    }
    named = [set(line.values) for line in attempt.lines.values()]
    # Ranks are compared from the second line on.
    assert named == [saved, always | by_rank, saved | by_rank, always | by_rank]
    for values in (line.values for line in attempt.lines.values()):
        assert values["train/loss"] <= values["train/loss_max"] < 1.5 * values["train/loss"]
        per_second = "tokens_per_second_per_device"
        assert 0 < values[f"perf/{per_second}"] < values[f"perf/compute_{per_second}"]
        assert 0 <= values["perf/data_share"] < 1
    third = attempt.lines[3].values
    stalled = third["checkpoint/stall_seconds"]
    tokens = 16 * 32 / 2
    wall = tokens / third["perf/tokens_per_second_per_device"]
    assert wall == pytest.approx(third["perf/step_seconds"] + stalled, rel=0.05)


def test_a_collection_counts_for_the_record_after_it(tmp_path: Path) -> None:
    attempt = short_job(tmp_path, steps=7, gc_freq=3).launch(1, Layout(dp_shard=2))
    collected = {n: line.values for n, line in attempt.lines.items() if "gc/seconds" in line.values}
    assert list(collected) == [4, 7]
    for values in collected.values():
        assert 0 < values["gc/seconds"] < values["perf/step_seconds"]


def test_every_value_has_its_formula_in_the_documents(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "metrics.md").read_text()
    attempt = short_job(tmp_path, steps=2, gc_freq=1).launch(1, Layout())
    for name in set.union(*(set(line.values) for line in attempt.lines.values())):
        assert f"`{name}`" in text, name


def _losses(folder: str, loss_by_dp: list[float]) -> dict[str, float]:
    run = open_run(Path(folder), world_size=None, roots={})
    group = torch.distributed.group.WORLD
    assert group is not None
    from trainer.distributed import Ranks

    rank = torch.distributed.get_rank()
    ranks = Ranks(rank, len(loss_by_dp), torch.device("cpu"), group)
    share = loss_by_dp[rank] * share_of(run.partition, rank)
    return Losses(run, ranks)(StepMetrics(torch.tensor(share), torch.tensor(2.0), []))


def test_the_largest_loss_is_the_mean_of_a_ranks_own_tokens(tmp_path: Path) -> None:
    """Also if ranks run different numbers of sequences: 6, 5 and 5, or idle in a round."""
    job = SmallJob(tmp_path).changed(
        tmp_path, training={"global_batch_size": 10, "micro_batch_size": 4}
    )
    run = job.prepare(1, Layout(dp_shard=3))
    partition = BatchPartition(10, 4, 3)
    assert [share_of(partition, rank) for rank in range(3)] == [0.4, 0.4, 0.2]
    for found in run_ranks(3, _losses, str(run), [1.0, 2.0, 4.0]):
        assert found == pytest.approx(
            {"train/loss": 0.4 + 0.8 + 0.8, "train/loss_max": 4.0, "train/grad_norm": 2.0}
        )


# ---- nothing waits for the device between logged steps -------------------------------------------


class Reads(TorchFunctionMode):
    """Counts the host's reads of numbers on the device, except integers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def _reads_by_step(run_directory: str) -> dict[int, list[str]]:
    directory = Path(run_directory)
    writer = RunWriter(RunDirectory(directory), rank=0, local_rank=0)
    by_step: dict[int, list[str]] = {}
    with Reads() as reads:

        def after_step(step: int) -> None:
            # A step's written values are read after this call, before the next call.
            by_step[step] = list(reads.found)
            reads.found.clear()

        run = open_run(directory, world_size=1, roots={})
        train(run, writer, after_step=after_step)
        by_step[run.spec.training.steps + 1] = list(reads.found)
    return by_step


def test_nothing_is_read_of_the_device_between_logged_steps(tmp_path: Path) -> None:
    run = short_job(tmp_path, log_every_steps=4).prepare(1, Layout())
    (by_step,) = run_ranks(1, _reads_by_step, str(run), initialize=False)
    # Values of steps 1, 4, 8 and 10 are written: read before the end of the following step.
    read = {step: names for step, names in by_step.items() if step > 1 and names}
    assert list(read) == [2, 5, 9, 11]
    for names in read.values():
        assert "tolist" in names
    assert Attempt(run).values("train/loss").keys() == {1, 4, 8, 10}


@pytest.mark.cuda
def test_no_step_waits_for_a_gpu_between_logged_steps(tmp_path: Path) -> None:
    job = short_job(tmp_path, log_every_steps=4).changed(tmp_path, resources={"device": "cuda"})
    run_ranks(1, _train_without_waiting, str(job.prepare(1, Layout())), initialize=False)


def _train_without_waiting(run_directory: str) -> None:
    directory = Path(run_directory)
    writer = RunWriter(RunDirectory(directory), rank=0, local_rank=0)

    def after_step(step: int) -> None:
        # From here to the end of the next step nothing may wait, unless values are written now.
        writes = step in (1, 10) or step % 4 == 0
        torch.cuda.set_sync_debug_mode("default" if writes else "error")

    train(open_run(directory, world_size=1, roots={}), writer, after_step=after_step)


# ---- TensorBoard ---------------------------------------------------------------------------------


def test_tensorboard_files_hold_the_values(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    job = short_job(tmp_path, steps=5, log_every_steps=2, tensorboard=True)
    attempt = job.launch(1, Layout(dp_shard=2))
    read = EventAccumulator(str(attempt.run / "tensorboard"))
    read.Reload()
    names = {name for line in attempt.lines.values() for name in line.values}
    assert set(read.Tags()["scalars"]) == names
    for name in names:
        written = {event.step: event.value for event in read.Scalars(name)}
        assert written == pytest.approx(attempt.values(name), rel=1e-6)
    assert set(attempt.values("train/loss")) == {1, 2, 4, 5}


def test_no_files_are_written_unless_asked_for(tmp_path: Path) -> None:
    attempt = short_job(tmp_path, steps=1).launch(1, Layout())
    assert not (attempt.run / "tensorboard").exists()


def test_a_node_without_the_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = short_job(tmp_path, tensorboard=True).prepare(1, Layout())
    monkeypatch.setattr("trainer.run.find_spec", lambda name: None)
    with pytest.raises(LaunchError, match=r"training.tensorboard=true.*install trainyard-programs"):
        open_run(run, world_size=1, roots={})
