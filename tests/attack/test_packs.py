"""A person submits packs that are made to harm the node which reads them, at two isolations.

Each outcome is a line of "What a hostile program gets" in docs/programs.md.
"""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterator

import pytest

from tests.attack.conftest import Level, person
from tests.e2e.control_plane import finished, wait_for
from tests.other_users import needs_root

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    needs_root,
    pytest.mark.parametrize("level", ["none", "user"], indirect=True, scope="module"),
]
CHAINED = 330
"""Headers of headers, as many as end `tarfile` by a RecursionError in a supervisor."""


def chained(kind: bytes, content: bytes) -> bytes:
    """Return a pack of headers that each belong to the next one."""
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, len(content)
    block = member.tobuf(tarfile.USTAR_FORMAT) + content.ljust(512, b"\0")
    return gzip.compress(block * CHAINED + bytes(1024))


PACKS = {
    "pax": chained(tarfile.XHDTYPE, b"13 comment=x\n"),
    "gnu": chained(tarfile.GNUTYPE_LONGNAME, b"name\0"),
    "gzip": gzip.compress(b"") * (16 * 2**20 // 20),
}


@pytest.fixture
def nodes(level: Level) -> Iterator[None]:
    """Two nodes that take work, since the last one is never cordoned."""
    level.yard.undrain(level.plane.node)
    yield
    level.yard.drain(level.plane.node)


@pytest.mark.usefixtures("nodes")
def test_a_pack_ends_its_job_and_takes_no_node_away(level: Level) -> None:
    """Two persons agree, with jobs of different specs, as failures of a node would."""
    jobs: dict[str, str] = {}
    for name in ("mallory", "eve"):
        with person(level.yard, f"{name}-{level.isolation}") as who:
            for kind, archive in PACKS.items():
                program = {
                    "command": ["sh", "-c", f"echo {name}"],
                    "launcher": "command",
                    "code": {"pack": who.upload_pack(archive).digest},
                }
                resources = {"world_size": 1, "device": "cpu"}
                spec = {"name": kind, "program": program, "resources": resources}
                jobs[who.submit({**spec, "retry": {"max_retries": 0}}).id] = kind
    for job_id, kind in jobs.items():
        job = finished(level.yard, job_id)
        assert job.state == "failed", (kind, job.reason)
        (attempt,) = level.yard.attempts(job_id)
        assert attempt.failure is not None
        assert attempt.failure.reason == "launch_error"
        assert "code.pack" in attempt.failure.message, kind
        assert not attempt.failure.node_at_fault, kind

    def judged() -> bool:
        """The scheduler looks every five seconds at what has failed."""
        return finished(level.yard, level.yard.submit(sound).id).state == "succeeded"

    sound = {
        "name": "sound",
        "program": {"command": ["sleep", "6"], "launcher": "command"},
        "resources": {"world_size": 1, "device": "cpu"},
    }
    wait_for(judged, "a job that runs afterwards")
    assert [node.drain for node in level.yard.nodes() if node.online] == [None, None]
