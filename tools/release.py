"""Builds the two wheels of a release, and puts the lock of their dependencies next to them.

Two builds of one commit are equal byte by byte, in any folder and with any umask: times in the
archives are that of the commit. The versions of Python, zlib, Node.js, hatchling and the
dashboard's tools count too; `constraints.txt` and `web/package-lock.json` pin the last two.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = ("library", ".")
DASHBOARD = Path("web/dist/index.html")
LOCK = Path("deploy/constraints.txt")


class ReleaseError(Exception):
    """The wheels cannot be built; the text names what is missing."""


def build(root: Path, to: Path) -> list[Path]:
    """Build both wheels of a source tree into a folder; return their paths and that of the lock.

    Raises:
        ReleaseError: as `build_wheels`. The folder then has no lock of an earlier build either.
    """
    (to / LOCK.name).unlink(missing_ok=True)
    wheels = build_wheels(root, to)
    return [*wheels, Path(shutil.copy(root / LOCK, to))]


def build_wheels(root: Path, to: Path) -> list[Path]:
    """Build both wheels of a source tree into a folder, and replace those of an earlier build.

    Raises:
        ReleaseError: the dashboard is not built, the tree differs from its commit or its time is
            unknown, or a build failed.
    """
    root = root.resolve()
    if not (root / DASHBOARD).is_file():
        raise ReleaseError(f"{DASHBOARD} is missing: `make wheels` builds it first")
    environment = os.environ | {"SOURCE_DATE_EPOCH": _epoch(root)}
    to.mkdir(parents=True, exist_ok=True)
    for former in to.glob("trainyard_*.whl"):
        former.unlink()
    with tempfile.TemporaryDirectory() as made:
        for project in PROJECTS:
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
            words = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", made]
            done = subprocess.run(
                [*pip, *words, str(root / project)],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise ReleaseError(f"no wheel of {project}: {done.stderr.strip()[-2000:]}")
        return [Path(shutil.copy(path, to)) for path in sorted(Path(made).glob("*.whl"))]


def _epoch(root: Path) -> str:
    """Return the time of the files in the wheels, in seconds since 1970."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return given
    changed = _git(root, "status", "--porcelain")
    if changed:
        raise ReleaseError(
            f"{root} differs from its commit, whose time its wheels would carry; commit, or set "
            f"SOURCE_DATE_EPOCH:\n{changed}"
        )
    return _git(root, "log", "-1", "--format=%ct")


def _git(root: Path, *words: str) -> str:
    git = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if git.returncode:
        raise ReleaseError(f"{root} is no git checkout: set SOURCE_DATE_EPOCH to its commit's time")
    return git.stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, and print the SHA-256 of each file as `sha256sum` does; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("to", type=Path, nargs="?", default=ROOT / "dist", help="default: dist/")
    try:
        files = build(ROOT, parser.parse_args(arguments).to)
    except ReleaseError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    for file in files:
        sys.stdout.write(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
