"""Installs the packages of a lock with uv, without a shell (docs/adr/0011).

Started as `python -m worker.environments FOLDER`. FOLDER is the folder of an operation and holds:

```
build.json       the BuildOrder
project/         the lock and the files next to it, removed at the end
build.log        output of uv
cache/           uv's cache, removed at the end
```
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainyard.base.model_base import RecordModel
from trainyard.protocol.operations import OUTCOME, PROGRESS, OperationOutcome, OperationProgress
from trainyard.run.atomic import replace_file
from trainyard.spec.sections.program import UV_LOCK
from worker.environments.build_request import PROJECT, BuildRequest
from worker.node.files import tail
from worker.node.folder_usage import remove_tree

ORDER, BUILD_LOG = "build.json", "build.log"
REQUIREMENTS = "requirements.txt"
UV = (sys.executable, "-m", "uv", "--no-progress", "--color=never")


class BuildOrder(RecordModel):
    """`build.json`: packages to install and their target; both absent if the environment exists."""

    request: BuildRequest | None = None
    """Request with the lock and the interpreter."""
    target: str = ""
    """Folder of the environment, still empty."""


def build(folder: Path) -> OperationOutcome:
    """Install the packages of an order; return the outcome."""
    order = BuildOrder.model_validate_json((folder / ORDER).read_bytes())
    if order.request is None:
        return OperationOutcome(outcome="succeeded", message="it is in place already")
    project, began = folder / "project", time.monotonic()
    project.mkdir()
    for name, text in _files(order.request).items():
        (project / name).write_text(text, encoding="utf-8")
    environment = _variables(folder, order.target)
    steps = list(_steps(order.request, order.target, project))
    try:
        for done, (doing, words) in enumerate(steps):
            progress = OperationProgress(doing=doing, done=done, total=len(steps))
            replace_file(folder / PROGRESS, progress.model_dump_json(), durable=False)
            failed = _run([*UV, *words], folder, environment)
            if failed is not None:
                message = f"uv {words[0]} {failed}. Its last lines:\n{tail(folder / BUILD_LOG)}"
                return OperationOutcome(outcome="failed", message=message[-4000:])
    finally:
        for left_over in ("cache", "project"):
            remove_tree(folder / left_over)
    took = time.monotonic() - began
    return OperationOutcome(
        outcome="succeeded", message=f"the packages were installed in {took:.0f} s"
    )


def _files(request: BuildRequest) -> Mapping[str, str]:
    if request.project is None:
        return {REQUIREMENTS: request.lock}
    return {UV_LOCK: request.lock, PROJECT: request.project}


def _variables(folder: Path, target: str) -> Mapping[str, str]:
    # The node's own uv settings, such as a mirror, come from variables and /etc/uv/uv.toml.
    return {
        **{name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"},
        "UV_CACHE_DIR": str(folder / "cache"),
        "UV_PROJECT_ENVIRONMENT": target,
        "UV_LINK_MODE": "copy",  # a hard link would share the cached file's mode
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_COMPILE_BYTECODE": "1",  # ranks cannot write bytecode there
    }


def _steps(
    request: BuildRequest, target: str, project: Path
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield purpose and arguments of each uv command."""
    python = ("--python", request.python.executable)
    # Relocatable, because nodes may see the root at different paths, and the folder is renamed at
    # the end.
    yield "creates it", ("venv", "--relocatable", "--allow-existing", *python, target)
    if request.project is not None:
        yield (
            "installs packages",
            (
                *("sync", "--frozen", "--no-dev", "--no-install-project", "--no-editable"),
                *("--project", str(project), *python),
            ),
        )
    else:
        yield (
            "installs packages",
            (
                *("pip", "install", "--require-hashes"),
                *("--python", str(Path(target, "bin", "python"))),
                *("--requirements", str(project / REQUIREMENTS)),
            ),
        )


def _run(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str | None:
    """Run a command and log its output; return the reason if it failed, otherwise None.

    The operation's supervisor enforces the limits. This process cannot enforce them, because a
    package's code runs as the same user and could stop this process.
    """
    with (folder / BUILD_LOG).open("ab") as log:
        done = subprocess.run(
            words,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return f"ended with status {done.returncode}" if done.returncode else None


def main(folder: Path) -> int:
    """Build the environment of an operation's folder, and write the outcome file."""
    outcome = build(folder)
    replace_file(folder / OUTCOME, outcome.model_dump_json(indent=1) + "\n")
    return 0
