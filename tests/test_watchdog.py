"""Nothing that a run of the tests starts outlives it, not even when pytest is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.watchdog import MARK

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 120.0
DETACHED = """
import os, pathlib, subprocess, sys, time

def test_it():
    code = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
    daemon = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pathlib.Path(os.environ["TOLD"]).write_text(daemon.stdout.readline())
    time.sleep({seconds})
    daemon.stdout.close()
    daemon.returncode = 0  # the test leaves it running
"""
BROKER = """
import os, pathlib, subprocess, time
from embedded.broker import answers, choose_broker

def test_it(tmp_path):
    broker = choose_broker(tmp_path)
    daemon = subprocess.Popen(broker.command, start_new_session=True, stdout=subprocess.DEVNULL)
    while not answers(broker.url):  # by then it has its title
        time.sleep(0.05)
    pathlib.Path(os.environ["TOLD"]).write_text(f"{{daemon.pid}}\\n")
    time.sleep({seconds})
"""
CONFTEST = "from tests.watchdog import watch as pytest_configure\n"


def test_this_run_is_watched() -> None:
    assert os.environ[MARK]


@pytest.mark.parametrize(
    ("script", "how"),
    [
        pytest.param(DETACHED, signal.SIGKILL, id="killed"),
        pytest.param(DETACHED, signal.SIGINT, id="interrupted"),
        pytest.param(DETACHED, None, id="ended"),
        pytest.param(BROKER, signal.SIGKILL, id="killed with a broker"),
    ],
)
def test_a_detached_process_ends_with_its_run(
    tmp_path: Path, script: str, how: signal.Signals | None
) -> None:
    told, test = tmp_path / "told", tmp_path / "test_detached.py"
    test.write_text(script.format(seconds=600 if how else 0))
    (tmp_path / "conftest.py").write_text(CONFTEST)
    environment = {
        name: value for name, value in os.environ.items() if name not in (MARK, "REDIS_URL")
    }
    environment |= {"TOLD": str(told), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)],
        cwd=tmp_path,
        env=environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A shell starts what runs in the background with the interrupt ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as run:
        try:
            wait_until(lambda: told.exists() and told.read_text().endswith("\n"))
            daemon = int(told.read_text())
            if how is not None:
                assert is_alive(daemon)
                run.send_signal(how)
            run.wait(PATIENCE)
            wait_until(lambda: not is_alive(daemon))
        finally:
            run.kill()


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)
