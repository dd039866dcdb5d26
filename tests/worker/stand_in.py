"""Stands in for `python -m trainer` with behaviour that a real trainer cannot be forced to.

`stand_in.py BEHAVIOUR [check] RUN`; it imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from trainer.metrics.run_writer import RunWriter
from trainer.process import show_stacks_when_asked
from trainyard.run.directory import RunDirectory

DAEMON = "left a daemon"
BEHIND_A_CHECK = {"check_fails": "sleep", "check_lasts": "sleep", "check_outlasts": "chatter"}
"""The behaviour of ranks if the check has the tested behaviour."""


def main() -> None:
    behaviour, *words = sys.argv[1:]
    if words[0] == "check":
        check(behaviour)
        return
    run, rank = Path(words[0]), int(os.environ["RANK"])
    behaviour = BEHIND_A_CHECK.get(behaviour, behaviour)
    say(f"rank {rank} of {os.environ['WORLD_SIZE']} begins")
    BEHAVIOURS[behaviour](run, rank)


def preload() -> None:
    """Like the trainer's, for the forkserver, which calls `enter` in each forked process."""


def enter() -> NoReturn:
    """Run the behaviour in `sys.argv`, as the last act of this process."""
    try:
        main()
    except SystemExit as end:
        os._exit(int(end.code or 0))
    os._exit(0)


def check(behaviour: str) -> None:
    if behaviour == "check_fails":
        say("no such corpus")
        raise SystemExit(1)
    if behaviour in ("check_lasts", "check_outlasts"):
        time.sleep(600)


def loop(run: Path, rank: int) -> None:
    """Run an endless Python loop."""
    beat(run, rank)
    while True:
        pass


def sleep(run: Path, rank: int) -> None:
    """Heartbeat once, then nothing: a hang."""
    beat(run, rank)
    time.sleep(600)


def stuck(run: Path, rank: int) -> None:
    """Heartbeat once, then nothing; report the position on request, like the trainer."""
    show_stacks_when_asked()
    never_answer(run, rank)


def never_answer(run: Path, rank: int) -> None:
    meet(run, rank)
    beat(run, rank)
    time.sleep(600)


def read_for_ever(run: Path, rank: int) -> None:
    """Be the real trainer; rank 1 reads its third batch forever."""
    from trainer import __main__ as trainer
    from trainer.data import batches

    read = batches.micro_batches

    def never_read(*args: Any, position: int, **options: Any) -> Any:
        if rank == 1 and position >= 2 * options["partition"].global_batch_size:
            time.sleep(600)
        return read(*args, position=position, **options)

    batches.micro_batches = never_read
    sys.argv = ["trainer", str(run)]
    raise SystemExit(trainer.main())


def time_out(run: Path, rank: int) -> None:
    """Rank 0 waits for rank 1, which is stuck, until its collective times out."""
    if rank == 1:
        stuck(run, rank)
    show_stacks_when_asked()
    meet(run, rank)
    beat(run, rank)
    RunWriter(RunDirectory(run), rank=rank, local_rank=rank).fail(
        RuntimeError("Timed out waiting 540000ms for recv operation to complete")
    )
    raise SystemExit(1)


def brood(run: Path, rank: int) -> None:
    """Leave an orphaned process with its own session."""
    beat(run, rank)
    script = "import os,time\nif os.fork(): os._exit(0)\nos.setsid()\ntime.sleep(600)"
    subprocess.run([sys.executable, "-c", script], check=True)
    say(DAEMON)
    time.sleep(600)


def chatter(run: Path, rank: int) -> None:
    """Print numbered lines and write metrics until the order to stop, then report the stop."""
    beat(run, rank)
    number = 0
    while not (run / "stop").exists():
        number += 1
        say(f"rank {rank} line {number} " + "x" * 1000)
        if rank == 0:
            line = json.dumps({"step": number, "time": 0.0, "values": {"train/loss": 1.0}})
            append(run / "metrics.jsonl", line)
        answer_requests(run, number)
        time.sleep(0.01)
    if rank == 0:
        finish(run, "stopped", number)


def answer_requests(run: Path, step: int) -> None:
    for path in run.glob("requests/*.json"):
        answer = path.with_name(f"{path.stem}.answer.json")
        if not path.name.endswith(".answer.json") and not answer.exists():
            record = {"ok": True, "message": path.read_text(), "step": step}
            beside = answer.with_suffix(".part")
            beside.write_text(json.dumps(record))
            beside.rename(answer)


def succeed(run: Path, rank: int) -> None:
    """Print folder and environment, and succeed."""
    say(f"rank {rank} in {Path.cwd()}")
    say(json.dumps(dict(os.environ)))
    if os.environ["LOCAL_RANK"] == "0":
        finish(run, "succeeded", 1)


def abort_afterwards(run: Path, rank: int) -> None:
    """Succeed, then die during the exit of the process."""
    succeed(run, rank)
    os.abort()


def pry(run: Path, rank: int) -> None:
    """Print its user and the accessible files of the node; leave a daemon, and links for files."""
    beat(run, rank)
    node = run.parents[2]
    for path in (node / "node.token", run / "supervisor.secret", run / "spec.json"):
        try:
            say(f"{path.name}: {path.read_text()[:3]!r}")
        except OSError as error:
            say(f"{path.name}: {type(error).__name__}")
    log = run / "logs" / f"rank-{rank}.log"
    for act in (log.unlink, (run / "logs").rmdir, (run / "spec.json").unlink):
        try:
            act()
            say("removed")
        except OSError as error:
            say(type(error).__name__)
    say(f"uid {os.getuid()} groups {os.getgroups()} home {os.access(Path.home(), os.W_OK)}")
    pry_into_processes()
    (run / "events.jsonl").symlink_to(node / "node.token")
    leave_daemon()
    finish(run, "succeeded", 3)


def leave_daemon() -> None:
    """Start a process without a parent, a session and the marks of the attempt."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sleep", ["sleep", "600"], {})
        os._exit(0)


def identify(run: Path, rank: int) -> None:
    """Print its ids and variables, write to the storage and the cache, and leave a daemon."""
    beat(run, rank)
    umask = os.umask(0)
    os.umask(umask)
    say(f"user {os.getresuid()} {os.getresgid()} {sorted(os.getgroups())} umask {umask:03o}")
    say(f"home {os.environ['HOME']} of {os.environ['USER']} {os.environ['LOGNAME']}")
    attempt = json.loads((run / "attempt.json").read_text())
    saved = Path(attempt["roots"]["checkpoints"], attempt["job_id"])
    saved.mkdir(exist_ok=True)
    (saved / "saved").write_text("tensors")
    Path(attempt["cache_dir"], "tokens").touch()
    (run / "own").mkdir(mode=0o700)
    pry_into_processes()
    leave_daemon()
    finish(run, "succeeded", 3)


def pry_into_processes() -> None:
    """Print inherited state of earlier processes, and readable parts of them."""
    fields = Path("/proc/self/status").read_text().splitlines()
    rights = [line.split()[1] for line in fields if line.startswith(("CapPrm", "CapEff", "CapInh"))]
    say(f"rights {sum(int(right, 16) for right in rights)}")
    with contextlib.suppress(PermissionError):
        os.setuid(0)
        say("root again")
    supervisor = Path("/proc", str(os.getppid()))  # or a process between, of the same user
    while supervisor.stat().st_uid == os.getuid():
        stat = (supervisor / "stat").read_text()
        supervisor = Path("/proc", stat[stat.rindex(")") + 2 :].split()[1])
    for name in ("environ", "mem", "maps"):
        try:
            say(f"{name} of the supervisor: {(supervisor / name).open('rb').read(1)!r}")
        except OSError as error:
            say(f"{name} of the supervisor: {type(error).__name__}")
    opened = [path for path in Path("/proc/self/fd").iterdir() if int(path.name) > 2]
    kinds = [str(path.readlink()).partition(":")[0] for path in opened if path.is_symlink()]
    say(f"opened {kinds}")


def fail_silently(run: Path, rank: int) -> None:
    """End with an exit code and without a message."""
    beat(run, rank)
    if rank == 1:
        raise SystemExit(7)
    time.sleep(600)


def write_late(run: Path, rank: int) -> None:
    """Rank 1 fails; rank 0 needs a second to report its error."""
    meet(run, rank)
    if rank == 1:
        raise SystemExit(7)
    time.sleep(1)
    say("what rank 0 saw")
    time.sleep(600)


def meet(run: Path, rank: int) -> None:
    """Wait for every rank: a busy machine starts one seconds after the other."""
    (run / f"here-{rank}").touch()
    here = [run / f"here-{each}" for each in range(int(os.environ["WORLD_SIZE"]))]
    while not all(path.exists() for path in here):
        time.sleep(0.02)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def beat(run: Path, rank: int) -> None:
    if os.environ["LOCAL_RANK"] == "0":
        record = {"phase": "training", "step": 3, "time": time.time()}
        (run / "heartbeat.json").write_text(json.dumps(record))


def finish(run: Path, outcome: str, step: int) -> None:
    (run / "outcome.json").write_text(json.dumps({"outcome": outcome, "step": step}))


def append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


BEHAVIOURS = {
    one.__name__: one
    for one in (
        loop,
        sleep,
        stuck,
        read_for_ever,
        time_out,
        brood,
        chatter,
        succeed,
        abort_afterwards,
        fail_silently,
        identify,
        pry,
        write_late,
    )
}

if __name__ == "__main__":
    main()
