"""Learning from ended attempts, on both databases, and the resulting plans."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from sqlalchemy import delete as delete_rows
from sqlalchemy import func, select, update

from server.app.periodic_tasks import TASKS
from server.cluster.nodes.predictor import predictor_of
from server.core.context import Context
from server.core.database.column_types import StoredRecord
from server.core.database.metric_and_log_tables import shells
from server.core.database.slot_tables import calibrations, measured_runs
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.planning import plan_job
from server.jobs.jobs.resume import options
from server.jobs.jobs.service import delete
from server.jobs.shells.service import open_shell
from server.telemetry.calibration import store
from server.telemetry.calibration.keeper import AFTER_END, LEAST_POINTS, CalibrationKeeper
from server.telemetry.calibration.store import StoredRun, read_calibrations
from server.telemetry.metrics.points import Points
from server.telemetry.metrics.store import store_points
from tests.actors import ADA, ADMIN
from tests.server.harness import BRINGS_CODE, Harness
from tests.server.statements import query_plan
from trainyard.planner.results import Plan
from trainyard.planner.speed.calibrate import MARGIN_FROM, MeasuredRun, calibrate
from trainyard.planner.speed.rates import Calibration
from trainyard.protocol.shell_sessions.views import ShellRequest
from trainyard.run.failures import FailureReason
from trainyard.spec.job import JobSpec, parse_job_spec

STEP, DATA, PEAK = "perf/step_seconds", "perf/data_seconds", "memory/peak_rss_gib"


def ended(
    harness: Harness,
    context: Context,
    *,
    seconds: float = 0.5,
    peak: float = 0.5,
    points: int = 20,
    outcome: str = "succeeded",
    reason: FailureReason | None = None,
    command: bool = False,
    **sections: Any,
) -> str:
    """Run a job with steps of a given length, and end it; return its id."""
    job_id, supervisors = harness.running(step=points, training={"steps": points}, **sections)
    values = {STEP: [9.0] + [max(seconds + 0.1, 5e-324)] * (points - 1), DATA: [0.1] * points}
    values[PEAK] = [peak] * points
    began = harness.clock.now().timestamp()
    by_name = {
        name: Points.of(range(1, points + 1), [began + i for i in range(points)], numbers)
        for name, numbers in values.items()
    }
    with context.database.write() as connection:
        store_points(connection, harness.attempt(job_id).id, by_name)
    if command:
        open_shell(context, job_id, ShellRequest(argv=("ls",)), actor=ADMIN)
    for supervisor in supervisors:
        supervisor.end(outcome, reason)
    harness.clock.advance(AFTER_END.total_seconds() + 1)
    return job_id


def learned(context: Context) -> list[Calibration]:
    with context.database.read() as connection:
        return [each.calibration for each in read_calibrations(connection)]


def planned(context: Context, document: dict[str, Any] | None = None) -> Plan:
    found = plan_job(context, parse_job_spec(document or {}), actor=ADA)
    assert isinstance(found, Plan)
    return found


def next_turn(harness: Harness, keeper: CalibrationKeeper) -> None:
    harness.clock.advance(TASKS["calibrate"].every_seconds)
    keeper.run()


def test_an_attempt_that_ended_is_learned_from_once(harness: Harness, context: Context) -> None:
    harness.add_node()
    before = planned(context)
    assert before.speed is not None
    assert before.calibration is not None
    assert before.calibration.runs == 0
    ended(harness, context, seconds=0.5)
    keeper = CalibrationKeeper(context)
    keeper.run()
    next_turn(harness, keeper)
    CalibrationKeeper(context).run()  # of a restarted server
    (found,) = learned(context)
    assert (found.device_name, found.runs) == ("test", 1)
    after = planned(context)
    assert after.calibration == found
    # The prediction for the same job is its measured time, without data waits and first step.
    assert after.speed is not None
    assert after.speed.step_seconds == pytest.approx(0.5, rel=0.1)
    assert before.speed.step_seconds != pytest.approx(0.5, rel=0.1)
    assert after.speed.memory_bytes == pytest.approx(0.5 * 2**30, rel=0.1)
    assert found.accuracy is not None
    assert (found.accuracy.fits_judged, found.accuracy.fits_wrong) == (1, 0)


def test_layouts_of_a_plan_and_of_a_resume_have_their_speed(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    resources = {"world_size": 4}
    plan = planned(context, {"resources": resources})
    times = [option.speed.step_seconds for option in plan.ranked if option.speed is not None]
    assert len(times) == len(plan.ranked) > 1
    assert plan.ranked_of >= len(plan.ranked)
    assert times[:-1] == sorted(times[:-1])  # the last may be the job's own
    job_id = ended(harness, context, outcome="stopped")
    found = options(context, job_id, scope=SYSTEM_SCOPE)
    assert found.calibration == plan.calibration
    for option in found.options:
        assert all(layout.speed is not None for layout in option.layouts)


def test_a_short_attempt_and_a_program_teach_nothing(harness: Harness, context: Context) -> None:
    harness.add_node()
    ended(harness, context, points=LEAST_POINTS)
    CalibrationKeeper(context).run()
    assert learned(context) == []


@BRINGS_CODE
@pytest.mark.parametrize(
    "sections",
    [{"env": {"OWN_SETTING": "1"}}, {"model": {"factory": "own:build", "code": "data:own"}}],
)
def test_an_attempt_that_ran_code_of_its_job_teaches_nothing(
    harness: Harness, context: Context, sections: dict[str, Any]
) -> None:
    harness.add_node()
    ended(harness, context, **sections)
    CalibrationKeeper(context).run()
    assert learned(context) == []


@BRINGS_CODE
def test_an_attempt_in_which_a_person_ran_a_command_teaches_nothing(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    job_id = ended(harness, context, command=True)
    with context.database.write() as connection:
        connection.execute(delete_rows(shells))  # like two days later
    other = ended(harness, context)
    CalibrationKeeper(context).run()
    with context.database.read() as connection:
        taught = connection.scalars(select(measured_runs.c.attempt_id)).all()
    assert taught == [harness.attempt(other).id]
    assert harness.attempt(job_id).id not in taught


def test_an_attempt_that_ran_out_of_memory_counts_as_a_wrong_fit(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    ended(harness, context, points=2, outcome="failed", reason=FailureReason.OUT_OF_MEMORY)
    CalibrationKeeper(context).run()
    (found,) = learned(context)
    assert found.accuracy is not None
    assert (found.accuracy.fits_judged, found.accuracy.fits_wrong) == (1, 1)
    assert found.accuracy.step_median is None


@pytest.mark.parametrize("peak", [40.0, 9e11])
def test_a_peak_that_cannot_be_does_not_decide_for_other_jobs(
    harness: Harness, context: Context, peak: float
) -> None:
    harness.add_node()  # with 32 GiB
    keeper = CalibrationKeeper(context)
    for _ in range(MARGIN_FROM):
        ended(harness, context)
        next_turn(harness, keeper)
    before = planned(context)
    ended(harness, context, peak=peak)
    next_turn(harness, keeper)
    after = planned(context)
    assert after.calibration is not None
    assert after.calibration.memory_margin < 2
    assert after.fits is before.fits is True


def test_a_step_that_cannot_be_keeps_no_other_run_from_being_learned_from(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    ended(harness, context)
    ended(harness, context, seconds=5e-324 - 0.1)
    CalibrationKeeper(context).run()
    (found,) = learned(context)
    assert found.runs == 1


def test_other_writers_do_not_wait_for_a_fit(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.add_node()
    ended(harness, context)

    def fit(*given: Any) -> Calibration:
        harness.submit()  # on SQLite it would wait for the transaction, and fail
        return calibrate(*given)

    monkeypatch.setattr(store, "calibrate", fit)
    CalibrationKeeper(context).run()
    (found,) = learned(context)
    assert found.runs == 1


def test_runs_outlive_their_job_and_the_oldest_are_forgotten(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_RUNS", 2)
    harness.add_node()
    keeper = CalibrationKeeper(context)
    jobs = []
    for _ in range(3):
        jobs.append(ended(harness, context))
        next_turn(harness, keeper)
    delete(context, jobs[-1], actor=ADA, checkpoints="keep")
    (found,) = learned(context)
    assert found.runs == 2
    with context.database.read() as connection:
        assert connection.scalar(select(func.count()).select_from(measured_runs)) == 2


def test_each_kind_of_hardware_is_learned_for_itself(harness: Harness, context: Context) -> None:
    harness.add_node("slow", device_name="slow", slots=2)
    ended(harness, context, seconds=8.0)
    CalibrationKeeper(context).run()
    harness.add_node("quick", device_name="quick", slots=4)
    predicted = planned(context)
    assert predicted.calibration is not None
    assert (predicted.calibration.device_name, predicted.calibration.runs) == ("quick", 0)


def test_an_unknown_gpu_is_predicted_after_its_first_run(
    harness: Harness, context: Context
) -> None:
    harness.add_node(device="cuda", device_name="a GPU")
    assert planned(context).speed is None
    assert planned(context).ranked == ()
    ended(harness, context, seconds=0.2)
    CalibrationKeeper(context).run()
    speed = planned(context).speed
    assert speed is not None
    assert speed.step_seconds == pytest.approx(0.2, rel=0.1)


def test_what_a_later_version_stored_counts_as_absent(harness: Harness, context: Context) -> None:
    harness.add_node()
    ended(harness, context)
    CalibrationKeeper(context).run()
    spoiled = StoredRecord(Calibration, '{"later": 1}')
    with context.database.write() as connection:
        connection.execute(update(calibrations).values(fitted=spoiled))
    assert learned(context) == []
    found = planned(context).calibration
    assert found is not None
    assert found.runs == 0


def test_a_program_has_no_prediction(harness: Harness, context: Context) -> None:
    harness.add_node()
    spec: JobSpec = parse_job_spec({"program": {"command": ["train.py"]}})
    with context.database.read() as connection:
        assert predictor_of(connection, spec) is None


def test_attempts_that_ended_long_ago_are_not_read_again(context: Context) -> None:
    if not context.database.is_sqlite:  # PostgreSQL scans tables of a few rows
        return
    plan = query_plan(context, "attempts", CalibrationKeeper(context).run)
    assert "ix_attempts_ended_at (ended_at>? AND ended_at<?)" in plan[0]


def rows(*groups: tuple[int, str | None, str | None, str | None]) -> list[StoredRun]:
    """Return rows, the newest first, from groups of count, job, person and node."""
    return [
        StoredRun(f"{job}-{number}", job, person, node, StoredRecord(MeasuredRun, "{}"))
        for count, job, person, node in groups
        for number in range(count)
    ]


def kept(found: list[StoredRun], name: str) -> Counter[str]:
    return Counter(getattr(row, name) for row in store.bounded(found))


def test_one_job_person_or_node_has_a_bounded_part_of_the_runs() -> None:
    of_eve = [(20, f"eve-{number}", "eve", "n1") for number in range(20)]
    of_ada = [(1, f"ada-{number}", "ada", f"n{number}") for number in range(200)]
    found = rows(*of_eve, *of_ada)
    assert kept(found, "submitter") == {"eve": 60, "ada": 60}
    assert max(kept(found, "job_id").values()) == 12
    assert kept(rows(*of_eve), "submitter") == {"eve": 120}, "alone all of it may be hers"
    on_one = rows(*((1, f"j{n}", f"p{n}", "n1") for n in range(200)), (1, "j", "p", "n2"))
    assert kept(on_one, "node") == {"n1": 60, "n2": 1}
    assert kept(rows((150, "j", "p", "n")), "job_id") == {"j": 120}


def test_rows_of_before_count_for_none() -> None:
    assert len(store.bounded(rows((130, None, None, None), (5, "j", "p", "n")))) == 120
