"""`python -m embedded`: refusals and output without running processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from embedded.__main__ import main
from embedded.folders import Folders
from embedded.record import Recorder, identify, read_record
from embedded.up import address_of, described
from trainyard.protocol.rest.jobs import JobSummary, Progress

SLEEP = "import time; time.sleep(600)"


def test_down_where_nothing_ever_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "--data", str(tmp_path / "none")]) == 0
    assert "Nothing runs on" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("up", "--port", "http"), "argument --port: http is not 1 to 65535"),
        (("up", "--port", "65536"), "argument --port: 65536 is not 1 to 65535"),
        (("up", "--slots", "0"), "argument --slots: 0 is not 1 or more"),
        (("up", "--submit", "none.toml"), "argument --submit: none.toml is not a file"),
        (("up", "--once"), "argument --once: needs --submit"),
        (("down", "--timeout", "-1"), "argument --timeout: -1 is not 0 or more"),
        (("down", "--timeout", "nan"), "argument --timeout: nan is not 0 or more"),
    ],
)
def test_an_argument_that_is_not_legal_is_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a,b", "a?b", "100%"])
def test_a_folder_that_settings_cannot_carry_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["up", "--data", str(tmp_path / name)]) == 1
    assert "cannot keep data in" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["up", "--data", str(tmp_path / "file" / "data")]) == 1
    assert "file/data" in capsys.readouterr().out


def test_a_second_up_prints_where_the_first_one_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = Folders(tmp_path / "data")
    folders.make()
    Recorder(folders.record, url="http://127.0.0.1:8471", port=8471).running({})
    with folders.held():
        assert main(["up", "--data", str(folders.root)]) == 0
        told = capsys.readouterr().out
        assert "runs already" in told
        assert "http://127.0.0.1:8471" in told
        assert main(["up", "--data", str(folders.root), "--submit"]) == 1
    assert "no job was submitted; use `trainyard submit`" in capsys.readouterr().out


def test_the_port_of_last_time_is_taken_again(tmp_path: Path) -> None:
    folders = Folders(tmp_path / "data")
    folders.make()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    Recorder(folders.record, url=f"http://127.0.0.1:{port}", port=port).ended(training=())
    assert address_of(folders, host="127.0.0.1", port=None).port == port
    with socket.create_server(("127.0.0.1", port)):
        assert address_of(folders, host="127.0.0.1", port=None).port > port
        assert address_of(folders, host="127.0.0.1", port=port).port > port


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:"),
        ("0.0.0.0", "http://127.0.0.1:"),
        ("localhost", "http://localhost:"),
    ],
)
def test_the_url_reaches_the_server_from_here(tmp_path: Path, host: str, url: str) -> None:
    assert address_of(Folders(tmp_path), host=host, port=18_470).url.startswith(url)


def test_a_stranger_with_the_recorded_pid_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record names this very process, but with another start time: it must survive `down`."""
    folders = Folders(tmp_path / "data")
    folders.make()
    me = identify(os.getpid())
    assert me is not None
    stranger = me.model_copy(update={"start_time": me.start_time - 1})
    Recorder(folders.record, url="http://127.0.0.1:1", port=1).running({"worker": stranger})
    assert main(["down", "--keep-running", "--data", str(folders.root)]) == 0
    assert "Nothing else runs" in capsys.readouterr().out


def test_what_a_killed_up_left_behind_is_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = Folders(tmp_path / "data")
    folders.make()
    with subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True) as left:
        process = identify(left.pid)
        assert process is not None
        Recorder(folders.record, url="http://127.0.0.1:1", port=1).running({"worker": process})
        assert main(["down", "--keep-running", "--data", str(folders.root)]) == 0
        assert left.wait(timeout=20) == -signal.SIGTERM
    record = read_record(folders.record)
    assert record is not None
    assert (record.up, record.processes) == (None, {})


@pytest.mark.parametrize(
    ("steps", "words"), [(40, "mine (j1, step 1,200 of 40)"), (None, "mine (j1, step 1,200)")]
)
def test_a_program_is_described_without_a_number_of_steps(steps: int | None, words: str) -> None:
    shown: dict[str, Any] = {"id": "j1", "name": "mine"}
    shown["progress"] = Progress(step=1200, steps=steps)
    assert described(JobSummary.model_construct(**shown)) == words
