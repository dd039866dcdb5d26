"""Variables that a job's process receives from its node, and the limits on a job's code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainyard.outside.proxies import without_login
from trainyard.spec.environment import environment_problems
from trainyard.spec.job import JobSpec
from trainyard.spec.rules import fields_with_code
from worker.node.process_tree import WRAPPER
from worker.node.users import RankUser

TRAINER = (sys.executable, "-m", "trainer")
REACH_SECONDS = 60.0
REACH = """
import importlib.util, os, sys
for name in ("trainer", "torch"):
    if importlib.util.find_spec(name) is None:
        raise ModuleNotFoundError(f"no package {name}")
os.stat(sys.argv[1])
for folder in sys.argv[2:]:
    os.listdir(folder)
"""
"""Checks what a rank's user needs; `find_spec` imports nothing of the package."""
HIDDEN_PREFIXES = (
    # Celery sets the last ones only in its pool's processes.
    *("TRAINYARD_", "CELERY_", "C_FORCE_ROOT", "_MP_FORK_"),
    # From an outer launch in which the worker may run: torchrun and programs would mistake the
    # ranks for its ranks. torchrun, its defaults, and `accelerate launch`:
    *("LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "PET_", "ACCELERATE_", "FSDP_"),
    # engines,
    *("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "LSB_", "JSM_", "PBS_", "PALS_", "ALPS_", "FLUX_"),
    # MPI,
    *("PMI_", "PMI2_", "PMIX_", "OMPI_", "PRTE_", "HYDRA_", "MPI_LOCAL", "MV2_COMM_", "MPIRUN_"),
    # and other libraries that start ranks.
    *("HOROVOD_", "DMLC_", "SM_", "AZ_BATCH_", "JAX_COORDINATOR_", "JAX_PROCESS_"),
)
OF_OTHER_PYTHONS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")
"""Variables of the worker's own interpreter that would lead another one to its packages."""
HIDDEN_NAMES = frozenset(
    {
        "REDIS_URL",
        # As the prefixes above.
        *("RANK", "WORLD_SIZE", "NODE_RANK", "NNODES", "NUM_NODES", "NPROC_PER_NODE"),
        *("CROSS_RANK", "CROSS_SIZE", "TORCH_ELASTIC_WORKER_IDENTICAL", "NCCL_COMM_ID"),
        *("TF_CONFIG", "JAX_NUM_PROCESSES"),
    }
)


def inherited_environment() -> dict[str, str]:
    """Return the variables of this process without the worker's own: no token, no password.

    Variables of an outer launch are removed too: the worker may run as a pilot in an engine's
    allocation, or next to the ranks of an outer job. Whoever runs a node may set any other variable
    for all of its jobs, so that no list of permitted names is possible.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(HIDDEN_PREFIXES) and name not in HIDDEN_NAMES
    }


def rank_environment() -> dict[str, str]:
    """Return the inherited variables for ranks: proxies without user and password.

    The worker and its supervisors log in to a proxy with them; a job's code must not see them.
    """
    environment = inherited_environment()
    for name, value in environment.items():
        if name.upper().endswith("_PROXY"):
            environment[name] = without_login(value)
    return environment


def code_of(spec: JobSpec) -> str | None:
    """Return why a spec runs, or could run, code of the job, as a refusal; None if it does not."""
    refused = fields_with_code(spec)
    if not refused:
        return None
    message = (
        "this node runs no code that a job brings; TRAINYARD_ALLOW_CODE=true for its worker "
        f"allows it. Refused: {', '.join(refused)}"
    )
    # All names precede the reasons: the reasons are long, and a message is cut.
    return "; ".join((message, *(p.detail for p in environment_problems(spec.env))))


def check_reach(user: RankUser, *, run_directories: Path, folders: Iterable[Path]) -> None:
    """Start the interpreter as a user of ranks, and check access to everything that ranks need.

    Raises:
        ValueError: the user cannot start it, or cannot read a package or a folder.
    """
    command = [sys.executable, "-c", REACH, str(run_directories), *map(str, folders)]
    words = [*WRAPPER, "tie", str(os.getpid()), user.word, "--", *command]
    try:
        output_of(words, seconds=REACH_SECONDS, folder=run_directories)
    except ValueError as error:
        raise ValueError(
            f"TRAINYARD_RUN_AS: user {user.uid} cannot use {sys.executable}: {error}. Its users "
            "need to read the interpreter, the packages and the storage roots, and to pass through "
            "all folders above these and above the data folder (chmod o+x)"
        ) from None


def output_of(command: Sequence[str], *, seconds: float, folder: Path | None = None) -> str:
    """Return the stdout of a command that runs in the ranks' environment.

    Raises:
        ValueError: it failed, with the last line of its stderr, or took longer than `seconds`.
    """
    try:
        done = subprocess.run(
            command,
            env=rank_environment(),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"no answer in {seconds:.0f} s") from None
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return done.stdout.strip()
