"""Options of a source of kind `ssh`: its machines, and how to reach them."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from provisioner.base import EngineOptions

RANGE = re.compile(r"\[(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\]")
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,252}")
MAX_HOSTS = 1000


class SshOptions(EngineOptions):
    """Options of a source of kind `ssh`."""

    hosts: Annotated[list[str], Field(min_length=1)]
    """Names of the machines for `ssh`; `gpu-[01-04].lab` names four machines."""
    ssh: Annotated[list[str], Field(min_length=1)] = Field(default_factory=lambda: ["ssh"])
    """The `ssh` program and its options, such as `["ssh", "-F", "/etc/trainyard/ssh_config"]`."""
    base: Annotated[str, Field(pattern=r"^~?/[A-Za-z0-9._/-]+$")] = "/var/tmp/trainyard"
    """Folder on each machine, on a local disk whose content survives a reboot."""
    bundle: str | None = None
    """Bundle to install on the machines; without it, the source's `python` must already have the
    worker and the trainer.
    """
    grace_seconds: Annotated[float, Field(ge=0)] = 180.0
    """Time, in seconds, from the cancellation of a pilot until its processes are killed."""
    parallel: Annotated[int, Field(ge=1, le=16)] = 16
    """Maximum number of machines that are called concurrently."""
    connect_seconds: Annotated[int, Field(ge=1, le=60)] = 10
    """Time limit for opening a connection, in seconds."""
    call_seconds: Annotated[float, Field(ge=1, le=120)] = 30.0
    """Time limit of one call to a machine, in seconds."""
    install_seconds: Annotated[float, Field(ge=1, le=3600)] = 1800.0
    """Time limit, in seconds, for each of two steps: the copy of a bundle to a machine, and its
    installation."""

    @field_validator("hosts")
    @classmethod
    def _expand(cls, hosts: list[str]) -> list[str]:
        names = [name for host in hosts for name in expand_hosts(host)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"hosts has {', '.join(twice)} twice")
        if len(names) > MAX_HOSTS:
            raise ValueError(f"hosts names {len(names)} machines; at most {MAX_HOSTS} are legal")
        return names

    @model_validator(mode="after")
    def _verify_host_keys(self) -> Self:
        for word in self.ssh:
            if re.search(r"StrictHostKeyChecking\W*(no|off|accept-new)", word, re.IGNORECASE):
                raise ValueError(f"ssh has {word!r}: host keys are verified; see ssh-keyscan(1)")
        return self


def expand_hosts(text: str) -> list[str]:
    """Return the machine names for a pattern such as `gpu-[01-04,07].lab`.

    Raises:
        ValueError: a name is invalid, or a range names no machine or more than `MAX_HOSTS`.
    """
    found = RANGE.search(text)
    if found is None:
        if not HOST.fullmatch(text):
            raise ValueError(f"hosts has {text!r}, which is no name of a machine or a range")
        return [text]
    names: list[str] = []
    for part in found[1].split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if not 0 < len(numbers) <= MAX_HOSTS:
            raise ValueError(
                f"hosts has {text!r}, whose range {part} names {len(numbers)} machines"
            )
        for number in numbers:
            middle = f"{number:0{len(first)}d}"
            names += expand_hosts(text[: found.start()] + middle + text[found.end() :])
    return names
