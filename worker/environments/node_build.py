"""The worker's trusted steps before and after the build command."""

from __future__ import annotations

import sys
from pathlib import Path

from trainyard.protocol.operations import BuildTask, OperationOutcome
from trainyard.run.atomic import create_file
from worker.environments.build_request import BuildRequest
from worker.environments.environment_store import MAX_BYTES, EnvironmentStore
from worker.environments.interpreters import cuda_version, python_facts
from worker.environments.uv_build import ORDER, BuildOrder
from worker.node.folder_usage import remove_tree
from worker.node.users import RankUser

COMMAND = (sys.executable, "-m", "worker.environments")


class NodeBuild:
    """One build of an environment on this node."""

    def __init__(self, root: Path, task: BuildTask) -> None:
        """Describe the build; nothing is read yet.

        Args:
            root: the storage root.
            task: the environment to build.
        """
        self._store, self._digest = EnvironmentStore(root), task.digest

    def prepare(self, folder: Path) -> None:
        """Write the order that the build command reads.

        Args:
            folder: folder of the operation.

        Raises:
            OSError: a file cannot be read or written.
            ValueError: the request is missing, this node differs from the node that made the
                request, or another user can change the environments.
        """
        order = BuildOrder()
        if self._store.find(self._digest) is None:
            request = self._store.read_request(self._digest)
            if request is None:
                raise ValueError(
                    f"{self._store.folder} has no request for environment {self._digest[:12]}; "
                    "resume the job, which requests it again"
                )
            _check(request)
            target = self._store.begin(self._digest)
            order = BuildOrder(request=request, target=str(target))
        create_file(folder / ORDER, order.model_dump_json(indent=1) + "\n", mode=0o640)

    def admit(self, folder: Path, user: RankUser) -> None:
        """Give the command's user access to the folders; called before the user's first process
        starts.
        """
        user.give(folder / ORDER, 0o640)
        if (target := self.target(folder)) is not None:
            user.give(target, 0o1770)

    def finish(
        self, folder: Path, outcome: OperationOutcome, *, unused_days: float
    ) -> OperationOutcome:
        """Publish the build after the command's processes have ended.

        Args:
            folder: folder of the operation.
            outcome: outcome that the command reported, or the failure if it reported none.
            unused_days: number of days without use after which other environments are removed.

        Returns:
            Outcome of the operation.
        """
        target = self.target(folder)
        if target is None or outcome.outcome != "succeeded":
            return outcome
        try:
            removed = self._store.clean(unused_days=unused_days, most_bytes=MAX_BYTES)
            size = self._store.publish(target, self._digest, most_bytes=MAX_BYTES)
        except (OSError, ValueError) as error:
            return OperationOutcome(outcome="failed", message=f"the environment: {error}"[:4000])
        also = f"; {len(removed)} unused ones were removed" if removed else ""
        message = (
            f"environment {self._digest[:12]}: {outcome.message}, {size / 2**20:,.1f} MiB{also}"
        )
        return OperationOutcome(outcome="succeeded", message=message)

    def discard(self, folder: Path) -> None:
        """Remove an unfinished build after the command's processes have ended."""
        if (target := self.target(folder)) is not None:
            remove_tree(target)

    def target(self, folder: Path) -> Path | None:
        """Return the folder for the packages, or None if the packages are already installed."""
        target = BuildOrder.model_validate_json((folder / ORDER).read_bytes()).target
        return Path(target) if target else None


def _check(request: BuildRequest) -> None:
    """Refuse a request from a node that differs from this one.

    Raises:
        ValueError: the nodes differ; the message names the differences.
    """
    wanted = request.python
    version = ".".join(wanted.version.split(".")[:2])
    here = python_facts(version)
    if here != wanted:
        names = [n for n in type(here).model_fields if getattr(here, n) != getattr(wanted, n)]
        differ = ", ".join(f"{n} {getattr(here, n)}, not {getattr(wanted, n)}" for n in names)
        raise ValueError(
            f"this node has {differ}: it cannot build for the node that needs the environment. The "
            "label network=true belongs on nodes that are like the others"
        )
    if (cuda := cuda_version()) not in ("none", request.cuda):
        raise ValueError(f"this node has CUDA {cuda}, not {request.cuda}; legal: the same, or none")
