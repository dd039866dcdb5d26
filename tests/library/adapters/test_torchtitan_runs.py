"""Recipes of torchtitan's own trainer with exact steps, on CPU ranks."""

from __future__ import annotations

import json
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.test_programs import NO_TITAN, TITAN
from tests.library.adapters.titan_launch import TitanLaunch, titan_launch

pytestmark = [
    pytest.mark.skipif(TITAN is None, reason=NO_TITAN),
    pytest.mark.timeout(600),
]

STEPS = 6
EXACT_VALUES = ("train/lr", "train/tokens", "train/sequences")


@pytest.fixture(scope="module")
def titan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TitanLaunch]:
    with titan_launch(tmp_path_factory.mktemp("titan")) as launch:
        yield launch


@pytest.fixture(scope="module")
def weights(titan: TitanLaunch, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options of runs of three steps that start with the same weights on any number of ranks."""
    folder = shared(titan, tmp_path_factory.mktemp("seed") / "run")
    codes, log = titan.ranks(
        "llama3", "--checkpoint.create-seed-checkpoint", ranks=1, folder=folder
    )
    assert codes == [0], log
    seed = folder / "checkpoints" / "step-0"
    return (
        *("--training.steps", "3", "--checkpoint.load-only"),
        *("--checkpoint.initial-load-path", str(seed)),
    )


@pytest.mark.parametrize(
    ("family", "relative"),
    [
        ("llama3", 1e-6),
        ("qwen3", 1e-6),
        # Experts round to bfloat16, so a difference in the last bit of a weight may grow.
        ("deepseek_v3", 1e-5),
        pytest.param("gpt_oss", 1e-5, marks=pytest.mark.slow),  # it saves 0.8 GB in each attempt
    ],
)
def test_a_family_goes_through_a_stop_a_kill_and_a_termination(
    titan: TitanLaunch, family: str, relative: float
) -> None:
    whole = titan.job(family, "--checkpoint.no-enable", ranks=2, name=f"{family}-whole")
    assert whole.codes == [0, 0], whole.log
    assert list(whole.digests) == list(range(1, STEPS + 1))
    beat = json.loads((titan.folder / "runs" / f"{family}-whole-1" / "heartbeat.json").read_text())
    assert beat["answers"] == ["stop"], "without checkpoints no save is promised"

    stopped = titan.job(family, ranks=2, name=family, stops=True)
    assert stopped.codes == [0, 0], stopped.log
    killed = titan.job(
        family, ranks=4, name=family, parent=2, end={"rank": 1, "step": 4, "signal": signal.SIGKILL}
    )
    assert killed.codes[1] == -signal.SIGKILL, killed.log
    terminated = titan.job(
        family,
        *("--checkpoint.interval", "2"),
        ranks=3,
        name=family,
        parent=3,
        end={"rank": 0, "step": 5, "signal": signal.SIGTERM},
    )
    assert terminated.codes[0] == -signal.SIGTERM, terminated.log
    ended = titan.job(family, "--checkpoint.load-only", ranks=2, name=family, parent=4)
    assert ended.codes == [0, 0], ended.log

    attempts = [stopped, killed, terminated, ended]
    for attempt, steps in zip(attempts, ([1, 2], [3], [4], [5, 6]), strict=True):
        assert set(steps) <= attempt.digests.keys(), attempt.log
        assert attempt.digests.items() <= whole.digests.items()
        losses = {step: whole.values["train/loss"][step] for step in attempt.values["train/loss"]}
        assert attempt.values["train/loss"] == pytest.approx(losses, rel=relative)
        for name in EXACT_VALUES:
            assert attempt.values[name].items() <= whole.values[name].items()
    seconds = [attempt.values["perf/step_seconds"] for attempt in attempts]
    assert all(value > 0 for found in seconds for value in found.values())


def test_a_batch_that_the_ranks_do_not_divide_is_padded(
    titan: TitanLaunch, weights: tuple[str, ...]
) -> None:
    two = titan.job("llama3", *weights, ranks=2, name="unpadded")
    five = titan.job("llama3", *weights, ranks=5, name="padded")
    assert five.codes == [0] * 5, five.log
    assert "12 rows on 5 data-parallel ranks, 3 accumulation steps of 1 rows, 3 padded" in five.log
    assert five.digests == two.digests
    assert len(two.digests) == 3
    assert five.values["train/loss"] == pytest.approx(two.values["train/loss"], rel=1e-6)
    # torch adds the squares of a large shard one after the other, and rounds each sum.
    assert five.values["train/grad_norm"] == pytest.approx(two.values["train/grad_norm"], rel=1e-4)
    assert five.values["train/tokens"] == two.values["train/tokens"]


def test_ranks_that_share_rows_report_them_once(
    titan: TitanLaunch, weights: tuple[str, ...]
) -> None:
    tensor = ("--parallelism.tensor-parallel-degree", "2")
    two = titan.job("llama3", *weights, ranks=2, name="data-parallel")
    four = titan.job("llama3", *weights, *tensor, ranks=4, name="tensor-parallel")
    assert four.codes == [0] * 4, four.log
    assert four.digests == two.digests
    assert len(two.digests) == 3
    assert four.values["train/loss"] == pytest.approx(two.values["train/loss"], rel=1e-5)
    assert four.values["train/tokens"] == two.values["train/tokens"]


def test_all_ranks_end_with_the_data(titan: TitanLaunch) -> None:
    options = ("--dataloader.no-infinite", "--training.steps", "50", "--checkpoint.no-enable")
    codes, log = titan.ranks("llama3", *options, ranks=3)
    assert codes == [0] * 3, log
    assert log.count("Ran out of data; last step was canceled.") == 3


def test_padding_of_a_mixture_of_experts_is_refused(titan: TitanLaunch) -> None:
    codes, log = titan.ranks("deepseek_v3", ranks=5)
    assert codes != [0] * 5
    assert "the nearest legal numbers are 4 and 6" in log


def test_a_recipe_without_a_global_batch_size_is_refused(titan: TitanLaunch) -> None:
    codes, log = titan.ranks("unsized", ranks=1)
    assert codes == [1]
    assert "training.global_batch_size=-1 would grow with the ranks" in log


def test_pipeline_parallelism_is_refused(titan: TitanLaunch) -> None:
    stages = ("--training.disable-cuda-graphs", "--parallelism.pipeline-parallel-degree", "2")
    codes, log = titan.ranks("llama3", *stages, ranks=2)
    assert codes != [0, 0]
    assert "parallelism.pipeline_parallel_degree=2: legal is 1" in log


def test_more_streams_than_samples_are_refused(titan: TitanLaunch) -> None:
    codes, log = titan.ranks("llama3", "--training.global-batch-size", "64", ranks=1)
    assert codes == [1]
    assert "the data set has fewer samples than the 64 streams" in log


def test_workers_and_several_sources_do_not_change_the_order(titan: TitanLaunch) -> None:
    alone = titan.job("mixture", "--checkpoint.interval", "2", ranks=2, name="alone", stops=True)
    assert alone.codes == [0, 0], alone.log
    more = titan.job("mixture", "--checkpoint.load-only", ranks=3, name="alone", parent=2)
    workers = titan.job(
        *("mixture", "--checkpoint.no-enable", "--dataloader.num-workers", "2"),
        ranks=2,
        name="workers",
    )
    assert workers.codes == [0, 0], workers.log
    assert alone.digests | more.digests == workers.digests
    assert workers.digests.keys() == set(range(1, STEPS + 1))


def test_saves_outside_of_a_job_resume_and_are_torchtitans(
    titan: TitanLaunch, tmp_path: Path
) -> None:
    folder = shared(titan, tmp_path / "local")
    assert titan.ranks("llama3", "--training.steps", "3", ranks=2, folder=folder)[0] == [0, 0]
    assert [path.name for path in (folder / "checkpoints").glob("step-*")] == ["step-3"]

    codes, log = titan.ranks("llama3", "--training.steps", "5", ranks=4, folder=folder)
    assert codes == [0] * 4, log
    assert "Training starts at step 4" in log
    assert "saves are synchronous" in log
    assert (folder / "checkpoints" / "step-5" / ".metadata").is_file()

    refused = {
        ("--training.global-batch-size", "8"): "training.global_batch_size=8 differs",
        ("--training.seq-len", "16"): "training.seq_len=16 differs",
        ("--training.steps", "4"): "training.steps=4: legal is at least 5",
        ("--dataloader.dataset-path", "other"): "dataloader.dataset_path='other' differs",
    }
    for options, words in refused.items():
        codes, log = titan.ranks("llama3", *options, ranks=1, folder=folder)
        assert codes == [1]
        assert words in log

    (folder / "out").mkdir(exist_ok=True)
    (folder / "checkpoints").rename(folder / "out" / "checkpoint")
    codes, log = titan.ranks(
        *("plain", "--training.steps", "6", "--checkpoint.exclude-from-loading", "dataloader"),
        ranks=2,
        folder=folder,
    )
    assert codes == [0, 0], log
    assert "Training starts at step 6" in log


def test_torchtitans_own_loader_needs_as_many_ranks(titan: TitanLaunch, tmp_path: Path) -> None:
    folder = shared(titan, tmp_path / "own")
    assert titan.ranks("plain", "--training.steps", "3", ranks=2, folder=folder)[0] == [0, 0]
    codes, log = titan.ranks("plain", "--training.steps", "4", ranks=4, folder=folder)
    assert any(codes)
    assert "Missing key in checkpoint state_dict: dataloader.dp_rank_2" in log


def test_layouts_are_listed_without_ranks(titan: TitanLaunch) -> None:
    code, text = titan.layouts(
        "llama3", "--world-size", "6", "--json", "--training.disable-cuda-graphs"
    )
    found = json.loads(text)
    assert code == 0
    assert (found["world_size"], found["global_batch_size"]) == (6, 12)
    sharded = {"dp_replicate": 1, "dp_shard": 6, "cp": 1, "tp": 1, "pp": 1, "ep": 1}
    batch = {"micro_batch_size": 2, "accumulation_steps": 1, "padded_rows": 0}
    assert sharded | batch in found["layouts"]
    assert all(layout["cp"] == layout["pp"] == layout["ep"] == 1 for layout in found["layouts"])
    assert {layout["tp"] for layout in found["layouts"]} == {1, 2}, "3 does not divide the heads"

    code, text = titan.layouts("llama3", "--world-size", "5")
    assert code == 0
    assert text.splitlines()[0].split()[:3] == ["dp_replicate", "dp_shard", "cp"]
    code, text = titan.layouts("llama3", "--world-size", "2", "3", "--toml")
    assert code == 0
    layouts = tomllib.loads(text)["program"]["layouts"]
    assert layouts[0]["arguments"]["parallelism.data_parallel_shard_degree"] in {2, 3}
    code, text = titan.layouts("deepseek_v3", "--world-size", "5")
    assert code == 1
    assert "the nearest legal numbers are 4 and 6" in text


def shared(titan: TitanLaunch, folder: Path) -> Path:
    """Make a working directory with the same data sets and tokenizer."""
    folder.mkdir()
    for name in ("tests", "other", "tokenizer"):
        (folder / name).symlink_to(titan.folder / name)
    return folder
