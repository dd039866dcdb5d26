"""Options of a source of kind `slurm`, including which sbatch options are passed or refused."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from provisioner.base import EngineOptions

RESERVED = (
    *("job-name", "nodes", "ntasks", "ntasks-per-node", "array", "export", "export-file"),
    *("requeue", "no-requeue", "no-kill", "comment", "parsable", "wrap", "test-only", "wait"),
    *("hold", "output", "error", "cpus-per-task", "time"),
)
"""Options of sbatch that the pilots depend on, and options that have a setting of their own."""
RESERVED_LETTER = re.compile(r"-[QvsIOhV]*[JNnaHWoectk]")
"""Pattern of a reserved one-letter option, alone or behind one-letter options that take no
value."""
DIRECTIVE = re.compile(r"^#(SBATCH|PBS|BSUB)\b", re.MULTILINE)
"""Lines of a script from which sbatch reads options."""


def _legal_option(option: str) -> str:
    if not option.startswith("-") or option.strip("-") == "" or "\0" in option:
        raise ValueError(f"{option!r} is no option; write --name=value")
    name = option.partition("=")[0]
    # getopt accepts prefixes of option names, such as --arr for --array.
    long = name.startswith("--") and any(each.startswith(name[2:]) for each in RESERVED)
    if long or RESERVED_LETTER.match(option):
        raise ValueError(f"{name!r} is set by the provisioner, or the beginning of what is")
    return option


def _legal_setup(setup: str) -> str:
    found = DIRECTIVE.search(setup)
    if found is not None:
        raise ValueError(f"setup has a line {found[0]} ...: write it as one of options")
    if "\0" in setup:
        raise ValueError("setup has a NUL character")
    return setup


class SlurmOptions(EngineOptions):
    """Options of a source of kind `slurm`."""

    options: tuple[Annotated[str, AfterValidator(_legal_option)], ...] = ()
    """Options for sbatch, which are passed unchanged, such as `--partition=gpu`, `--account=x`,
    `--qos=y`.
    """
    setup: Annotated[str, AfterValidator(_legal_setup)] = ""
    """Lines of bash that run on the first node before the pilots start, such as `module load` or
    proxy variables.
    """
    cpus_per_node: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Number of CPU cores for each pilot; equal to the number of slots when absent."""
    gres: Annotated[str, Field(pattern=r"^[A-Za-z0-9:_.,=-]*$")] | None = None
    """Value of sbatch's `--gres`. When absent, `gpu:<slots>` on nodes with GPUs; when empty, the
    option is not passed.
    """
    signal_seconds: Annotated[int, Field(ge=0, le=65_535)] = 120
    """Time, in seconds, between Slurm's warning of the job's time limit and the limit itself. At
    the warning, attempts save and leave.
    """
    ssh: tuple[str, ...] = ()
    """Command that reaches a login node, such as `["ssh", "login1"]`; without it, Slurm's commands
    run on the provisioner's machine.
    """
    folder: Annotated[str, Field(pattern="^/")] | None = None
    """Folder for join secrets and logs, visible to the login node and the nodes, readable only by
    its owner. When absent, the provisioner's own folder is used; Slurm's commands must then run on
    the provisioner's machine.
    """
