"""The Python interpreters of a node, and the facts about them that package builds depend on."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

from trainyard.base.model_base import RecordModel

FACTS_SECONDS = 60.0
FACTS = """
import json, os, platform, sys, sysconfig
print(json.dumps({
    "executable": os.path.realpath(sys.executable),
    "version": platform.python_version(),
    "implementation": sys.implementation.cache_tag or sys.implementation.name,
    "platform": sysconfig.get_platform(),
    "libc": " ".join(platform.libc_ver()),
}))
"""


class PythonFacts(RecordModel):
    """Facts about one interpreter of a node."""

    executable: str
    """Path of the interpreter with links resolved; an environment refers to this path."""
    version: str
    """Version, such as `3.12.4`."""
    implementation: str
    """Implementation, such as `cpython-312`."""
    platform: str
    """Platform, such as `linux-x86_64`."""
    libc: str
    """C library, such as `glibc 2.36`."""


def python_facts(version: str | None) -> PythonFacts:
    """Return the facts about one of this node's Python interpreters.

    Args:
        version: major and minor version number; None for the worker's own interpreter.

    Raises:
        ValueError: the node has no such interpreter, or the interpreter does not respond.
    """
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    python = _own(own) if version in (None, own) else shutil.which(f"python{version}")
    if python is None:
        raise ValueError(
            f"program.environment.python={version!r}: this node has no python{version} on "
            f"PATH; its worker runs {own}"
        )
    try:
        answer = subprocess.run(
            [python, "-I", "-S", "-c", FACTS],
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=FACTS_SECONDS,
            check=True,
        )
        return PythonFacts.model_validate_json(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ValueError(f"program.environment.python: {python} does not answer: {error}") from None


def _own(version: str) -> str:
    """Return the interpreter from which the worker's own environment was created."""
    base = Path(sys.base_prefix, "bin", f"python{version}")
    return str(base) if os.access(base, os.X_OK) else os.path.realpath(sys.executable)


def cuda_version() -> str:
    """Return the CUDA version that the node's driver supports, such as `13.0`, or `none`."""
    try:
        driver, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        if driver.cuDriverGetVersion(ctypes.byref(number)):  # needs no context and no GPU
            return "none"
    except (OSError, AttributeError):
        return "none"
    return f"{number.value // 1000}.{number.value % 1000 // 10}"
