"""A test that fails in a run and passes alone is printed and stored with its count."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.gate.durations import stored_runs
from tests.gate.second_tries import FILE, add_tries, main, read_tries, reason_for_no_second_try
from tests.watchdog import MARK

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
from tests.gate import second_tries

def pytest_addoption(parser):
    parser.addoption(second_tries.OPTION, action="store_true")

pytest_configure = second_tries.register
"""
TESTS = """
import pathlib

def test_once():
    tried = pathlib.Path(__file__).with_name("tried")
    if not tried.exists():
        tried.touch()
        raise AssertionError("the first time")

def test_never(): raise AssertionError("always")

def test_well(): pass
"""


def pytest_run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = (sys.executable, "-m", "pytest", "-q", *words)
    return subprocess.run(
        command, cwd=root, env=environment, check=False, capture_output=True, text=True
    )


def test_what_passes_alone_is_counted_and_what_fails_twice_fails(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "tests" / "test_some.py").write_text(TESTS)
    stored = tmp_path / FILE
    assert pytest_run(tmp_path).returncode == 1
    assert not stored.exists()
    again = pytest_run(tmp_path, "--last-failed", "--second-try")
    assert again.returncode == 1, "one of the two failed twice"
    name = "tests/test_some.py::test_once"
    assert re.search(
        rf'^{{"{name}": {{"count": 1, "last": "[0-9-]+"}}}}$', again.stdout, re.MULTILINE
    )
    assert {test: tries["count"] for test, tries in json.loads(stored.read_text()).items()} == {
        name: 1
    }


def test_a_run_that_broke_off_or_left_files_out_gets_no_second_try(tmp_path: Path) -> None:
    run = {"exit": 1, "uncollected": [], "died": []}
    assert reason_for_no_second_try(run) is None
    assert "ended with 2" in str(reason_for_no_second_try(run | {"exit": 2}))
    found = reason_for_no_second_try(run | {"uncollected": ["tests/test_a.py"]})
    assert found == "not collected, so that no test of them ran: tests/test_a.py"
    assert "died, so that" in str(reason_for_no_second_try(run | {"died": ["gw1"]}))


def test_a_run_from_before_stands_for_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tmp_path / ".durations" / "2026-01-01.jsonl"
    assert main(["1000"], tmp_path) == 1
    stored.parent.mkdir()
    stored.write_text(json.dumps({"exit": 1, "uncollected": [], "died": []}) + "\n")
    os.utime(stored, (999, 999))
    assert main(["1000"], tmp_path) == 1
    assert "they have stored no run" in capsys.readouterr().err
    os.utime(stored, (1000, 1000))
    assert main(["1000"], tmp_path) == 0


@pytest.mark.parametrize("then", ["pytest.skip('now')", None])
def test_what_is_skipped_or_absent_in_the_second_try_has_not_passed(
    tmp_path: Path, then: str | None
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    test = tmp_path / "tests" / "test_some.py"
    test.write_text("def test_a(): raise ValueError\n\ndef test_b(): raise ValueError\n")
    assert pytest_run(tmp_path).returncode == 1
    a = f"import pytest\n\ndef test_a(): {then}\n\n" if then else ""
    test.write_text(f"{a}def test_b(): pass\n")
    words = ("-p", "xdist", "-n", "1", "--last-failed", "--second-try")
    again = pytest_run(tmp_path, *words)
    assert again.returncode == 1
    assert "failed before, and skipped or absent now" in again.stdout
    assert list(json.loads((tmp_path / FILE).read_text())) == ["tests/test_some.py::test_b"]


def test_a_test_that_ends_its_process_with_0_has_failed(tmp_path: Path) -> None:
    printed = subprocess.run(
        ("make", "--dry-run", "test-again"), cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert "--numprocesses 1" in printed.stdout
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    test = tmp_path / "tests" / "test_some.py"
    test.write_text("import os\n\ndef test_a(): os._exit(0)\n\ndef test_b(): raise ValueError\n")
    assert pytest_run(tmp_path, "-p", "xdist", "-n", "1").returncode == 1
    test.write_text("import os\n\ndef test_a(): os._exit(0)\n\ndef test_b(): pass\n")
    words = ("-p", "xdist", "-n", "1", "--last-failed", "--second-try")
    assert pytest_run(tmp_path, *words).returncode == 1
    assert list(json.loads((tmp_path / FILE).read_text())) == ["tests/test_some.py::test_b"]


def test_continuous_integration_takes_no_options_and_no_failures_of_before(
    tmp_path: Path,
) -> None:
    programs = {
        "make": 'echo "make $* $PYTEST_ADDOPTS$MAKEFLAGS"; [ "$1" != test-ci ]',
        ".venv/bin/python": '[ "$3" -gt 1000 ] && echo "python $1 $2"; exit 3',
    }
    for name, script in programs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text((ROOT / ".ci" / "run").read_text())
    failed = tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    failed.parent.mkdir(parents=True)
    failed.touch()
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    options = {"PYTEST_ADDOPTS": "-k nothing", "MAKEFLAGS": "i"}
    done = subprocess.run(
        ("bash", ".ci/run"),
        cwd=tmp_path,
        env=environment | options,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3, "the second try is refused"
    assert [line.strip() for line in done.stdout.splitlines()] == [
        "make --jobs 2 setup browser",
        "make check",
        "make test-ci",
        "python -m tests.gate.second_tries",
    ]
    assert not failed.exists()


STORED = """
    from tests.gate import durations
    durations.MIN_TESTS = 1
    pytest_configure = durations.register
"""


def test_a_process_that_dies_ends_the_run_and_is_stored(tmp_path: Path) -> None:
    printed = subprocess.run(
        ("make", "--dry-run", "test-ci"), cwd=ROOT, check=True, capture_output=True, text=True
    )
    (words,) = re.findall(r"bin/pytest (.*?) --turn", printed.stdout.replace("\\\n", " "))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(textwrap.dedent(STORED))
    (tmp_path / "test_0.py").write_text("import os\n\ndef test_a(): os._exit(0)\n")
    slow = "import time\n\ndef test_a(): pass\n\ndef test_b(): time.sleep(0.2)\n"
    for number in range(1, 6):  # xdist alone would wait for ever after the last of them
        (tmp_path / f"test_{number}.py").write_text(slow)
    assert pytest_run(tmp_path, "-p", "xdist", *words.split()).returncode == 1
    (stored,) = stored_runs(tmp_path)
    run = json.loads(stored.read_text().splitlines()[0])
    assert len(run["died"]) == 1
    assert "died, so that" in str(reason_for_no_second_try(run))


@pytest.mark.parametrize("processes", ["0", "2"])
def test_files_that_cannot_be_collected_are_stored(tmp_path: Path, processes: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(textwrap.dedent(STORED))
    (tmp_path / "test_well.py").write_text("def test_well(): pass\n")
    (tmp_path / "test_never.py").write_text("import nothing_of_that_name\n")
    words = ("-p", "xdist", "-n", processes, "--continue-on-collection-errors")
    assert pytest_run(tmp_path, *words).returncode == 1
    (stored,) = stored_runs(tmp_path)
    assert json.loads(stored.read_text().splitlines()[0])["uncollected"] == ["test_never.py"]


def test_counts_add_up_in_the_order_of_names(tmp_path: Path) -> None:
    assert read_tries(tmp_path / "absent.json") == {}
    first = add_tries({}, ["b", "a"], today="2026-01-01")
    second = add_tries(first, ["b"], today="2026-01-02")
    assert list(second) == ["a", "b"]
    assert second == {
        "a": {"count": 1, "last": "2026-01-01"},
        "b": {"count": 2, "last": "2026-01-02"},
    }
