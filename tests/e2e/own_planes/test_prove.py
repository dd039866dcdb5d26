"""`trainyard prove` on its own plane: killed twice, continued by the same command, and exact."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainyard.client.sdk import Client

# The ladder of two slots, with its cheapest checks alone.
COMMAND = """
import trainyard.prove.runner as runner
from trainyard.cli.app import main

whole = runner.ladder
kept = {"machine/nodes", "layouts/one-rank", "layouts/fsdp-2", "resumes/chain-1"}
runner.ladder = lambda *given: [check for check in whole(*given) if check.name in kept]
main()
"""
WORDS = ("prove", "--slots", "2", "--local", "--to")
SECONDS = 200.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a proof, whose plane ends with the test."""
    yield tmp_path / "proof"
    plane = tmp_path / "proof" / "plane"
    subprocess.run([sys.executable, "-m", "embedded", "down", f"--data={plane}"], check=True)


def start(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "HOME": str(folder.parent), "TRAINYARD_TOKEN": ""}
    return subprocess.Popen([sys.executable, "-c", COMMAND, *WORDS, str(folder)], env=environment)


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "prove.jsonl"
    if not path.exists():
        return []
    found = [json.loads(text) for text in path.read_text().splitlines() if text.endswith("}")]
    return [line for line in found if "check" in line]


def kill_once(folder: Path, reached: Callable[[], bool]) -> None:
    """Run the command, and kill it once a condition holds."""
    process = start(folder)
    deadline = time.monotonic() + SECONDS
    try:
        while not reached():
            assert process.poll() is None, "the command ended before that"
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def client(folder: Path) -> Client:
    plane = folder / "plane"
    url = json.loads((plane / "run.json").read_text())["url"]
    return Client(url, (plane / "state" / "user.token").read_text().strip())


@pytest.mark.timeout(700)
def test_a_proof_that_is_killed_twice_continues_and_holds(folder: Path) -> None:
    kill_once(folder, lambda: "layouts/one-rank" in {line["check"] for line in lines(folder)})

    def chain_was_resumed() -> bool:
        with client(folder) as yard:
            chains = [job for job in yard.jobs() if job.name.startswith("prove-chain")]
            return bool(chains) and len(list(yard.attempts(chains[0].id))) > 1

    kill_once(
        folder,
        lambda: (folder / "specs" / "prove-chain-1-80.json").exists() and chain_was_resumed(),
    )
    assert start(folder).wait(timeout=SECONDS) == 0
    found = lines(folder)
    assert [line["check"] for line in found] == [
        "machine/nodes",
        "layouts/one-rank",
        "layouts/fsdp-2",
        "resumes/chain-1",
    ], "what had passed before a kill is not repeated"
    assert {line["status"] for line in found} == {"passed"}
    assert found[-1]["figures"]["attempts"] == 4
    assert "All 4 checks held" in (folder / "report.html").read_text()
    # The plane ended with the command, after its jobs.
    assert json.loads((folder / "plane" / "run.json").read_text())["up"] is None
