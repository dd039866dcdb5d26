"""Options of a source of kind `slurm`: what passes to sbatch, and what may not."""

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
"""Options of sbatch on which the pilots rely, and those that have a setting of their own."""
RESERVED_LETTER = re.compile(r"-[QvsIOhV]*[JNnaHWoectk]")
"""The same by a letter, alone or behind letters that take no value."""
DIRECTIVE = re.compile(r"^#(SBATCH|PBS|BSUB)\b", re.MULTILINE)
"""Lines of a script from which sbatch takes options."""


def _legal_option(option: str) -> str:
    if not option.startswith("-") or option.strip("-") == "" or "\0" in option:
        raise ValueError(f"{option!r} is no option; write --name=value")
    name = option.partition("=")[0]
    # getopt accepts the beginning of a name, such as --arr for --array.
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
    """Options of sbatch as they are, such as `--partition=gpu`, `--account=x`, `--qos=y`."""
    setup: Annotated[str, AfterValidator(_legal_setup)] = ""
    """Lines of bash that run on the first node before the pilots start: `module load`, proxies."""
    cpus_per_node: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Cores of each pilot; as many as slots when absent."""
    gres: Annotated[str, Field(pattern=r"^[A-Za-z0-9:_.,=-]*$")] | None = None
    """Value of `--gres`; `gpu:<slots>` on nodes with GPUs when absent, none when empty."""
    signal_seconds: Annotated[int, Field(ge=0, le=65_535)] = 120
    """Time before the limit at which Slurm announces it and attempts leave."""
    ssh: tuple[str, ...] = ()
    """Command that reaches a login node, such as `["ssh", "login1"]`; Slurm's commands run here
    when absent."""
    folder: Annotated[str, Field(pattern="^/")] | None = None
    """Folder that login node and nodes see, for join secrets and logs, readable by this user alone;
    the provisioner's own when absent, which needs Slurm's commands here."""
