"""Variables that a job's process inherits from its node, and checks of a job's code."""

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
"""Script that checks, without imports, whether a rank's user can read packages."""
HIDDEN_PREFIXES = (
    # Celery sets the last variables only in the processes of its pool.
    *("TRAINYARD_", "CELERY_", "C_FORCE_ROOT", "_MP_FORK_"),
    # Variables of an outer launch in which the worker may run. torchrun and programs would count
    # the ranks as ranks of that launch. Set by torchrun, its defaults, and `accelerate launch`:
    *("LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "PET_", "ACCELERATE_", "FSDP_"),
    # by batch engines,
    *("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "LSB_", "JSM_", "PBS_", "PALS_", "ALPS_", "FLUX_"),
    # by MPI,
    *("PMI_", "PMI2_", "PMIX_", "OMPI_", "PRTE_", "HYDRA_", "MPI_LOCAL", "MV2_COMM_", "MPIRUN_"),
    # and by other libraries that start ranks.
    *("HOROVOD_", "DMLC_", "SM_", "AZ_BATCH_", "JAX_COORDINATOR_", "JAX_PROCESS_"),
)
OF_OTHER_PYTHONS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")
"""Variables of the worker's interpreter that lead another interpreter to the worker's packages."""
HIDDEN_NAMES = frozenset(
    {
        "REDIS_URL",
        # Whole names of variables of an outer launch.
        *("RANK", "WORLD_SIZE", "NODE_RANK", "NNODES", "NUM_NODES", "NPROC_PER_NODE"),
        *("CROSS_RANK", "CROSS_SIZE", "TORCH_ELASTIC_WORKER_IDENTICAL", "NCCL_COMM_ID"),
        *("TF_CONFIG", "JAX_NUM_PROCESSES"),
    }
)

OF_LOGIN = ("DBUS_", "KRB5", "MAIL", "SSH_", "SUDO_", "XDG_")
"""Prefixes of variables that lead to credentials and services of the worker's own login."""


def inherited_environment() -> dict[str, str]:
    """Return the variables of this process without the worker's own, such as tokens and passwords.

    Variables of an outer launch are removed too, because the worker may run as a pilot in an
    engine's allocation, or next to the ranks of an outer job. A list of permitted names is
    impossible, because a node's operator may set any variable for all its jobs.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(HIDDEN_PREFIXES) and name not in HIDDEN_NAMES
    }


def rank_environment(user: RankUser | None = None) -> dict[str, str]:
    """Return the variables that ranks inherit; their proxy URLs have no user and password.

    The worker and its supervisors need these credentials, but a job's code must not see them. Under
    an account, the variables of the worker's own login are left out, too.
    """
    environment = inherited_environment()
    if user is not None and user.account is not None:
        for name in [each for each in environment if each.startswith(OF_LOGIN)]:
            del environment[name]
    for name, value in environment.items():
        if name.upper().endswith("_PROXY"):
            environment[name] = without_login(value)
    return environment


def code_of(spec: JobSpec) -> str | None:
    """Return a refusal if a spec runs, or could run, code of the job; otherwise None."""
    refused = fields_with_code(spec)
    if not refused:
        return None
    message = (
        "this node runs no code that a job brings; TRAINYARD_ALLOW_CODE=true for its worker "
        f"allows it. Refused: {', '.join(refused)}"
    )
    # All names precede the reasons, because reasons are long and a message may be cut off.
    return "; ".join((message, *(p.detail for p in environment_problems(spec.env))))


def check_reach(user: RankUser, *, run_directories: Path, folders: Iterable[Path]) -> None:
    """Check that a user of ranks can start the interpreter and access all that ranks need.

    Raises:
        ValueError: the user cannot start the interpreter, or cannot read a package or a folder.
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


def output_of(
    command: Sequence[str],
    *,
    seconds: float,
    folder: Path | None = None,
    user: RankUser | None = None,
) -> str:
    """Return the standard output of a command that runs in the environment of a user's ranks.

    Raises:
        ValueError: the command took longer than `seconds`, or failed; the message then has the last
            line of its stderr.
    """
    try:
        done = subprocess.run(
            command,
            env=rank_environment(user),
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
