"""Launches the built-in trainer's ranks on a node by forks or, if that fails, by torchrun."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainyard.run.failures import Failure, FailureReason
from worker.launchers.base import Observation, Share
from worker.launchers.rank_environment import TRAINER
from worker.launchers.torchrun import COLD, LAUNCH, WARM, RankWatch, TorchrunLauncher
from worker.launchers.warm.fork_client import UNMARKED, Forkserver, ForkserverError
from worker.launchers.warm.forkserver import ForkedLaunch, ForkedProcess
from worker.node.cgroup import make_cgroup
from worker.node.files import tail
from worker.node.process_tree import MARKER, NODE_MARKER

logger = logging.getLogger(__name__)

AFTER_IMPORT = re.compile(
    r"CUDA_VISIBLE_DEVICES|CUDA_(CACHE|DEVICE|FORCE|LAUNCH|MODULE)_\w+|CUBLAS_WORKSPACE_CONFIG"
    r"|NCCL_\w+|TORCH_NCCL_\w+|(GLOO|TP)_SOCKET_IFNAME|TORCH_GLOO_LAZY_INIT"
    r"|TORCHINDUCTOR_CACHE_DIR|TRITON_CACHE_DIR|TORCH_ELASTIC_WORKER_IDENTICAL|HOME|USER|LOGNAME"
)
"""Variables that no import reads: NCCL and gloo read theirs when a group is created, CUDA at its
first use, compilers when they compile. A difference in any other variable makes the launch cold.
"""


class WarmLauncher:
    """Forks the ranks of one node behind the rank wrapper, or starts torchrun instead."""

    checks_alongside = True

    def __init__(
        self, share: Share, forkserver: Forkserver, *, trainer: Sequence[str] = TRAINER
    ) -> None:
        """Describe the launch; nothing starts.

        Args:
            share: the node's share of the attempt.
            forkserver: a forkserver of this process that has imported the trainer.
            trainer: command of a rank: `python -m` a module, and optional arguments.
        """
        self._share = share
        self._forkserver = forkserver
        self._watch = RankWatch(share.run, share.ranks)
        self._trainer = trainer
        self._cold = TorchrunLauncher(share, trainer=trainer)
        self._wrappers: list[int] | None = None

    def prepare(self) -> list[str] | Failure:
        """Return the command of the trainer's input check, or a failure if the port is taken."""
        return self._cold.prepare()

    def start(self, *, check: Sequence[str] = ()) -> int | None:
        """Fork the check and the ranks; return the pid of the check."""
        why = why_cold(self._share, self._forkserver.environment)
        if why is None:
            try:
                return self._fork(check)
            except ForkserverError as error:
                why = str(error)
        logger.warning("a cold launch: %s", why)
        self._forkserver.end()
        self._cold.manner = f"{COLD}: {why}"
        return self._cold.start(check=check)

    def observe(self) -> Observation:
        """Return the state of the ranks, from the exits and the files of their wrappers."""
        if self._wrappers is None:
            return self._cold.observe()
        # Read the exits first: after its wrapper's end, no rank starts.
        ends = [self._share.processes.status(pid) for pid in self._wrappers]
        seen = self._watch.poll()
        early = {
            rank: status
            for rank, status in zip(self._share.ranks, ends, strict=True)
            if status is not None and rank not in seen.pids
        }
        if not early and None in ends:
            return seen
        failure = None
        if early:  # otherwise the other ranks would wait until a collective times out
            named = ", ".join(f"{rank} (status {status})" for rank, status in early.items())
            failure = Failure(
                reason=FailureReason.LAUNCH_ERROR,
                message=f"the wrappers of ranks ended before these began: {named}",
                node=self._share.launch.node,
                traceback=tail(self._share.run.launcher_log, mask=self._share.mask) or None,
                node_at_fault=True,
            )
        return replace(seen, ended=True, failure=failure)

    def stop(self) -> None:
        """End the forkserver, the ranks and all their child processes."""
        self._share.processes.end()

    def _fork(self, check: Sequence[str]) -> int | None:
        share, launch, run = self._share, self._share.launch, self._share.run
        skipped = len(TRAINER)  # words with which a new interpreter finds the module
        words = [*self._trainer[skipped:], str(run.root)]
        processes = [
            ForkedProcess(words, str(run.launcher_log), rank, _of_rank(local, rank, share))
            for local, rank in enumerate(share.ranks)
        ]
        if check:  # first, because the check takes less time
            log = str(run.log(share.ranks[0]))
            processes.insert(0, ForkedProcess([*check[skipped:]], log))
        marks = {MARKER: launch.attempt_id, NODE_MARKER: launch.node}
        cgroup = make_cgroup(launch.attempt_id, node=launch.node)
        request = ForkedLaunch(
            run=str(run.root),
            supervisor=os.getpid(),
            processes=processes,
            environment=share.environment | marks | {LAUNCH: WARM},
            marks=marks,
            user=launch.user.word if launch.user else None,
            cgroup=None if cgroup is None else str(cgroup),
        )
        pids = self._forkserver.fork(request)
        self._wrappers = pids[bool(check) :]
        return pids[0] if check else None


def why_cold(share: Share, imported: Mapping[str, str]) -> str | None:
    """Return why ranks cannot be forked from a process with these variables, or None."""
    if share.nodes > 1:
        return "ranks on several nodes meet by torchrun"
    if share.spec.model.runs_code:
        return "the job brings a model of its own"
    if len(share.launch.attempt_id) != len(UNMARKED):
        return f"the attempt's id {share.launch.attempt_id!r} has another length than ids have"
    wanted = share.environment
    differing = {
        name for name in wanted.keys() | imported.keys() if wanted.get(name) != imported.get(name)
    }
    read = sorted(name for name in differing if not AFTER_IMPORT.fullmatch(name))
    if read:
        return f"imports may read {', '.join(read)}, which the launch changes"
    return None


def _of_rank(local: int, rank: int, share: Share) -> dict[str, str]:
    """Return a rank's variables, a part of those set by torchrun, without the rendezvous."""
    ranks = str(len(share.ranks))
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(sum(share.sizes)),
        "LOCAL_WORLD_SIZE": ranks,
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        # As with torchrun, an error in a collective ends the rank.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": share.environment.get(
            "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"
        ),
    }
