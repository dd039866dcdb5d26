"""The process of a rank: its collector, its allocator, its CPUs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from trainer.process import (
    StepCollector,
    cpus_in,
    prefer_growing_segments,
)


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_cycles_are_collected_after_the_same_steps_everywhere() -> None:
    assert gc.isenabled()
    with StepCollector(30) as collector:
        assert not gc.isenabled()
        dead = weakref.ref(_Cycle())
        for step in range(1, 30):
            collector.step_done(step)
        assert dead() is not None
        assert collector.seconds == 0
        collector.step_done(30)
        assert dead() is None
        assert collector.seconds > 0
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}, "max_split_size_mb:512"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, None),
    ],
)
def test_what_the_user_says_of_the_allocator_stands(
    given: dict[str, str], expected: str | None
) -> None:
    environment = dict(given)
    prefer_growing_segments(environment)
    assert environment.get("PYTORCH_ALLOC_CONF") == expected


ADDRESS = "0000:dc:00.0"
BOUND = f"""
import os, sys, threading
from pathlib import Path
from trainer.process import run_on_node_of
started, done = threading.Event(), threading.Event()
seen = []

def other():
    started.set()
    done.wait()
    seen.append(sorted(os.sched_getaffinity(0)))

thread = threading.Thread(target=other)
thread.start()
started.wait()
found = run_on_node_of("{ADDRESS}", system=Path(sys.argv[1]))
done.set()
thread.join()
assert seen == [sorted(os.sched_getaffinity(0))] == [sorted(found)], (seen, found)
print(*sorted(found))
"""


@pytest.mark.parametrize("case", ["near", "far", "one node", "no such device"])
def test_all_threads_run_on_the_node_of_the_gpu_if_they_may(case: str, tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    device = tmp_path / "bus" / "pci" / "devices" / ADDRESS
    node = tmp_path / "devices" / "system" / "node" / "node1"
    for folder in (device, node):
        folder.mkdir(parents=True)
    if case != "no such device":
        (device / "numa_node").write_text("-1\n" if case == "one node" else "1\n")
    beyond = allowed[-1] + 1
    first = f"{allowed[0]}," if case == "near" else ""
    (node / "cpulist").write_text(f"{first}{beyond}-{beyond + 8}\n")
    # In its own process, which keeps its assigned CPUs.
    ended = subprocess.run(
        [sys.executable, "-c", BOUND, str(tmp_path)], check=True, capture_output=True, text=True
    )
    expected = allowed[:1] if case == "near" else allowed
    assert ended.stdout.split() == [str(cpu) for cpu in expected]


def test_cpus_are_listed_one_by_one_and_by_ranges() -> None:
    assert cpus_in("0-2,8\n") == {0, 1, 2, 8}
    assert cpus_in("\n") == frozenset()
