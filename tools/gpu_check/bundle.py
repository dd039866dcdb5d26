"""Collects the wheels that a machine with its own torch may lack, for use without a network."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
CARRIED = (
    # what the library (its client apart) and the trainer import
    "pydantic",
    "pydantic-core",
    "annotated-types",
    "typing-inspection",
    "typing-extensions",
    "backports-zstd",
    "safetensors",
    "tokenizers",
    "torchao",
    "xxhash",
    # what the tests that need CUDA are run with
    "pytest",
    "iniconfig",
    "packaging",
    "pluggy",
    "pygments",
    "hypothesis",
    "sortedcontainers",
)
"""Distributions in a bundle, at the versions of constraints.txt."""
PROVIDED = ("torch", "numpy")
"""What the machine brings: a build of torch for its GPU, and the numpy that torch was built for."""
NEVER_IMPORTED = ("pyarrow", "s3fs", "botocore", "tensorboard", "huggingface-hub")
"""What is only imported for Parquet files, object stores, TensorBoard files or downloads."""
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_24_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)
MIB = 2**20


def collect(to: Path, *, python: str, platforms: Sequence[str]) -> None:
    """Download the wheels of a bundle into a folder, and print its size.

    Args:
        to: the folder; wheels of another bundle are removed first, as two versions of a package
            would stop its installation.
        python: version of the interpreter there, such as `3.12`.
        platforms: tags of the platform there; those of x86-64 Linux when empty.

    Raises:
        CalledProcessError: pip has no such wheel.
    """
    to.mkdir(parents=True, exist_ok=True)
    for wheel in to.glob("*.whl"):
        wheel.unlink()
    words = [
        "--no-deps",
        "--only-binary=:all:",
        "--implementation=cp",
        "--disable-pip-version-check",
    ]
    words += [f"--python-version={python}", f"--dest={to}"]
    words += [f"--platform={tag}" for tag in platforms or PLATFORMS]
    requirements = pinned(CARRIED, CONSTRAINTS.read_text(encoding="utf-8"))
    pip = [sys.executable, "-m", "pip", "download", "--quiet"]
    subprocess.run([*pip, *words, *requirements], check=True)
    wheels = list(to.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels) / MIB
    sys.stdout.write(f"{len(wheels)} wheels, {size:.1f} MiB, in {to}\n")


def pinned(names: Iterable[str], constraints: str) -> list[str]:
    """Return each name with its version, as `name==version`.

    Raises:
        KeyError: one has no version.
    """
    lines = (line.partition("#")[0].partition(";")[0] for line in constraints.splitlines())
    versions = {
        canonical(name): version.strip()
        for name, equals, version in (line.partition("==") for line in lines)
        if equals
    }
    return [f"{name}=={versions[canonical(name)]}" for name in names]


def canonical(name: str) -> str:
    """Return a distribution's name as packaging tools compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower().strip()
