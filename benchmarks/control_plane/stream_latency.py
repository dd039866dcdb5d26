"""Time from a trainer's line of metrics to the event that shows it to a client of the stream.

Two real jobs on an embedded control plane: one with steps longer than the pause between reports, so
that each line has its own event, and one with many short steps that share events. A line
counts as received with the first event that names its step or a later one. It is written at the end
of its step, which is the time in the line.

    python -m benchmarks.control_plane.stream_latency [--slow-steps 120] [--quick-steps 2000]
"""

from __future__ import annotations

import argparse
import bisect
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.control_plane.stack import PACKAGES, Running, stack
from benchmarks.report import emit, percentile
from trainyard.client.sdk import Client
from trainyard.client.stream import Resync
from trainyard.protocol.record_parser import parse_record
from trainyard.protocol.rest.event_data import MetricsStored
from trainyard.run.records import MetricRecord

TARGET_SECONDS = 1.0
JOB_SECONDS = 900
LAST_EVENT_SECONDS = 30
# On one core a step lasts about a second with the one, and a hundredth of that with the other.
MODELS: dict[str, dict[str, Any]] = {
    "slow": {
        "model": {"dim": 256, "n_layers": 4, "n_heads": 8, "n_kv_heads": 4, "ffn_dim": 1024},
        "training": {"seq_len": 512, "global_batch_size": 4, "micro_batch_size": 4},
    },
    "quick": {
        "model": {"size": "debug"},
        "training": {"seq_len": 64, "global_batch_size": 2, "micro_batch_size": 2},
    },
}


class Listener:
    """A client of the stream: the arrival time of each `metrics` event of a job, and its step."""

    def __init__(self, yard: Client, job_id: str, last_step: int) -> None:
        self.steps: list[int] = []
        self.received_at: list[float] = []
        self._stream = yard.stream(job_id=job_id)
        next(self._stream)  # the connection is open
        self._last_step = last_step
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last step has arrived.

        Raises:
            TimeoutError: it did not arrive.
        """
        self._thread.join(LAST_EVENT_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError("the stream never brought the last step")

    def received(self, step: int) -> float:
        """Return the Unix time at which a client received a step."""
        return self.received_at[bisect.bisect_left(self.steps, step)]

    def _listen(self) -> None:
        for item in self._stream:
            if not isinstance(item, Resync) and isinstance(item.data, MetricsStored):
                self.received_at.append(time.time())
                self.steps.append(item.data.step)
                if self.steps[-1] >= self._last_step:
                    return


def measure(running: Running, *, pace: str, steps: int) -> bool:
    """Run a job, listen to it, and print the figure."""
    chosen = MODELS[pace]
    document = {
        "name": f"bench-{pace}",
        "model": chosen["model"],
        "training": {**chosen["training"], "steps": steps, "log_every_steps": 1},
        "resources": {"world_size": 1, "device": "cpu"},
    }
    job = running.yard.submit(document)
    listener = Listener(running.yard, job.id, steps)
    running.succeed(job, timeout=JOB_SECONDS)
    listener.wait()
    text = Path(running.run(job).metrics).read_text(encoding="utf-8")
    lines = [parse_record(MetricRecord, line) for line in text.splitlines()]
    latencies = [listener.received(line.step) - line.time for line in lines]
    assert len(latencies) == steps, f"{len(latencies)} lines of {steps} steps"
    return emit(
        f"stream_latency_{pace}_steps",
        figure=percentile(latencies, 0.95),
        unit="s (p95)",
        target=TARGET_SECONDS,
        at_least=False,
        packages=PACKAGES,
        median_seconds=round(percentile(latencies, 0.5), 3),
        longest_seconds=round(max(latencies), 3),
        step_seconds=round((lines[-1].time - lines[0].time) / (steps - 1), 3),
        lines=steps,
        events=len(listener.steps),
    )


def main() -> int:
    """Measure on an embedded control plane."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slow-steps", type=int, default=120)
    parser.add_argument("--quick-steps", type=int, default=2000)
    given = parser.parse_args()
    with stack() as running:
        passed = measure(running, pace="slow", steps=given.slow_steps)
        passed &= measure(running, pace="quick", steps=given.quick_steps)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
