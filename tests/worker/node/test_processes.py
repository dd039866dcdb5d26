"""Ending processes: all of a marked attempt, all of a cgroup, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.conftest import wait_for
from worker.node import cgroup
from worker.node.cgroup import end_cgroup, make_cgroup, remove_cgroup
from worker.node.process_tree import MARKER, NODE_MARKER, ProcessTree, descendants
from worker.node.rank_wrapper import LAUNCHER_PID

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def marked(attempt_id: str, node: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        SLEEP, env={**os.environ, MARKER: attempt_id, NODE_MARKER: node}, start_new_session=True
    )
    environ = Path(f"/proc/{process.pid}/environ")
    wait_for(lambda: attempt_id.encode() in environ.read_bytes(), "exec")
    return process


def test_only_what_carries_both_marks_is_ended() -> None:
    one, other_node, other_attempt = marked("one", "n"), marked("one", "m"), marked("two", "n")
    try:
        ProcessTree(attempt_id="one", node="n").end(descendants=False)
        assert one.wait(10) == -9
        assert other_node.poll() is None
        assert other_attempt.poll() is None
        ProcessTree(attempt_id="one", node="n").end(descendants=False)  # none is left
    finally:
        for process in (one, other_node, other_attempt):
            process.kill()
            process.wait()


def test_what_a_job_sets_does_not_act_on_what_changes_its_user(tmp_path: Path) -> None:
    """With these variables the C library's loader records each started program."""
    chosen = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(tmp_path / "trace"), "CHOSEN": "a=\nb"}
    tree = ProcessTree(attempt_id="one", node="n")
    out = tmp_path / "out"
    pid = tree.spawn(["/usr/bin/env", "-0"], environment=chosen, output=out)
    wait_for(lambda: tree.status(pid) is not None, "env")
    assert tree.status(pid) == 0
    trace = "".join(file.read_text() for file in tmp_path.glob("trace*"))
    assert "/usr/bin/env" in trace
    assert "python" not in trace
    variables = dict(pair.split("=", 1) for pair in out.read_text().split("\0")[:-1])
    own = {MARKER: "one", NODE_MARKER: "n", LAUNCHER_PID: str(pid)}
    assert variables == chosen | own


def test_descendants_are_found_at_any_depth() -> None:
    code = f"import subprocess; subprocess.run({SLEEP!r})"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        below = wait_for(lambda: descendants(process.pid), "grandchild")
        assert process.pid in {stat.pid for stat in descendants(os.getpid())}
        os.kill(below[0].pid, 9)
        process.wait()


def test_a_cgroup_ends_what_hides_from_everything_else(tmp_path: Path) -> None:
    made = make_cgroup("test", node=f"n{os.getpid()}")
    if made is None:
        # No cgroup is available here: tests above and of the supervisor prove its substitute.
        assert not os.access("/sys/fs/cgroup", os.W_OK) or not _has_cgroup2()
        return
    script = (
        "import os,sys,time\n"
        "open(sys.argv[1] + '/cgroup.procs', 'w').write('0')\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "os.execve(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)'], {})\n"
    )
    subprocess.run([sys.executable, "-c", script, str(made)], check=True)
    assert (made / "cgroup.procs").read_text().split()
    end_cgroup(made)
    wait_for(lambda: not (made / "cgroup.procs").read_text().split(), "end of the cgroup")
    remove_cgroup(made)
    assert not made.exists()


def test_where_no_cgroup_can_be_had_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "_own_cgroup", lambda: None)
    assert make_cgroup("test", node="n") is None
    monkeypatch.setattr(cgroup, "_own_cgroup", lambda: tmp_path / "missing")
    assert make_cgroup("test", node="n") is None


def _has_cgroup2() -> bool:
    return " - cgroup2 " in Path("/proc/self/mountinfo").read_text()
