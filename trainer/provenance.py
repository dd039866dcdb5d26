"""Describes the running code, software and hardware."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

import torch

from trainyard.run.records import DIFF_LIMIT_BYTES, Provenance

GIT_SECONDS = 20
SOURCE = Path(__file__).resolve().parent
LAUNCH = "TRAINYARD_LAUNCH"
"""Variable in which the supervisor records how it started the ranks."""
DRIVER_VERSION_FILE = Path("/proc/driver/nvidia/version")


def provenance(source: Path = SOURCE) -> Provenance:
    """Describe this process; `source` is a folder of the running source tree."""
    # Installed packages may lie inside a repository that does not track them.
    tracked = _git(source, "ls-files", "--error-unmatch", ".") is not None
    commit = _git(source, "rev-parse", "HEAD") if tracked else None
    diff = _git(source, "diff", "--no-ext-diff", "HEAD") if commit is not None else None
    return Provenance(
        git_commit=commit.decode().strip() if commit is not None else None,
        git_diff=diff[:DIFF_LIMIT_BYTES].decode(errors="replace") if diff is not None else None,
        git_diff_truncated=diff is not None and len(diff) > DIFF_LIMIT_BYTES,
        packages=installed_packages(),
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        cuda_driver=cuda_driver(),
        nccl=_nccl(),
        host=platform.node(),
        platform=platform.platform(),
        cpu_count=len(os.sched_getaffinity(0)),
        gpus=tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())),
        launch=os.environ.get(LAUNCH),
    )


@functools.cache
def installed_packages() -> dict[str, str]:
    """Return each installed distribution's version, read once per process.

    The read takes 60 ms on a core.
    """
    # `metadata` is read once per package, because each access to `metadata` or `version` parses the
    # file.
    parsed = (package.metadata for package in importlib.metadata.distributions())
    found = ((fields["Name"], fields["Version"]) for fields in parsed)
    return dict(sorted((name, version) for name, version in found if name))


def _git(source: Path, *arguments: str) -> bytes | None:
    """Return git's output; None without git or a repository, or after `GIT_SECONDS` seconds."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(source), *arguments],
            capture_output=True,
            check=True,
            timeout=GIT_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # `git diff` may lock the index
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout


def cuda_driver() -> str | None:
    """Return the version of the loaded NVIDIA driver; None without one."""
    try:
        text = DRIVER_VERSION_FILE.read_text()
    except OSError:
        return None
    match = re.search(r"\b(\d+\.\d+(\.\d+)?)\b", text)
    return match[1] if match else None


def _nccl() -> str | None:
    if not torch.cuda.is_available():
        return None
    version: tuple[int, ...] = torch.cuda.nccl.version()
    return ".".join(map(str, version))
