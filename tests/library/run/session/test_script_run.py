"""The run of a script: in a job it writes records, outside of a job it does nothing."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from trainyard.data import merge_digests, order_digest
from trainyard.protocol.record_parser import parse_record
from trainyard.run.directory import Phase
from trainyard.run.metric_names import is_legal, is_storable, legal_name
from trainyard.run.records import Heartbeat, MetricRecord
from trainyard.run.session import Run
from trainyard.run.session.process_place import ProcessPlace
from trainyard.run.session.session_writer import MAX_VALUES

LIBRARY = Path(__file__).parents[4] / "library"
ALONE = ProcessPlace()


def records(folder: Path) -> list[MetricRecord]:
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    return [parse_record(MetricRecord, line) for line in lines]


def run_script(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a bare interpreter, which exits by itself."""
    head = f"import sys; sys.path.insert(0, {str(LIBRARY)!r})\n"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", head + code],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_values_of_rank_0_become_records_in_their_order(tmp_path: Path) -> None:
    run = Run(tmp_path, ALONE)
    run.log({"train/loss": 2.5, "val acc (top 5)": True}, step=1)
    run.log({"train/loss": math.nan, "grad": -math.inf}, step=2)
    run.close()
    first, second = records(tmp_path)
    assert (first.step, first.values) == (1, {"train/loss": 2.5, "val acc (top 5)": 1.0})
    assert math.isnan(second.values["train/loss"])
    assert second.values["grad"] == -math.inf


def test_a_bare_script_writes_the_rest_at_its_exit(tmp_path: Path) -> None:
    ended = run_script(
        "import trainyard\n"
        "run = trainyard.init()\n"
        "assert run is trainyard.init() and run.in_job\n"
        "for step in range(1, 101): trainyard.log({'loss': step}, step=step)\n"
        "raise SystemExit(3)",
        TRAINYARD_RUN=str(tmp_path),
    )
    assert (ended.returncode, ended.stderr) == (3, "")
    assert [record.values["loss"] for record in records(tmp_path)] == list(range(1, 101))


def test_a_script_that_fails_writes_the_rest_as_well(tmp_path: Path) -> None:
    ended = run_script(
        "import trainyard\ntrainyard.log({'loss': 1}, step=1)\nraise RuntimeError('mine')",
        TRAINYARD_RUN=str(tmp_path),
    )
    assert ended.returncode == 1
    assert len(records(tmp_path)) == 1


def test_outside_of_a_job_the_same_script_runs_and_writes_nothing(tmp_path: Path) -> None:
    ended = run_script(
        "import os, sys, threading, trainyard\n"
        "run = trainyard.init()\n"
        "run.log({'loss': 1.0}, step=1); run.progress(1); run.flush()\n"
        "assert not run.in_job and run.directory is None and dict(run.config) == {}\n"
        "assert (run.rank, run.world_size, run.local_rank) == (0, 1, 0)\n"
        "assert threading.active_count() == 1\n"
        f"assert not os.listdir({str(tmp_path)!r})\n"
        "outside = {name.partition('.')[0] for name in sys.modules} - {'trainyard', '__main__'}\n"
        "assert not outside - sys.stdlib_module_names, outside"
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_config_is_the_arguments_of_the_program(tmp_path: Path) -> None:
    spec = {"name": "mine", "program": {"arguments": {"lr": 0.1, "wide": True}}}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    (tmp_path / "attempt.json").write_text(json.dumps({"job_id": "abc", "attempt": 2}))
    run = Run(tmp_path, ALONE)
    assert (run.name, run.job_id, run.attempt) == ("mine", "abc", 2)
    assert run.config == {"lr": 0.1, "wide": True}


def test_a_missing_run_directory_is_named(tmp_path: Path) -> None:
    ended = run_script("import trainyard; trainyard.init()", TRAINYARD_RUN=str(tmp_path / "gone"))
    assert "ValueError: TRAINYARD_RUN=" in ended.stderr
    assert "is no folder" in ended.stderr


# ---- processes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, ProcessPlace(0, 1, 0)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, ProcessPlace(3, 4, 1)),
        ({"NODE_RANK": "1", "NNODES": "2", "NPROC_PER_NODE": "8"}, ProcessPlace(1, 2, 0)),
        # A command that starts torchrun itself.
        (
            {"NODE_RANK": "1", "NNODES": "2", "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"},
            ProcessPlace(5, 8, 1),
        ),
        ({"RANK": "3"}, ProcessPlace(0, 1, 0)),
    ],
)
def test_rank_and_size_come_from_the_launcher(
    variables: dict[str, str], place: ProcessPlace
) -> None:
    assert ProcessPlace.of(variables) == place


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK='4': a whole number from 0 to 3 is legal"),
        ({"RANK": "x", "WORLD_SIZE": "4"}, "RANK='x': a whole number from 0 to 3 is legal"),
        ({"NODE_RANK": "0", "NNODES": "0"}, "NNODES='0': a whole number from 1 to 100000"),
    ],
)
def test_a_place_that_cannot_be_is_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProcessPlace.of(variables)


def test_a_forked_worker_of_a_loader_writes_nothing_and_has_no_thread(tmp_path: Path) -> None:
    run = Run(tmp_path, ALONE)
    run.log({"loss": 1.0}, step=1)
    run.flush()
    pid = os.fork()
    if pid == 0:
        run.log({"loss": 2.0}, step=2)
        run.progress(2)
        run.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    run.log({"loss": 3.0}, step=3)
    run.close()
    assert [record.step for record in records(tmp_path)] == [1, 3]
    assert not (tmp_path / "heartbeat.json").exists()


def test_each_rank_has_a_file_of_its_own(tmp_path: Path) -> None:
    for rank in (0, 1):
        run = Run(tmp_path, ProcessPlace(rank, 2, rank))
        run.log({"loss": rank}, step=1)
        run.log({"gpu": rank}, step=1, per_rank=True)
        run.close()
    (tmp_path / "metrics" / "rank-1.jsonl").rename(tmp_path / "other")
    found = {one for record in records(tmp_path) for one in record.values.items()}
    assert found == {("loss", 0.0), ("gpu/rank-0", 0.0)}
    (tmp_path / "other").rename(tmp_path / "metrics.jsonl")
    found = {one for record in records(tmp_path) for one in record.values.items()}
    assert found == {("loss", 1.0), ("gpu/rank-1", 1.0)}
    assert {record.ranks for record in records(tmp_path)} == {2}


def test_a_name_has_one_value_a_step_and_its_steps_rise(tmp_path: Path) -> None:
    run = Run(tmp_path, ALONE)
    for step, value in ((1, 1.0), (1, 2.0), (3, 3.0), (2, 4.0)):
        run.log({"loss": value}, step=step)
    run.close()
    kept = [(one.step, one.values) for one in records(tmp_path) if one.values]
    assert kept == [(1, {"loss": 1.0}), (3, {"loss": 3.0})]


def test_a_refused_call_logs_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    run = Run(tmp_path, ALONE)
    with pytest.raises(TypeError):
        run.log({"loss": 1.0, "accuracy": None}, step=1)  # type: ignore[dict-item]
    run.log({"loss": 1.0, "accuracy": 0.5}, step=1)
    run.close()
    assert [one.values for one in records(tmp_path)] == [{"loss": 1.0, "accuracy": 0.5}]


def test_the_digests_of_ranks_merge_to_that_of_one(tmp_path: Path) -> None:
    ids, merged = ["a", "b", "c", "d"], []
    for size in (1, 2, 3):
        digests = []
        for rank in range(size):
            folder = tmp_path / f"{size}-{rank}"
            folder.mkdir()
            run = Run(folder, ProcessPlace(rank, size, rank))
            run.consumed(5, ids[rank::size], range(rank, 4, size))
            run.close()
            name = "metrics.jsonl" if rank == 0 else f"metrics/rank-{rank}.jsonl"
            digests.append(json.loads((folder / name).read_bytes())["data_digest"])
        merged.append(merge_digests(digests))
    assert set(merged) == {order_digest(range(4), ids)}


def test_without_positions_a_digest_is_of_the_samples_of_its_step(tmp_path: Path) -> None:
    digests: list[str | None] = []
    for step, ids in ((1, [1, 2]), (1, [2, 1]), (2, [1, 2])):
        folder = tmp_path / f"{len(digests)}"
        folder.mkdir()
        run = Run(folder, ALONE)
        run.consumed(step, ids)
        run.close()
        digests.append(records(folder)[0].data_digest)
    assert digests[0] == digests[1] != digests[2]


# ---- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: run.log({1: 1.0}, step=1), "metric name 1 is int; legal: text"),
        (lambda run: run.log({"loss": "high"}, step=1), "'loss' is no number but str"),
        (lambda run: run.log({"loss": 1.0}, step=-1), "step=-1 must be from 0 to 1,000,000,000"),
        (lambda run: run.log({"loss": 1.0}, step=1.5), "step=1.5 must be a whole number"),
        (lambda run: (run.consumed(1, [1]), run.consumed(1, [2])), "step 1 was given already"),
        (lambda run: run.consumed(1, [1.5]), "float"),
        (lambda run: run.consumed(1, [1], [1, 2]), "argument"),
        (lambda run: run.progress(1, total=-1), "total=-1"),
        (lambda run: run.progress(10**10), "step=10000000000"),
    ],
)
def test_what_cannot_be_stored_is_refused_outside_of_a_job_too(
    call: Callable[[Run], object], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message.replace("(", r"\(")):
        call(Run(None, ALONE))


@pytest.mark.parametrize(
    "name",
    [
        *("train/loss", "a b", "größe", "9" * 256, "x%%", "损失/验证", "acc@1 (top)", "_x", "★"),
        *("∇θ/norm", "→x", "loss🔥", "🔥\ufe0f", "👩\u200d🔬/loss", "\u0645\u200c\u06cc", "שלום"),
        *("क\u200dष", "é", "e\u0301", "a?b=c&d#e", "a%2Fb", "a/../b", "x\\y"),
    ],
)
def test_a_printable_name_of_any_script_stays_as_it_is(name: str) -> None:
    assert is_legal(name)
    assert legal_name(name) == name


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("a,,b", "a_b_"),
        ("a\tb\n", "a_b__"),
        ("loss, ", "loss_ _"),
        ("  loss ", "loss _"),
        ("@train/loss", "train/loss_"),
        ("a\u200bb", "a_b_"),
        ("\ud800x", "x_"),
        ("train/loss,", "train/loss__"),
        ("", "_"),
        ("★,", "★__"),
        ("\u202eabc", "abc_"),
        ("a\u200db", "a_b_"),
        ("损\u200d", "损__"),
        ("\uff1dA1", "A1_"),
        ("\u0301x", "x_"),
        ("=🔥", "🔥_"),
        ("x" * 257, "x" * 247 + "_"),
    ],
)
def test_another_name_becomes_legal_and_keeps_apart(name: str, begins: str) -> None:
    assert not is_legal(name)
    legal = legal_name(name)
    assert is_legal(legal)
    assert is_storable(legal)
    assert re.fullmatch(f"{re.escape(begins)}[0-9a-f]{{8}}", legal)
    assert legal_name(name + "!") != legal


def test_what_is_cut_stays_apart() -> None:
    first, second = (legal_name("x" * 256 + end) for end in "ab")
    assert first != second
    assert len(first) == len(second) == 256


def test_values_after_the_first_two_thousand_are_left_out_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path, ALONE)
    values = {f"layer {number}": float(number) for number in range(2003)}
    for step in (1, 2):
        run.log(values, step=step)
    run.close()
    stored = records(tmp_path)
    assert [(record.step, len(record.values)) for record in stored] == [(1, 500)] * 4 + [
        (2, 500)
    ] * 4
    (warning,) = [record.message for record in caplog.records]
    assert warning == (
        "log() with 2,003 values: those after the first 2,000 are left out, 'layer 2000' and on"
    )


def test_whole_numbers_of_numpy_and_torch_are_steps(tmp_path: Path) -> None:
    run = Run(tmp_path, ALONE)
    run.progress(np.int32(1), total=np.int64(9))
    run.should_save(np.uint8(1))
    run.log({"loss": 1.0}, step=np.int64(1))
    run.log({"loss": 2.0}, step=torch.tensor(2))
    run.consumed(np.int64(3), np.array([1, 2]), torch.tensor([0, 1]))
    run.close()
    stored = [(record.step, record.data_digest) for record in records(tmp_path)]
    assert stored == [(1, None), (2, None), (3, order_digest([0, 1], [1, 2]))]


def test_names_that_differ_have_series_of_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path, ALONE)
    values = {"loss": 3.0, "loss_ж": 1.0, "loss_β": 2.0, "acc@1": 0.1, "acc 1": 0.2, "acc_1": 0.3}
    for step in (1, 2):
        run.log(values | {"@loss": 5.0}, step=step)
    run.close()
    for record in records(tmp_path):
        assert record.values == values | {legal_name("@loss"): 5.0}
    (warning,) = [record.message for record in caplog.records]
    assert warning.startswith(f"metric '@loss' is stored as {legal_name('@loss')!r}: a name has 1")


def test_values_of_one_name_on_several_ranks_stay_apart(tmp_path: Path) -> None:
    run = Run(tmp_path, ALONE)
    run.log({"größe": 1.0}, step=1, per_rank=True)
    run.close()
    assert records(tmp_path)[0].values == {"größe/rank-0": 1.0}


def test_records_above_the_limit_are_dropped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "metrics.jsonl").mkdir()  # no write succeeds
    run = Run(tmp_path, ALONE)
    values = dict.fromkeys(map(str, range(1996)), 0.0)
    for step in range(MAX_VALUES // 2000 + 2):
        run.log(values, step=step)
    (tmp_path / "metrics.jsonl").rmdir()
    run.close()
    assert {record.step for record in records(tmp_path)} == set(range(100))
    assert "8 records of metrics were dropped" in caplog.text


def test_training_goes_on_while_the_disk_is_full_and_nothing_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    run = Run(tmp_path, ALONE)
    run.log({"loss": 1.0}, step=1)
    run.flush()
    assert "metrics wait for the disk" in caplog.text
    (tmp_path / "metrics.jsonl").rmdir()
    run.log({"loss": 2.0}, step=2)
    run.close()
    assert [record.step for record in records(tmp_path)] == [1, 2]


# ---- progress -----------------------------------------------------------------------------------


def test_progress_becomes_the_heartbeat_of_the_node(tmp_path: Path) -> None:
    run = Run(tmp_path, ALONE)
    run.progress(7)
    run.progress(8)
    run.flush()
    beat = parse_record(Heartbeat, (tmp_path / "heartbeat.json").read_bytes())
    assert (beat.step, beat.phase) == (8, Phase.TRAINING)


def test_other_processes_of_a_node_write_no_heartbeat(tmp_path: Path) -> None:
    run = Run(tmp_path, ProcessPlace(1, 2, 1))
    run.progress(7)
    run.close()
    assert not (tmp_path / "heartbeat.json").exists()
