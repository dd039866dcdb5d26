"""A hostile program against a whole control plane, at each level of isolation of its node.

Each outcome is a line of "What a hostile program gets" in docs/programs.md.
"""

from __future__ import annotations

import shlex
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.attack.conftest import RUN_BYTES, Level
from tests.other_users import needs_root
from trainyard.run.checkpoints.checkpoint_names import checkpoint_id
from trainyard.run.checkpoints.program_manifest import ProgramManifest, SavedFile
from trainyard.run.record_base import to_json
from trainyard.run.records import EventRecord

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    needs_root,
    pytest.mark.parametrize("level", ["none", "user", "namespace"], indirect=True, scope="module"),
]
SECRET = "secret-of-another-job"
ATTACK = """
cd "$TRAINYARD_RUN"
for file in {files}; do
    if test -n "$(cat "$file" 2> /dev/null)"; then echo "read $file"; else echo "refused $file"; fi
done
printf '%s\\n' {forged} >> events.jsonl
(trap '' TERM HUP; exec env -i setsid sleep {mark}) &
(trap '' TERM HUP; exec setsid sleep {mark}) &
echo planted
"""
FILL = 'cd "$TRAINYARD_RUN"; dd if=/dev/zero of=large bs=1M count=64 2> /dev/null; sleep 600'


def forged(job_id: str) -> str:
    """Return a line that announces a commit of the first attempt of another job."""
    manifest = ProgramManifest(
        checkpoint_id=checkpoint_id(job_id, 1, 4),
        job_id=job_id,
        attempt=1,
        step=4,
        created_at=datetime.now(UTC),
        world_size=1,
        save_seconds=0.5,
        size=5,
        files=(SavedFile(path="state.pt", size=5, checksum="0" * 64),),
    )
    data = vars(manifest)
    return to_json(EventRecord(time=1.0, kind="checkpoint_committed", step=4, data=data))


def processes_of(*words: str) -> list[int]:
    """Return the processes that run with these words."""
    line = b"".join(word.encode() + b"\0" for word in words)
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                found += [int(folder.name)] * (folder.joinpath("cmdline").read_bytes() == line)
            except OSError:  # it has just ended
                continue
    return found


def test_a_program_gets_what_its_isolation_lets_it_have(level: Level) -> None:
    victim = level.run("victim", "echo runs", SECRET=SECRET)
    assert victim.state == "succeeded", victim.reason
    token = level.worker.data / "node.token"
    other = level.worker.data / "runs" / victim.id / "1" / "spec.json"
    assert SECRET in other.read_text()
    files = [str(token), "supervisor.secret", str(other)]
    mark = f"86400.{uuid.uuid4().int % 10**9}"
    script = ATTACK.format(
        files=shlex.join(files), forged=shlex.quote(forged(victim.id)), mark=mark
    )
    job = level.run("attack", script)
    assert job.state == "succeeded", job.reason
    word = "read" if level.isolation == "none" else "refused"
    said = [line.text for line in level.yard.logs(job.id, rank=0).lines]
    assert said == [*(f"{word} {file}" for file in files), "planted"]
    assert processes_of("sleep", mark) == [], "what it left has ended with the attempt"

    assert list(level.yard.checkpoints(victim.id)) == list(level.yard.checkpoints(job.id)) == []
    (skipped,) = [e for e in level.yard.events(job.id) if e.kind == "line_skipped"]
    assert f"'{victim.id}.a1.step-4' is not of attempt 1" in skipped.model_dump_json()


def test_a_program_that_fills_its_run_directory_is_ended_and_not_retried(level: Level) -> None:
    job = level.run("fill", FILL)
    assert job.state == "failed"
    (attempt,) = level.yard.attempts(job.id)
    assert attempt.failure is not None
    assert attempt.failure.reason == "disk_limit"
    folder = level.worker.data / "runs" / job.id / "1"
    assert attempt.failure.message == f"{folder} takes more than {RUN_BYTES:,} bytes of disk"
