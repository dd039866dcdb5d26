"""The probe runs as a job on two nodes, and names planted faults; a proof of both nodes holds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.control_plane import REPOSITORY

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="clocks are set by a C library"),
    pytest.mark.skipif(shutil.which("tc") is None, reason="links are slowed by tc"),
    pytest.mark.timeout(900),  # 200 s on a quiet machine
]


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """The results of all cases, by name."""
    command = [sys.executable, "-m", "tests.chaos.rank_probe"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-8000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for line in lines:
        assert line["state"] == "succeeded", line
    return {line["case"]: line for line in lines}


def test_two_healthy_nodes_have_no_finding(results: dict[str, dict[str, Any]]) -> None:
    assert results["healthy"]["findings"] == [], results["healthy"]


def test_the_rank_with_a_scaled_gradient_and_the_node_with_a_wrong_clock_are_named(
    results: dict[str, dict[str, Any]],
) -> None:
    result = results["gradient_and_clock"]
    assert len(result["findings"]) == 2, result["findings"]
    first, second = result["findings"]
    assert first == "rank 1 on node n1: its gradient is 1.0e-03 larger than that of 3 other ranks"
    assert second.startswith("node n2: its clock is at least 3")
    assert second.endswith(" s ahead of the server's clock")
    ((node, problem),) = result["problems"]
    assert node == "n2"
    assert problem.startswith("its clock is 3")


def test_the_node_with_a_slow_disk_and_the_slow_link_are_named(
    results: dict[str, dict[str, Any]],
) -> None:
    *disks, link = results["disk_and_link"]["findings"]
    assert len(disks) == 4
    assert all(found.startswith("node n1: ") for found in disks), disks
    assert link.startswith("link from rank 3 on node n2 to rank 0 on node n1: 2"), link


def test_layouts_and_resumes_over_both_nodes_are_exact(
    results: dict[str, dict[str, Any]],
) -> None:
    result = results["ladder"]
    assert result["held"], result["lines"]
    by_name = {line["check"]: line for line in result["lines"]}
    assert by_name["machine/nodes"]["figures"]["nodes"] == 2
    assert by_name["layouts/fsdp-4"]["figures"]["steps_with_other_sequences"] == 0
    assert by_name["resumes/chain-1"]["figures"]["attempts"] == 4
