"""The parts of `up`: processes by identity, ports, restarts and the broker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from embedded import broker
from embedded.child import Child, any_free_port, next_free_port
from embedded.folders import Folders, default_root
from embedded.record import (
    ProcessRecord,
    Recorder,
    RunRecord,
    end,
    identify,
    is_alive,
    read_record,
    send,
    wait_gone,
)

SLEEP = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(600)",
)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process in its own session."""
    with subprocess.Popen(SLEEP, start_new_session=True, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_is_known_by_pid_and_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    record = identify(sleeper.pid)
    assert record is not None
    assert is_alive(record)
    other = ProcessRecord(pid=record.pid, start_time=record.start_time + 1)
    assert not is_alive(other)
    assert not send(other, signal.SIGKILL)
    end([other], grace_seconds=1)
    assert sleeper.poll() is None, "only the very process may be ended"
    sleeper.kill()
    assert wait_gone(record, seconds=20)
    assert identify(sleeper.pid) is None, "a zombie counts as ended"


def test_ending_goes_by_sigterm_and_then_by_force() -> None:
    started = [
        subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
        for command in (SLEEP, STUBBORN)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
    records = [record for process in started if (record := identify(process.pid))]
    end(records, grace_seconds=1)
    codes = [process.wait(timeout=20) for process in started]
    assert codes == [-signal.SIGTERM, -signal.SIGKILL]


def test_all_that_ignore_sigterm_share_one_grace() -> None:
    started = [
        subprocess.Popen(STUBBORN, start_new_session=True, stdout=subprocess.PIPE) for _ in range(4)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
    records = [record for process in started if (record := identify(process.pid))]
    before = time.monotonic()
    end(records, grace_seconds=3)
    seconds = time.monotonic() - before
    assert [process.wait(timeout=20) for process in started] == [-signal.SIGKILL] * 4
    assert 3 <= seconds < 6


def test_the_record_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert read_record(path) is None
    recorder = Recorder(path, url="http://127.0.0.1:1", port=1)
    me = identify(os.getpid())
    assert me is not None
    recorder.running({"broker": me})
    assert read_record(path) == RunRecord(
        url="http://127.0.0.1:1", port=1, up=me, processes={"broker": me}
    )
    recorder.ended(training=("a",))
    assert read_record(path) == RunRecord(url="http://127.0.0.1:1", port=1, training=("a",))
    path.write_text("{")
    assert read_record(path) is None


def test_a_taken_port_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        assert next_free_port("127.0.0.1", taken) > taken
    assert next_free_port("127.0.0.1", taken) == taken
    with pytest.raises(OSError, match=r"\w"):
        next_free_port("no-such-host.invalid", taken)


def test_a_data_folder_is_held_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    folders = Folders(tmp_path / "data")
    folders.make()
    assert folders.root.stat().st_mode & 0o777 == 0o700
    assert folders.state.stat().st_mode & 0o777 == 0o700
    with folders.held() as first, folders.held() as second:
        assert (first, second) == (True, False)
    with folders.held() as again:
        assert again


def test_the_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert default_root() == Path("/somewhere/trainyard")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_root() == Path.home() / ".local/share/trainyard"


class Clock:
    """Seconds that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.now


def ended(child: Child) -> None:
    deadline = time.monotonic() + 30
    while child.exit_code() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_crashes_is_started_again_after_growing_pauses(tmp_path: Path) -> None:
    clock = Clock()
    command = (sys.executable, "-c", "print('boom'); raise SystemExit(3)")
    child = Child("worker", command, environment={}, log=tmp_path / "worker.log", now=clock)
    child.start()
    pauses = []
    for _ in range(3):
        ended(child)
        told = child.tend()
        assert told is not None
        assert "worker ended with exit code 3" in told
        assert child.record is None
        before = clock.now
        while (told := child.tend()) is None:
            clock.now += 0.25
        assert told == "worker runs again"
        pauses.append(clock.now - before)
    assert pauses == [1.0, 2.0, 4.0]
    ended(child)
    assert child.last_lines().splitlines() == ["boom"] * 4
    clock.now += 3600
    child.tend()
    clock.now += 0.5
    assert child.tend() == "worker runs again", "after a steady hour the pause is short again"
    ended(child)


def test_a_log_that_grows_begins_anew_and_few_former_ones_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedded.child.MAX_LOG_BYTES", 100_000)
    log, go_on = tmp_path / "server.log", tmp_path / "more"
    writes = (
        "import pathlib, sys, time\n"
        f"more = pathlib.Path({str(go_on)!r})\n"
        "while True:\n"
        "    if more.exists():\n"
        "        more.unlink()\n"
        "        print('x' * 120_000, flush=True)\n"
        "    time.sleep(0.01)\n"
    )
    child = Child("server", (sys.executable, "-c", writes), environment={}, log=log)
    child.start()
    try:
        for _ in range(6):
            go_on.touch()
            deadline = time.monotonic() + 30
            while log.stat().st_size < 120_001:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert child.tend() is None
            assert log.stat().st_size == 0, "the process appends to the same file"
    finally:
        assert child.record is not None
        end([child.record], grace_seconds=5)
        child.reap()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    kept = [f"server.log.{number}" for number in (1, 2, 3)]
    assert sizes == {"server.log": 0} | dict.fromkeys(kept, 120_001)


def test_a_child_hears_no_ctrl_c_of_the_terminal(tmp_path: Path) -> None:
    child = Child("x", SLEEP, environment={}, log=tmp_path / "x.log")
    child.start()
    assert child.record is not None
    assert os.getpgid(child.record.pid) == child.record.pid != os.getpgid(0)
    assert child.tend() is None
    end([child.record], grace_seconds=5)
    child.reap()


def test_a_given_broker_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere:1/0")
    chosen = broker.choose_broker(tmp_path)
    assert (chosen.url, chosen.command) == ("redis://elsewhere:1/0", None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", broker.SERVERS)
def test_a_server_of_this_machine_goes_before_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    binary = tmp_path / name
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    command = broker.choose_broker(tmp_path).command
    assert command is not None
    assert command[0] == str(binary)


def test_our_broker_requires_its_password_and_keeps_what_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    folder = tmp_path / "with space"
    folder.mkdir()
    for kept in (None, b"1"):
        chosen = broker.choose_broker(folder)
        assert chosen.command is not None
        assert (folder / "broker.conf").stat().st_mode & 0o777 == 0o600
        password = chosen.url.partition("//:")[2].partition("@")[0]
        assert password not in " ".join(chosen.command)
        child = Child("broker", chosen.command, environment={}, log=tmp_path / "broker.log")
        child.start()
        deadline = time.monotonic() + 30
        while not broker.answers(chosen.url):
            assert time.monotonic() < deadline, child.last_lines()
            time.sleep(0.02)
        assert not broker.answers(chosen.url.replace(password, "wrong"))
        assert not broker.answers(chosen.url.replace(f":{password}@", ""))
        with redis.Redis.from_url(chosen.url) as client:
            assert client.get("key") == kept
            client.set("key", "1")
        assert child.record is not None
        end([child.record], grace_seconds=10)
        child.reap()


def test_an_absent_broker_does_not_answer() -> None:
    assert not broker.answers(f"redis://127.0.0.1:{any_free_port('127.0.0.1')}/0")
