"""Ranks as their own Unix users: identity, inaccessible files, and their end."""

from __future__ import annotations

import errno
import os
import pwd
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.other_users import in_user_namespace, needs_root, packages
from tests.worker.conftest import environment, wait_for
from tests.worker.node.conftest import alive
from worker.launchers.rank_environment import check_reach
from worker.node.process_tree import ProcessTree, end_user, reap
from worker.node.users import RankUser, RunAs

USER = RankUser(uid=61_901, groups=(61_900, 61_950))
ABOUT = """
id -u; id -g; id -G; umask; pwd > /dev/null
grep -E '^(CapPrm|CapEff|CapAmb|NoNewPrivs|Uid)' /proc/self/status
"""


def spawn(command: list[str], output: Path) -> int:
    return ProcessTree(user=USER).spawn(command, environment=os.environ, output=output)


# ---- the setting --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "nobody", "nobody:0-10", "nobody:61900-1", "a b:61900-9"])
def test_a_setting_that_cannot_work_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="first"):
        RunAs.parse(text)


def test_each_attempt_gets_an_id_of_its_own() -> None:
    run_as = RunAs.parse("nobody:61900-4")
    assert run_as.for_operations().uid == 61_900
    assert run_as.free([]).uid == 61_901
    assert run_as.free([61_901, 61_903]).uid == 61_902
    assert run_as.free([]).groups[0] == pwd.getpwnam("nobody").pw_gid
    with pytest.raises(ValueError, match="all 3 ids"):
        run_as.free(run_as.ids)
    with pytest.raises(ValueError, match="'nobody-here', who is unknown"):
        RunAs.parse("nobody-here:61900-4").free([])


def test_ids_of_accounts_and_too_few_ids_are_refused(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    with pytest.raises(ValueError, match=r"belong to .*nobody"):
        RunAs("nobody", nobody - 1, 3).free([])
    with pytest.raises(ValueError, match="4 slots need 5"):
        RunAs.parse("nobody:61900-4").prepare_node(slots=4, data_dir=tmp_path, shared=[])


@needs_root
@pytest.mark.parametrize(("group", "uid"), [(0, None), (999, None), (1000, 1000)])
def test_a_run_directory_names_no_user_of_the_system(
    tmp_path: Path, group: int, uid: int | None
) -> None:
    os.chown(tmp_path, -1, group)
    tmp_path.chmod(0o1770)
    found = RankUser.of_run(tmp_path)
    assert (found and found.uid) == uid


# ---- one process --------------------------------------------------------------------------------


@needs_root
def test_a_command_becomes_another_user_for_good(tmp_path: Path) -> None:
    output = tmp_path / "out"
    pid = spawn(["/bin/sh", "-c", ABOUT], output)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    uid, gid, groups, umask, *status = output.read_text().split("\n")[:-1]
    assert (uid, gid, umask) == ("61901", "61901", "0007")
    assert set(groups.split()) == {"61900", "61901", "61950"}
    assert [line.split()[1:] for line in status] == [
        ["61901"] * 4,
        ["0000000000000000"],
        ["0000000000000000"],
        ["0000000000000000"],
        ["1"],
    ]


WORKER = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from worker.launchers.warm.forkserver import ForkedLaunch, ForkedProcess, fork_all
from worker.node.process_tree import ProcessTree, become_subreaper, end_user, NotEndedError
from worker.launchers.rank_environment import check_reach
from worker.node.users import RankUser, RunAs, capabilities
user = RankUser(uid=61901, groups=(61900,))
folder = Path(sys.argv[1])
print("worker", os.getuid(), hex(capabilities()))
if sys.argv[2] in ("spawn", "tie"):
    words, out = ["/bin/sh", "-c", sys.argv[3]], folder / "out"
    tree = ProcessTree(user=user) if sys.argv[2] == "spawn" else ProcessTree()
    pid = tree.spawn(words, environment=os.environ, output=out)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
elif sys.argv[2] == "fork":
    become_subreaper()
    gate, opener = os.pipe()
    if os.fork() == 0:
        text = Path("/proc/self/status")
        module = SimpleNamespace(__name__="module", enter=lambda: print(text.read_text()))
        process = ForkedProcess([], str(folder / "out"))
        launch = ForkedLaunch(str(folder), os.getppid(), [process], environment={}, marks={})
        fork_all(launch, module, gate=gate)
        os._exit(0)
    os.write(opener, b"1")
    print(*(os.wait() and "ended" for _ in range(2)))
elif sys.argv[2] == "end":
    try:
        end_user(user)
        print("ended")
    except NotEndedError as error:
        print("not ended:", error)
elif sys.argv[2] == "read":
    user.give(folder, 0o1770)
    made = folder / "made"
    words = ["/bin/sh", "-c", f"echo by a rank > {made}"]
    pid = ProcessTree(user=user).spawn(words, environment=os.environ, output=folder / "out")
    os.waitpid(pid, 0)
    for _ in range(2):
        print(made.read_text().strip() if os.access(made, os.R_OK) else "closed")
        user.join_group()
elif sys.argv[2] == "reach":
    try:
        check_reach(user, run_directories=folder, folders=map(Path, sys.argv[3:]))
        print("reached")
    except ValueError as error:
        print(error)
else:
    try:
        run_as = RunAs.parse(sys.argv[3] if len(sys.argv) > 3 else "nobody:61900-8")
        run_as.prepare_node(slots=2, data_dir=folder, shared=[])
        print("prepared", run_as.isolation)
    except ValueError as error:
        print(error)
"""


def as_worker(
    python: str, folder: Path, *words: str, caps: str, namespace: int | None = None
) -> list[str]:
    """Run an action of a non-root worker with some capabilities, and return its output.

    Args:
        python: the interpreter.
        folder: becomes the worker's.
        words: the action, with its arguments.
        caps: capabilities, in the form of `setpriv`.
        namespace: id of the machine that is 0 in a user namespace of its own; none without.
    """
    os.chown(folder, (namespace or 0) + 61_899, (namespace or 0) + 61_900)
    script = folder / "as_worker.py"
    script.write_text(WORKER)
    script.chmod(0o644)
    command = [
        *("setpriv", "--reuid=61899", "--regid=61900", "--clear-groups"),
        *(f"--inh-caps=-all{caps}", f"--ambient-caps=-all{caps}"),
        *(python, str(script), str(folder), *words),
    ]
    done = started(command, namespace)
    output, errors = done.communicate(timeout=60)
    assert done.returncode == 0, errors
    return output.splitlines()


def started(command: list[str], namespace: int | None) -> subprocess.Popen[str]:
    if namespace is not None:
        return in_user_namespace(command, first=namespace)
    surroundings = {**os.environ, "PYTHONPATH": packages()}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=surroundings, stdout=pipe, stderr=pipe, text=True)


FOUR = ",+chown,+kill,+setgid,+setuid"


@needs_root
def test_a_worker_that_is_not_root_keeps_four_capabilities_and_ranks_none(
    python: str, open_folder: Path
) -> None:
    said = as_worker(python, open_folder, "spawn", ABOUT, caps=FOUR)
    assert said == ["worker 61899 0xe1", "0"]
    uid, _, _, _, *status = (open_folder / "out").read_text().split("\n")[:-1]
    assert uid == "61901"
    assert {line.split()[1] for line in status[1:4]} == {"0000000000000000"}
    assert as_worker(python, open_folder, "prepare", caps=FOUR)[-1] == "prepared user"
    missing = as_worker(python, open_folder, "prepare", caps=",+setuid,+setgid")[-1]
    assert missing == "TRAINYARD_RUN_AS needs the capabilities CHOWN, KILL"


@needs_root
def test_ranks_without_a_user_of_their_own_get_no_capability_of_the_worker(
    python: str, open_folder: Path
) -> None:
    """A worker with capabilities, as its unit grants them, and without `TRAINYARD_RUN_AS`."""
    assert as_worker(python, open_folder, "tie", ABOUT, caps=FOUR) == ["worker 61899 0xe1", "0"]
    uid, _, _, _, *status = (open_folder / "out").read_text().split("\n")[:-1]
    assert uid == "61899"
    assert {line.split()[1] for line in status[1:4]} == {"0000000000000000"}
    (open_folder / "out").unlink()
    as_worker(python, open_folder, "fork", caps=FOUR)  # the warm launch
    found = re.findall(
        r"^Cap(Inh|Prm|Eff|Amb):\t(\w+)$", (open_folder / "out").read_text(), re.MULTILINE
    )
    assert dict(found) == dict.fromkeys(("Inh", "Prm", "Eff", "Amb"), "0000000000000000")


@needs_root
def test_a_worker_that_is_not_root_reads_what_ranks_write(python: str, open_folder: Path) -> None:
    said = as_worker(python, open_folder, "read", caps=FOUR)
    assert said == ["worker 61899 0xe1", "closed", "by a rank"]


def test_a_supervisor_that_cannot_join_the_group_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(groups: list[int]) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "setgroups", refuse)
    USER.join_group()
    assert "this process cannot join group 61901" in caplog.text
    assert "Operation not permitted" in caplog.text


@needs_root
def test_in_a_user_namespace_ranks_are_users_that_the_machine_keeps_apart(
    python: str, open_folder: Path
) -> None:
    def worker(*words: str, first: int = 300_000) -> list[str]:
        return as_worker(python, open_folder, *words, caps=FOUR, namespace=first)

    token = open_folder / "node.token"
    token.touch(mode=0o600)
    os.chown(token, 361_899, 361_900)
    script = f"cat {token}; kill -0 $PPID; id -u"
    assert worker("spawn", script) == ["worker 61899 0xe1", "0"]
    said = (open_folder / "out").read_text()
    assert "node.token: Permission denied" in said
    assert "Operation not permitted" in said, "the worker takes no signal of its ranks"
    assert said.endswith("\n61901\n")
    assert (open_folder / "out").stat().st_uid == 361_899, "ids of the machine are others"
    assert worker("prepare")[-1] == "prepared namespace"
    refused = worker("prepare", "nobody:65530-8")[-1]
    assert refused == (
        "TRAINYARD_RUN_AS: the worker's user namespace has no ids 65536 to 65537; "
        "map them as users and groups, or take others"
    )


@needs_root
def test_a_worker_sees_at_its_start_what_its_ranks_cannot_reach(
    python: str, open_folder: Path
) -> None:
    closed = open_folder / "closed"
    shared = closed / "checkpoints"
    shared.mkdir(parents=True)
    assert as_worker(python, open_folder, "reach", str(shared), caps=FOUR)[-1] == "reached"
    closed.chmod(0o700)
    said = as_worker(python, open_folder, "reach", str(shared), caps=FOUR)[-1]
    assert said.startswith(
        f"TRAINYARD_RUN_AS: user 61901 cannot use {python}: "
        f"PermissionError: [Errno 13] Permission denied: '{shared}'. Its users need to read"
    )


@needs_root
def test_a_data_folder_that_ranks_cannot_reach_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "node" / "runs").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"user 61901 cannot use .*Permission denied"):
        check_reach(USER, run_directories=tmp_path / "node" / "runs", folders=[])


@needs_root
def test_who_may_not_be_ended_is_neither_waited_for_nor_gone(
    python: str, open_folder: Path
) -> None:
    pid = spawn(["/bin/sleep", "600"], open_folder / "sleep")
    try:
        wait_for(lambda: alive(USER.uid), "the process")
        said = as_worker(python, open_folder, "end", caps=",+setuid,+setgid,+chown")[-1]
        assert said == f"not ended: pid {pid} of the processes of user 61901 may not be ended"
        assert alive(USER.uid) == [pid]
        assert as_worker(python, open_folder, "end", caps=FOUR)[-1] == "ended"
    finally:
        reap()
    assert alive(USER.uid) == []


@needs_root
def test_a_process_of_another_user_ends_with_its_parent(tmp_path: Path) -> None:
    parent = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from worker.node.process_tree import ProcessTree\n"
        "from worker.node.users import RankUser\n"
        "ProcessTree(user=RankUser(uid=61902, groups=())).spawn("
        "['/bin/sleep', '600'], environment=os.environ, output=Path(sys.argv[1]))\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent, str(tmp_path / "out")], env=environment()
    )
    try:
        wait_for(lambda: alive(61_902), "the child")
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for(lambda: not alive(61_902), "its end")
    finally:
        process.kill()
        process.wait()
        end_user(RankUser(uid=61_902, groups=()))


@needs_root
def test_a_daemon_without_mark_or_parent_is_found_by_its_user(tmp_path: Path) -> None:
    hide = "setsid env -i /bin/sh -c '/bin/sleep 600 & /bin/sleep 600' & exit 0"
    pid = spawn(["/bin/sh", "-c", hide], tmp_path / "o")
    os.waitpid(pid, 0)
    wait_for(lambda: len(alive(USER.uid)) >= 2, "the daemons")
    end_user(USER)
    assert alive(USER.uid) == []
