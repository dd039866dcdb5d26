"""One job under one fault: what a fault may do to it, and how its end is judged."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.cluster import Cluster, Node
from tests.e2e.control_plane import Course, Run, assert_each_once, finished, spec, wait_for
from trainyard.protocol.states import JobState
from trainyard.run.failures import Failure

STEPS = 60
STRIKE_AT = 12
"""Step after which a fault strikes: one checkpoint is there, and work since then may be lost."""
EXACT = ("data_digest", "train/lr", "train/tokens")
"""Series that must be those of the undisturbed job to the last digit."""
LOSS = "train/loss"
"""This one too, where the layout is the same: another one adds in another order."""


@dataclass
class Case:
    """A job, of two ranks on two nodes unless its fault needs another, and its cluster."""

    cluster: Cluster
    job_id: str
    others: list[str] = field(default_factory=list)
    """Jobs of one rank that the fault submitted; each must succeed in its first attempt."""
    cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What ends when the job has ended."""
    _nodes: dict[int, list[Node]] = field(default_factory=dict)

    @classmethod
    def submitted(
        cls, cluster: Cluster, name: str, job: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Case:
        """Submit the job of a case, with fields of its spec changed, by section."""
        sections: dict[str, dict[str, Any]] = {
            "training": {"steps": STEPS},
            "resources": {"world_size": 2, "nodes": 2},
            "retry": {"backoff_seconds": 0},
        }
        for section, fields in (job or {}).items():
            sections[section] = {**sections.get(section, {}), **fields}
        return cls(cluster, cluster.yard.submit(spec(name, **sections)).id)

    def submit_another(self) -> None:
        """Submit a job of one rank and few steps."""
        small = spec("other", training={"steps": 5}, resources={"world_size": 1})
        self.others.append(self.cluster.yard.submit(small).id)

    def wait_until_placed(self) -> None:
        """Wait until no other job waits."""
        yard = self.cluster.yard
        wait_for(
            lambda: all(yard.job(job_id).state != "queued" for job_id in self.others),
            "placement of the other jobs",
        )

    def nodes(self, attempt: int = 1) -> list[Node]:
        """Return the nodes of an attempt, by node rank, once it is placed."""

        def placed() -> list[Node] | None:
            for view in self.cluster.yard.attempts(self.job_id):
                if view.number == attempt and view.nodes:
                    shares = sorted(view.nodes, key=lambda share: share.node_rank)
                    return [self.cluster.nodes[share.node] for share in shares]
            return None

        if attempt not in self._nodes:  # later the API may be away
            self._nodes[attempt] = wait_for(placed, f"placement of attempt {attempt}")
        return self._nodes[attempt]

    def run(self, node_rank: int, attempt: int = 1) -> Run:
        """Return the run directory of one share of an attempt."""
        return self.nodes(attempt)[node_rank].run(self.job_id, attempt)

    def failure(self, attempt: int = 1) -> Failure:
        """Return the failure of an attempt, once all of its shares have ended."""

        def ended() -> Failure | None:
            for view in self.cluster.yard.attempts(self.job_id):
                if view.number == attempt and view.outcome is not None:
                    return view.failure
            return None

        return wait_for(ended, f"failure of attempt {attempt}")

    @property
    def steps(self) -> int:
        """Steps that the newest attempt on the first node has written down."""
        return (self.run(0).steps() or [0])[-1]

    def progress(self, steps: int = 4) -> None:
        """Wait until training has gone on for so many steps."""
        self.run(0).wait_for_step(self.steps + steps)

    def hold(self) -> None:
        """Hold training: rank 1 stops, rank 0 waits for it."""
        os.kill(self.run(1).rank_pid(1), signal.SIGSTOP)

    def go_on(self) -> None:
        """Let training go on."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.run(1).rank_pid(1), signal.SIGCONT)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold training while the block runs."""
        self.hold()
        try:
            yield
        finally:
            self.go_on()


@dataclass(frozen=True)
class Predicted:
    """What becomes of a job under a fault."""

    attempts: range = range(1, 2)
    """How many attempts it may have."""
    retries_used: int | None = 0
    """None where any number of them will do."""
    same_layout: bool = True
    """Whether all attempts have the layout of the first."""


def judge(case: Case, predicted: Predicted, undisturbed: Course | None) -> Course:
    """Wait for the end of the job and compare it with the prediction and the undisturbed job.

    Raises:
        AssertionError: an invariant does not hold; the text names it.
    """
    yard = case.cluster.yard
    wait_for(case.cluster.answers, "answer of the API")
    job = finished(yard, case.job_id)
    case.cleanup.close()
    wait_for(case.cluster.answers, "answer of the API")
    ends = [(view.number, view.outcome, view.failure) for view in yard.attempts(case.job_id)]
    assert job.state == JobState.SUCCEEDED, f"{job.state}: {job.reason}; {ends}"
    assert job.attempt in predicted.attempts, f"{job.attempt} attempts: {ends}"
    if predicted.retries_used is not None:
        used = job.spec.retry.max_retries - (job.retries_left or 0)
        assert used == predicted.retries_used, f"{used} retries were used: {ends}"
    course = assert_each_once(yard, case.job_id, steps=STEPS)
    if undisturbed is not None:
        for name in (*EXACT, LOSS) if predicted.same_layout else EXACT:
            different = [
                step
                for step in range(1, STEPS + 1)
                if course.values[name, step] != undisturbed.values[name, step]
            ]
            assert not different, f"{name} differs from that of the undisturbed job at {different}"
    commits = sorted(yard.checkpoints(case.job_id), key=lambda c: c.created_at)
    writers = [commit.attempt for commit in commits]
    assert writers == sorted(writers), f"an attempt committed after its successor: {writers}"
    for other in case.others:
        ended = finished(yard, other)
        assert (ended.state, ended.attempt) == ("succeeded", 1), ended
    wait_for(lambda: not orphans(case.cluster), "end of all processes of the job", seconds=30)
    return course


def orphans(cluster: Cluster) -> list[int]:
    """Return supervisors, torchruns and ranks that still run on any node."""
    return [
        pid
        for node in cluster.nodes.values()
        for pid in node.worker.descendants
        if any(word in _command(pid) for word in ("supervise", "torch.distributed.run", "trainer"))
    ]


def _command(pid: int) -> tuple[str, ...]:
    with contextlib.suppress(OSError):
        return tuple(Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0"))
    return ()


def silence(seconds: float) -> None:
    """Let a fault last."""
    time.sleep(seconds)
