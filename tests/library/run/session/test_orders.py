"""Orders in a script, with one process and with several."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.protocol.record_parser import parse_record
from trainyard.run.control_files import answer_file, order_stop, post_request
from trainyard.run.directory import Phase, RunDirectory
from trainyard.run.records import Heartbeat, Request, RequestAnswer
from trainyard.run.session import Run
from trainyard.run.session.process_place import ProcessPlace

TWO = """
import sys
from pathlib import Path
import torch.distributed as dist
from trainyard.run.control_files import order_stop, post_request
from trainyard.run.directory import RunDirectory
from trainyard.run.records import Request
import trainyard
run = trainyard.init()
files = RunDirectory(run.directory)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=run.rank, world_size=2)
found = []
for step in range(1, 9):
    if run.rank == 0 and step == 2:
        post_request(files, "a", Request(kind="save"))
    if run.rank == 0 and step == 5:
        order_stop(files)
    # The order of the two calls changes: a request is handed out once all the same.
    stops = run.should_stop() if step % 2 else None
    saves = run.should_save(step)
    stops = run.should_stop() if stops is None else stops
    found.append((step, stops, saves))
print([step for step, _, saves in found if saves], [step for step, stops, _ in found if stops])
run.should_stop()
dist.barrier()
dist.destroy_process_group()
"""


def answer(folder: Path, request_id: str) -> RequestAnswer:
    path = answer_file(RunDirectory(folder), request_id)
    return parse_record(RequestAnswer, path.read_bytes())


def heartbeat(folder: Path) -> Heartbeat:
    return parse_record(Heartbeat, (folder / "heartbeat.json").read_bytes())


def test_one_process_reads_the_order_to_stop_at_once(tmp_path: Path) -> None:
    run = Run(tmp_path, ProcessPlace())
    assert not run.should_stop()
    order_stop(RunDirectory(tmp_path))
    assert run.should_stop()
    run.close()
    assert heartbeat(tmp_path).answers == ("stop",)


def test_a_save_is_handed_out_once_and_answered(tmp_path: Path) -> None:
    run = Run(tmp_path, ProcessPlace())
    assert not run.should_save(1)
    post_request(RunDirectory(tmp_path), "a", Request(kind="save"))
    post_request(RunDirectory(tmp_path), "b", Request(kind="profile"))
    assert not run.should_stop()
    assert [run.should_save(step) for step in (2, 3)] == [True, False]
    assert answer(tmp_path, "a") == RequestAnswer(
        ok=True, message="the program saves at step 2", step=2
    )
    request = run.request()
    assert request is not None
    assert (request.id, request.kind) == ("b", "profile")
    request.answer("no profiler", step=3, ok=False)
    assert run.request() is None
    assert not answer(tmp_path, "b").ok
    run.close()
    assert heartbeat(tmp_path).answers == ("memory_snapshot", "profile", "save", "stop")


def test_a_script_without_should_save_gets_saves_as_requests(tmp_path: Path) -> None:
    run = Run(tmp_path, ProcessPlace())
    post_request(RunDirectory(tmp_path), "a", Request(kind="save"))
    (tmp_path / "requests" / "b.json").write_text("damaged")
    request = run.request()
    assert request is not None
    assert request.kind == "save"


def test_two_ranks_get_one_answer_one_call_later(tmp_path: Path) -> None:
    (first, second) = _two_ranks(tmp_path)
    assert first == second
    saves, stops = first.split("] [")
    assert saves in ("[2", "[3")
    assert stops in ("5, 6, 7, 8]", "6, 7, 8]")
    assert answer(tmp_path, "a").ok


def _two_ranks(folder: Path) -> list[str]:
    """Run both ranks; return their outputs."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TWO, str(folder / "meeting")],
            env=os.environ
            | {"TRAINYARD_RUN": str(folder), "RANK": str(rank), "WORLD_SIZE": "2"}
            | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    printed = [rank.communicate(timeout=120)[0].strip() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return printed


def test_several_processes_without_torch_distributed_are_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, ProcessPlace(0, 2, 0))
    remedy = r"2 processes need one answer.*init_process_group"
    with pytest.raises(RuntimeError, match=remedy):
        run.should_stop()
    with pytest.raises(RuntimeError, match=remedy):
        run.should_save(1)


def test_outside_of_a_job_nothing_is_ordered() -> None:
    run = Run(None, ProcessPlace(0, 2, 0))
    assert (run.should_stop(), run.should_save(1), run.request()) == (False, False, None)


def test_a_phase_lasts_for_its_block(tmp_path: Path) -> None:
    run = Run(tmp_path, ProcessPlace())
    with run.phase("validating"):
        run.progress(3, total=10)
        run.flush()
        beat = heartbeat(tmp_path)
        assert (beat.phase, beat.step, beat.steps) == (Phase.VALIDATING, 3, 10)
    run.close()
    assert heartbeat(tmp_path).phase == Phase.TRAINING
    with pytest.raises(ValueError, match="phase 'idle': validating, saving"), run.phase("idle"):
        pass
