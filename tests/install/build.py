"""Make what the tests of installations need: a bare Debian, wheels of two versions, dependencies.

The Debian has Python and nothing that builds or installs packages. Wheels come from the index for
which pip is configured here; what runs of them has no network. All of it stays in `.install`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.compose import machine
from tools.release import LOCK, build_wheels

REPOSITORY = machine.REPOSITORY
PLACE = REPOSITORY / ".install"
ROOT, WHEELS = PLACE / "root", PLACE / "wheels"
NEW, FORMER = PLACE / "new", PLACE / "former"
"""Our two wheels with their lock: of this tree, and of the version before."""
UV = PLACE / "uv"
TREE = PLACE / "tree"
SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
"""Debian with the Python of this environment, for which the wheels are."""
OLDER_PYTHON = ("async-timeout",)
"""What only a Python older than this environment's needs, such as 3.11.2 of Debian 12."""
EPOCH = "1790000000"
"""Time in the wheels, so that changes of this tree that are not committed can be tested too."""
BEFORE = os.environ.get("TRAINYARD_TEST_BEFORE", "bca926c251b5d442f7926b9f49dda590c0065a72")
"""Commit of the version before: the last one before 1.0, whose distributions had other names."""


def main() -> None:
    """Make what is missing, and our wheels anew."""
    PLACE.mkdir(exist_ok=True)
    os.environ.setdefault("SOURCE_DATE_EPOCH", EPOCH)
    if not ROOT.exists():
        machine.debian(SUITES[sys.version_info[:2]], ROOT, "python3")
    for folder in (NEW, FORMER, *PLACE.glob("top-*")):  # an earlier run may have been killed
        shutil.rmtree(folder, ignore_errors=True)
    build_wheels(REPOSITORY, NEW)
    shutil.copy(REPOSITORY / LOCK, NEW)
    with_worktree()
    for folder in (NEW, FORMER):
        download(folder)
    with zipfile.ZipFile(next(WHEELS.glob("uv-*.whl"))) as wheel:
        (name,) = [each for each in wheel.namelist() if each.endswith("/scripts/uv")]
        UV.write_bytes(wheel.read(name))
    UV.chmod(0o755)


def with_worktree() -> None:
    """Build the wheels of the version before from a checkout of its own."""
    git = ("git", "-C", str(REPOSITORY), "worktree")
    subprocess.run((*git, "remove", "--force", str(TREE)), capture_output=True, check=False)
    subprocess.run((*git, "add", "--quiet", "--detach", str(TREE), BEFORE), check=True)
    try:
        modules = Path("web", "node_modules")
        (TREE / modules).symlink_to(REPOSITORY / modules)
        npm = ("npm", "--prefix", str(TREE / "web"), "run", "--silent", "build")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        subprocess.run(npm, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"PATH": path})
        build_wheels(TREE, FORMER)
        lock = TREE / LOCK
        shutil.copy(lock if lock.exists() else TREE / "constraints.txt", FORMER / LOCK.name)
    finally:
        subprocess.run((*git, "remove", "--force", str(TREE)), check=True)


def download(folder: Path) -> None:
    """Fetch what two wheels depend on, unless an earlier run did."""
    ours = wheels(folder)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet")
    words = ("--dest", str(WHEELS), "--find-links", str(WHEELS), "-c", str(folder / LOCK.name))
    subprocess.run((*pip, *words, *ours, *OLDER_PYTHON), check=True)
    for copy in WHEELS.glob("trainyard*"):
        copy.unlink()


def wheels(folder: Path, *, at: str | None = None) -> list[str]:
    """Return the requirements of both wheels in a folder, which a root shows at another path."""
    library, programs = sorted(path.name for path in folder.glob("trainyard*.whl"))
    place = at or str(folder)
    return [f"{place}/{library}", f"{place}/{programs}[embedded]"]


if __name__ == "__main__":
    main()
