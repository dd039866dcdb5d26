"""Hostile figures of ranks and nodes: shown unchanged, and excluded from computations."""

from __future__ import annotations

import math

import pytest

from server.core.context import Context
from server.core.lifecycle import lock_job
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.checkpoints.catalog import record_commits, record_stall
from server.telemetry.advice.observed import advice
from server.telemetry.goodput.queries import goodput_view
from server.telemetry.metrics.charts import chart
from server.telemetry.metrics.lineage_values import measure
from tests.actors import ADA
from tests.manifests import make_manifest, state_at
from tests.server.harness import Harness
from tests.server.reports import chunk, metric_lines, send
from trainyard.protocol.goodput import TimeCategory
from trainyard.protocol.manifest import ManifestFile, SaveSettled
from trainyard.protocol.node_samples import AcceleratorSample
from trainyard.run.directory import Phase
from trainyard.run.figures import duration, in_range
from trainyard.run.records import Heartbeat

RATE, STEP = "perf__tokens_per_second_per_device", "perf__step_seconds"
INDEX = ManifestFile(path="index.json", size=1, xxh3_128="d" * 32)
HOSTILE = [-1e300, -1.0, 1e300, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_throughput_is_in_range_or_absent_and_its_curve_as_it_came(
    harness: Harness, value: float
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running()
    lines = metric_lines(1, 1, **{RATE: 5.0})
    send(harness.context, supervisor, chunk("metrics", lines))
    assert harness.job(job_id).progress.tokens_per_second == 5.0
    more = metric_lines(2, 2, **{RATE: value})
    send(harness.context, supervisor, chunk("metrics", more, start=len(lines)))
    assert harness.job(job_id).progress.tokens_per_second is None
    name = RATE.replace("__", "/")
    (curve,) = chart(harness.context, job_id, [name], max_points=100, scope=SYSTEM_SCOPE).curves
    assert (curve.count, curve.non_finite) == ([1, 1], [0, int(not math.isfinite(value))])


@pytest.mark.parametrize("value", HOSTILE)
def test_the_time_left_comes_of_durations_alone(harness: Harness, value: float) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running()
    lines = metric_lines(1, 10, **{STEP: value})
    send(harness.context, supervisor, chunk("metrics", lines))
    assert harness.job(job_id).progress.seconds_left is None
    more = metric_lines(11, 20, **{STEP: 2.0})
    send(harness.context, supervisor, chunk("metrics", more, start=len(lines)))
    progress = harness.job(job_id).progress
    assert progress.seconds_left == 2.0 * (progress.steps - 20)


def test_a_heartbeat_takes_no_step_that_the_job_has_not(harness: Harness) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running()
    beyond = Heartbeat(phase=Phase.TRAINING, step=10**9, time=1.0)
    send(harness.context, supervisor, heartbeat=beyond)
    progress = harness.job(job_id).progress
    assert progress.step == progress.steps == harness.attempt(job_id).last_step


@pytest.mark.parametrize("value", HOSTILE)
def test_a_negative_duration_takes_no_time_of_other_steps(harness: Harness, value: float) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running()
    harness.clock.advance(3600)
    lines = metric_lines(1, 10, **{STEP: 1.0}) + metric_lines(11, 11, **{STEP: value})
    send(harness.context, supervisor, chunk("metrics", lines))
    found = goodput_view(harness.context, job_id, scope=SYSTEM_SCOPE)
    spent = {each.category: each.milliseconds for each in found.categories}
    assert spent[TimeCategory.PRODUCTIVE] == 10_000
    assert advice(harness.context, job_id, scope=SYSTEM_SCOPE) is not None


@pytest.mark.parametrize("value", [-5.0, 1e300])
def test_a_checkpoint_is_kept_whatever_its_save_took(
    context: Context, harness: Harness, value: float
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running(step=9)
    saved = make_manifest(job_id, 1, state_at(4), save_seconds=value, files=(INDEX,))
    with context.database.write() as connection:
        lock_job(connection, job_id)
        attempt_id = supervisor.attempt_id
        record_commits(
            context,
            connection,
            attempt_id=attempt_id,
            manifests=[saved],
            actor=ADA,
            measure=measure,
        )
        settled = SaveSettled(checkpoint_id=saved.checkpoint_id, stall_seconds=1e12)
        assert record_stall(connection, attempt_id, settled)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e300])
def test_a_sample_of_a_device_has_no_number_beyond_its_range(value: float) -> None:
    sample = AcceleratorSample(uuid="gpu", power_watts=value, temperature_celsius=55.0)
    assert (sample.power_watts, sample.temperature_celsius) == (None, 55.0)


def test_a_figure_is_finite_and_in_range_or_absent() -> None:
    assert [duration(value) for value in HOSTILE] == [None] * len(HOSTILE)
    assert (duration(0.0), duration(2.5), duration(None)) == (0.0, 2.5, None)
    assert in_range(9.0, below=10) == 9.0
    assert in_range(10.0, below=10) is None
