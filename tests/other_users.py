"""What tests need that run code as other Unix users: a folder, an interpreter, packages."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change to other users")


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that other users can pass through, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="trainyard-users-", dir="/tmp"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def python_for_others() -> str:
    """Return an interpreter that any user can start, with our packages in its reach; else skip."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        if Path(path).exists() and _starts_for_others(path):
            return path
    pytest.skip(f"no {version} that another user can start")


def python_in(folder: Path) -> tuple[str, ...]:
    """Return the words that start this interpreter from a folder that others can pass through.

    It is mounted there for the process alone, and for what that starts: nothing is left to remove.
    """
    binary = Path(sys.executable).resolve().name
    script = (
        f"mount --bind -o ro {sys.base_prefix} {folder} && "
        f'LD_LIBRARY_PATH={folder}/lib exec {folder}/bin/{binary} "$@"'
    )
    return ("unshare", "--mount", "--propagation=private", "/bin/sh", "-c", script, "sh")


ENTER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000):  # CLONE_NEWUSER
    raise OSError(ctypes.get_errno(), "no user namespace")
print(flush=True)
sys.stdin.readline()
os.setgroups([])
os.setresgid(0, 0, 0)
os.setresuid(0, 0, 0)
os.execv("/usr/bin/env", ["env", *sys.argv[1:]])  # this interpreter may be closed to that user
"""


def in_user_namespace(words: Sequence[str], *, first: int) -> subprocess.Popen[str]:
    """Start a command as root of a new user namespace, which maps ids 0 to 65,535.

    Args:
        words: the command.
        first: id of the machine that is 0 in there.
    """
    process = subprocess.Popen(
        (sys.executable, "-c", ENTER, *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": packages()},
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    for kind in ("uid", "gid"):
        Path(f"/proc/{process.pid}/{kind}_map").write_text(f"0 {first} 65536\n", encoding="ascii")
    process.stdin.write("\n")
    process.stdin.flush()
    return process


ENTER_AND_GO = """
import ctypes, os, sys
first, given, *words = sys.argv[1:]
for folder in given.split(":"):
    os.chown(folder, int(first), int(first))
apart, made, mapped = os.getpid(), os.pipe(), os.pipe()
if os.fork() == 0:  # stays outside, where it may map any id
    os.read(made[0], 1)
    for kind in ("uid", "gid"):
        with open(f"/proc/{apart}/{kind}_map", "w") as file:
            file.write(f"0 {first} 65536")
    os.write(mapped[1], b"1")
    os._exit(0)
if ctypes.CDLL(None).unshare(0x10000000):  # CLONE_NEWUSER
    raise OSError("no user namespace")
os.write(made[1], b"1")
os.read(mapped[0], 1)
os.wait()
os.setgroups([])
os.setresgid(0, 0, 0)
os.setresuid(0, 0, 0)
os.execv(sys.executable, [sys.executable, *words])
"""


def entering_namespace(
    python: Sequence[str], *, first: int, folders: Sequence[Path]
) -> tuple[str, ...]:
    """Return the words that start an interpreter as root of a new user namespace.

    Args:
        python: the words that start it outside.
        first: id of the machine that is 0 in there; ids 0 to 65,535 are mapped.
        folders: those that belong to this root then.
    """
    return (*python, "-c", ENTER_AND_GO, str(first), ":".join(map(str, folders)))


def packages() -> str:
    """Return the path of our packages and the installed ones."""
    installed = [path for path in sys.path if path.endswith("-packages")]
    root = Path(__file__).parents[1]
    return os.pathsep.join([str(root), str(root / "library"), *installed])


def _starts_for_others(path: str) -> bool:
    # By way of a shell: setpriv itself still passes through folders that are closed to the user.
    start = ["/bin/sh", "-c", f"exec {path} -c 'import ctypes, ssl'"]
    words = ["setpriv", "--reuid=61998", "--regid=61998", "--clear-groups", *start]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0
