"""The figures of strategies and saves: what they take from a job, and when they fail."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainyard.client.errors import InvalidRequestError
from trainyard.client.sdk import Client
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.rest.common import ProblemDetails
from trainyard.protocol.rest.event_data import Resumed
from trainyard.protocol.states import JobState
from trainyard.prove.bench import Bench, BenchKeys, CheckError, NotPossibleError
from trainyard.prove.figures import Figure
from trainyard.prove.rungs.compared_strategies import SPEED, strategy
from trainyard.prove.rungs.layouts import layout
from trainyard.prove.rungs.machine import probe
from trainyard.prove.rungs.saves import save_and_load


class Yard:
    """A server that runs every job at once, with the same values but for its losses."""

    def __init__(
        self, *, last_loss: dict[str, float] | None = None, memory_gib: float = 80
    ) -> None:
        self.submitted: list[dict[str, Any]] = []
        self.resumed: list[dict[str, Any]] = []
        self.load_seconds: float | None = 2.0
        self.write_seconds: float | None = 6.0
        self.verified = True
        self._last_loss = last_loss or {}
        self._memory = memory_gib

    def plan(self, document: dict[str, Any]) -> Any:
        if document.get("parallelism", {}).get("async_tp"):
            problem = ProblemDetails(title="no", status=422, detail="no NVLink", request_id="r")
            raise InvalidRequestError(problem)
        needed = {"8B": 100, "1B": 16, "debug": 1}[document["model"]["size"]]
        warning = SimpleNamespace(detail=f"needs {needed} GiB")
        return SimpleNamespace(fits=needed <= self._memory, warnings=[warning])

    def submit(self, document: dict[str, Any], *, idempotency_key: str) -> Any:
        self.submitted.append(document)
        return self.job(document["name"])

    def job(self, job_id: str) -> Any:
        attempt = SimpleNamespace(
            number=1 + len(self.resumed),
            layout_name="FSDP 2",
            failure=None,
            continuity=SimpleNamespace(ok=True),
        )
        return SimpleNamespace(
            id=job_id,
            name=job_id,
            state=JobState.SUCCEEDED,
            pending=None,
            reason="",
            current_attempt=attempt,
            progress=SimpleNamespace(step=4),
        )

    def resume(self, job_id: str, **wanted: Any) -> None:
        self.resumed.append(wanted)

    def metrics_csv(self, job_id: str, *, names: tuple[str, ...]) -> list[str]:
        rows = ["attempt,step,time,name,value"]
        for step in range(1, 9):
            loss = self._last_loss.get(job_id, 2.0) if step == 8 else 3.0
            speed = 1.0 if step <= 2 else 100.0 + step
            rows += [f"1,{step},0,train/loss,{loss}", f"1,{step},0,{SPEED},{speed}"]
            rows.append(f"1,{step},0,memory/peak_rss_gib,{step / 10}")
        return rows

    def checkpoints(self, job_id: str) -> list[Any]:
        def one(attempt: int, step: int) -> Any:
            return SimpleNamespace(
                id=f"c{step}", attempt=attempt, step=step, size=3e9, save_seconds=9.0,
                write_seconds=self.write_seconds,
            )  # fmt: skip

        return [one(2, 6), one(1, 4), one(1, 0)]

    def verify(self, checkpoint_id: str) -> Any:
        return SimpleNamespace(id="o")

    def wait_for_operation(self, operation_id: str, *, timeout: float) -> None:
        assert timeout > 0

    def checkpoint(self, checkpoint_id: str) -> Any:
        assert checkpoint_id == "c6", "the newest is verified"
        return SimpleNamespace(verification=SimpleNamespace(ok=self.verified))

    def events(self, job_id: str) -> list[Any]:
        data = Resumed(step=4, time=0.0, checkpoint_id="c4", load_seconds=self.load_seconds)
        return [
            SimpleNamespace(kind=EventKind.RUNNING, data=None),
            SimpleNamespace(kind=EventKind.RESUMED, data=data),
        ]


def bench(yard: Yard, folder: Path, *, slots: int = 2, device: Any = "cpu") -> Bench:
    return Bench(
        cast(Client, yard),
        slots=slots,
        device=device,
        keys=BenchKeys(own="k", reference="r"),
        folder=folder,
        deadline=math.inf,
    )


def held(figures: list[Figure]) -> dict[str, bool]:
    return {figure.name: figure.held for figure in figures if figure.bound}


def values(figures: list[Figure]) -> dict[str, Any]:
    return {figure.name: figure.value for figure in figures}


def test_a_strategy_has_its_speed_after_the_warm_up_and_its_peak(tmp_path: Path) -> None:
    found = strategy(bench(Yard(), tmp_path), name="FSDP", steps=8)
    assert values(found)["tokens_per_second_per_device"] == 105.5
    assert values(found)["peak_gib"] == 0.8
    assert held(found) == {"compared_after_steps": True, "final_loss_off": True}
    assert "mfu" not in values(found), "a CPU has no known peak"


@pytest.mark.parametrize(("loss", "holds"), [(2.001, True), (2.01, False), (math.nan, False)])
def test_a_loss_that_leaves_the_reference_fails(tmp_path: Path, loss: float, holds: bool) -> None:
    yard = Yard(last_loss={"prove-strategy-fsdp": loss})
    found = strategy(bench(yard, tmp_path), name="FSDP", steps=8)
    assert held(found) == {"compared_after_steps": True, "final_loss_off": holds}


def test_a_strategy_without_its_last_steps_fails(tmp_path: Path) -> None:
    found = strategy(bench(Yard(), tmp_path), name="FSDP", steps=9)
    assert values(found)["compared_after_steps"] == 8
    assert held(found) == {"compared_after_steps": False, "final_loss_off": True}


def test_the_first_strategy_is_the_reference_and_runs_once(tmp_path: Path) -> None:
    yard = Yard()
    found = strategy(bench(yard, tmp_path), name="one rank", steps=8)
    assert held(found) == {"compared_after_steps": True, "final_loss_off": True}
    assert [document["name"] for document in yard.submitted] == ["prove-strategy-one-rank"]


@pytest.mark.parametrize(("memory", "size"), [(141, "8B"), (80, "1B"), (8, "debug")])
def test_the_model_of_the_table_fits_into_the_slots(
    tmp_path: Path, memory: float, size: str
) -> None:
    yard = Yard(memory_gib=memory)
    made = bench(yard, tmp_path, slots=8, device="cuda")
    strategy(made, name="FSDP", steps=8)
    assert {document["model"]["size"] for document in yard.submitted} == {size}


@pytest.mark.parametrize(
    ("name", "device", "reason"),
    [
        ("3D", "cpu", "needs 8 devices, here are 4"),
        ("2D async", "cpu", "needs CUDA with symmetric memory"),
        ("2D async", "cuda", "no NVLink"),
    ],
)
def test_a_strategy_that_the_slots_do_not_allow_has_a_reason_and_no_job(
    tmp_path: Path, name: str, device: Any, reason: str
) -> None:
    yard = Yard()
    made = bench(yard, tmp_path, slots=4, device=device)
    with pytest.raises(NotPossibleError, match=f"^{reason}$"):
        strategy(made, name=name, steps=8)
    assert not made.commands
    assert not made.jobs
    assert not yard.submitted


def test_a_layout_that_the_planner_refuses_has_no_job(tmp_path: Path) -> None:
    yard = Yard(memory_gib=0.5)
    with pytest.raises(NotPossibleError, match=r"^needs 1 GiB$"):
        layout(bench(yard, tmp_path), name="fsdp-2", steps=8, total_steps=8)
    assert yard.submitted == []


def test_a_save_is_loaded_on_half_of_the_slots_and_verified(tmp_path: Path) -> None:
    yard = Yard()
    found = save_and_load(bench(yard, tmp_path, slots=4))
    assert yard.resumed == [{"world_size": 2, "steps": 6}]
    figures = values(found)
    assert figures["save_gb_per_second"] == pytest.approx(3 / figures["save_seconds"], rel=1e-5)
    assert figures["write_gb_per_second"] == 3 / figures["write_seconds"] == 0.5
    assert figures["load_gb_per_second"] == 3 / figures["load_seconds"] == 1.5
    assert all(held(found).values())
    assert held(found).keys() >= {"verified", "continuous", "write_gb_per_second"}


def test_a_save_without_the_times_of_its_ranks_is_judged_as_a_whole(tmp_path: Path) -> None:
    yard = Yard()
    yard.write_seconds = None
    found = save_and_load(bench(yard, tmp_path))
    assert values(found)["save_gb_per_second"] == pytest.approx(1 / 3, rel=1e-5)
    assert held(found)["save_gb_per_second"]
    assert "write_gb_per_second" not in values(found)


def test_the_commands_of_a_save_resume_and_verify_the_job_that_they_submit(tmp_path: Path) -> None:
    made = bench(Yard(), tmp_path, slots=4)
    save_and_load(made)
    assert [command.partition("  #")[0] for command in made.commands] == [
        f"trainyard submit {tmp_path}/specs/prove-saves.json",
        "trainyard resume @last --world-size 2 --steps 6",
        "trainyard checkpoints verify @last@step-6 --wait",
    ]


def test_a_damaged_checkpoint_and_a_slow_load_fail(tmp_path: Path) -> None:
    yard = Yard()
    yard.verified, yard.load_seconds = False, 3000.0
    found = held(save_and_load(bench(yard, tmp_path)))
    assert not found["verified"]
    assert not found["load_gb_per_second"]


def test_workers_that_do_not_report_the_load_are_no_failure(tmp_path: Path) -> None:
    yard = Yard()
    yard.load_seconds = None
    found = save_and_load(bench(yard, tmp_path))
    assert "not reported" in values(found)["load_seconds"]
    assert all(held(found).values())


def test_a_job_without_its_checkpoints_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard = Yard()
    monkeypatch.setattr(yard, "checkpoints", lambda job_id: [])
    with pytest.raises(CheckError, match="it has 0 checkpoints of 2"):
        save_and_load(bench(yard, tmp_path))


def test_a_save_beyond_the_deadline_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, cancelled = Yard(), list[str]()
    made = bench(yard, tmp_path)
    job = yard.job("prove-saves")
    job.state = JobState.RUNNING
    monkeypatch.setattr(yard, "job", lambda job_id: job)
    monkeypatch.setattr(
        yard, "cancel", lambda job_id, reason: cancelled.append(job_id), raising=False
    )
    monkeypatch.setattr(made, "_deadline", 0.0)
    with pytest.raises(CheckError, match="the time of the check is over"):
        save_and_load(made)
    assert cancelled == ["prove-saves"]


def test_more_slots_than_a_probe_has_series_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotPossibleError, match=r"slots=4096: a probe has 1 to 2000 ranks"):
        probe(bench(Yard(), tmp_path, slots=4096), seconds=120.0, disk_mib=64)
