"""Which tests share a process, and in which order they begin."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gate.processes import TOGETHER, scope_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/e2e/test_main_path.py::test_it[a::b]", "tests/e2e"),
        ("tests/e2e/own_planes/test_users.py::test_it", "tests/e2e/own_planes/test_users.py"),
        ("tests/server/test_leases.py::test_it", "tests/server/test_leases.py"),
    ],
)
def test_a_folder_goes_to_one_process_and_else_a_file(nodeid: str, scope: str) -> None:
    assert scope_of(nodeid) == scope


@pytest.mark.parametrize("folder", TOGETHER)
def test_each_folder_has_tests(folder: str) -> None:
    assert list((ROOT / folder).glob("test_*.py"))


def test_files_of_a_folder_share_a_process_and_begin_first(tmp_path: Path) -> None:
    ended = run(tmp_path, "tests/e2e/test_a.py", "tests/e2e/test_b.py", "tests/a/test_c.py")
    lines = [line.split() for line in ended.splitlines() if "PASSED" in line]
    processes = {words[-1]: words[0] for words in lines}
    alone = run(tmp_path, "tests/a/test_d.py", processes=1)
    assert [name.split("/")[1] for name in re.findall(r"PASSED (.*)", alone)][:2] == ["e2e"] * 2
    shared = {processes["tests/e2e/test_a.py::test_it"], processes["tests/e2e/test_b.py::test_it"]}
    assert len(shared) == 1
    assert processes["tests/a/test_c.py::test_it"] not in shared


def run(root: Path, *files: str, processes: int = 2) -> str:
    """Add files, each with one test, and run all of them; return what pytest prints."""
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("def test_it(): pass\n")
    (root / "conftest.py").write_text(
        "from tests.gate import processes\n\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(processes)\n"
    )
    words = (
        "-v",
        "-p",
        "xdist",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(root),
        "--dist",
        "loadfile",
    )
    ran = subprocess.run(
        (
            sys.executable,
            "-m",
            "pytest",
            *words,
            "--no-loadscope-reorder",
            f"-n{processes}",
            str(root),
        ),
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
