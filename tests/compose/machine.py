"""A machine with Podman: a folder with Debian 13, the root of a namespace of mounts.

Containers, images and volumes lie in the folder, locks and sockets below its `/run`: the machine of
the tests keeps nothing of them. `make test-compose` makes the namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PLACE = REPOSITORY / ".compose"
"""What tests keep between runs: the machine and archives of images."""
ROOT = PLACE / "machine"
PODMAN, DOCKER_COMPOSE = PLACE / "podman", PLACE / "docker-compose"
"""Scripts that run these programs of the machine, in the folder of their caller."""
SUITE = "trixie"
PACKAGES = (
    "podman",
    "crun",
    "netavark",
    "aardvark-dns",
    "nftables",
    "conmon",
    "ca-certificates",
    "docker-compose",
    "mount",
)
SOCKET = Path("/run/podman.sock")
"""Where Podman of the machine answers Docker's clients."""
SCRIPT = Path(__file__).with_name("machine.sh")
ENTER = f"""#!/bin/sh
exec nsenter --target {{pid}} --mount env --chdir="$PWD" HOME=/root DOCKER_HOST=unix://{SOCKET} \\
    PODMAN_IGNORE_CGROUPSV1_WARNING=1 "${{{{0##*/}}}}" "$@"
"""


def debian(suite: str, target: Path, *packages: str) -> None:
    """Make a Debian with these packages as a folder, or as an archive where the name is one's."""
    made = target.with_name(f"new-{target.name}")
    if made.is_dir():
        shutil.rmtree(made)
    with_packages = [f"--include={','.join(packages)}"] if packages else []
    words = ("mmdebstrap", "--quiet", "--variant=apt", *with_packages, suite, str(made))
    subprocess.run((*words, "http://deb.debian.org/debian"), check=True)
    made.rename(target)


def make() -> None:
    """Make the machine, unless an earlier run did."""
    PLACE.mkdir(exist_ok=True)
    if not ROOT.exists():
        debian(SUITE, ROOT, *PACKAGES)


def start(*shown: Path) -> subprocess.Popen[str]:
    """Start the machine, which ends with the process that is returned.

    Args:
        shown: files and folders that it shows at their own paths, next to the repository.
    """
    words = ("unshare", "--mount", "sh", str(SCRIPT), str(ROOT), str(REPOSITORY), *map(str, shown))
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", "the machine did not start"
    for program in (PODMAN, DOCKER_COMPOSE):
        program.write_text(ENTER.format(pid=process.pid))
        program.chmod(0o755)
    return process


def podman(*words: str, check: bool = True) -> str:
    """Run Podman, and return what it prints on standard output."""
    return run((str(PODMAN), *words), check=check)


def run(
    words: Sequence[str], *, check: bool = True, variables: Mapping[str, str] | None = None
) -> str:
    """Run a command in the repository, with these variables more, and return what it prints."""
    done = subprocess.run(
        words,
        cwd=REPOSITORY,
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
    )
    assert not check or done.returncode == 0, f"{words}: {done.stderr[-4000:]}{done.stdout[-2000:]}"
    return done.stdout
