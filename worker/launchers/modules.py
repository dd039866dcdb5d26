"""Loads environment modules (Lmod or Tcl) for a program, and returns the changed variables."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from worker.launchers.rank_environment import rank_environment
from worker.node.process_tree import WRAPPER
from worker.node.users import RankUser

LOAD_SECONDS = 120.0
MAX_BYTES = 2**20
NO_MODULES = 3
LOAD = f"""
for init in ${{LMOD_PKG:+"$LMOD_PKG/init/bash"}} ${{MODULESHOME:+"$MODULESHOME/init/bash"}} \\
    /etc/profile.d/lmod.sh /etc/profile.d/modules.sh \\
    /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash; do
  if [ -r "$init" ]; then . "$init"; break; fi
done
type module >/dev/null 2>&1 || exit {NO_MODULES}
module load "$@" >&2 || exit 4
exec /usr/bin/env -0
"""
"""Shell script that loads modules. Module names are arguments, so the script is the same for all
jobs.
"""
OF_THE_SHELL = frozenset({"_", "SHLVL", "PWD", "OLDPWD"})


def load_modules(names: Sequence[str], *, user: RankUser | None, folder: Path) -> dict[str, str]:
    """Return this node's variables after loading the modules.

    Args:
        names: names of the modules, in loading order.
        user: user who runs the modules' files; if None, the worker's own user.
        folder: working folder of the shell.

    Raises:
        ValueError: the node has no module system or lacks one of the modules, or the loading took
            too long.
    """
    field = f"program.environment.modules={list(names)!r}"
    command = ["/bin/bash", "--noprofile", "--norc", "-c", LOAD, "modules", *names]
    words = [*WRAPPER, "tie", str(os.getpid()), user.word if user else "-", "--", *command]
    try:
        done = subprocess.run(
            words,
            env=rank_environment(user),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"{field} took longer than {LOAD_SECONDS:.0f} s to load") from None
    if done.returncode == NO_MODULES:
        raise ValueError(
            f"{field}: this node has no command `module`; LMOD_PKG or MODULESHOME of its worker "
            "names where its modules are installed"
        )
    said = done.stderr.decode(errors="replace").strip()[-1000:]
    if done.returncode or len(done.stdout) > MAX_BYTES:
        raise ValueError(f"{field} cannot be loaded: {said or f'status {done.returncode}'}")
    found = _variables(done.stdout)
    loaded = found.get("LOADEDMODULES", "").split(":")
    for name in names:  # older versions of `module load` succeed even without the module
        if not any(each == name or each.startswith(f"{name}/") for each in loaded):
            raise ValueError(f"{field}: {name} is not loaded: {said or 'the command is silent'}")
    return found


def with_modules(
    environment: Mapping[str, str], loaded: Mapping[str, str], *, kept: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of the ranks after the modules' changes and removals.

    Args:
        environment: variables of the ranks.
        loaded: variables of the node after loading the modules.
        kept: variables of the job and the launch, which override those of modules.
    """
    node, result = rank_environment(), dict(environment)
    for name in node.keys() - loaded.keys() - kept.keys():
        result.pop(name, None)
    changed = {name: value for name, value in loaded.items() if node.get(name) != value}
    return result | {name: value for name, value in changed.items() if name not in kept}


def _variables(text: bytes) -> dict[str, str]:
    found = {}
    for line in text.split(b"\0"):
        name, equals, value = os.fsdecode(line).partition("=")
        hidden = name in OF_THE_SHELL or name.startswith(("BASH_FUNC_", "TRAINYARD_"))
        if name and equals and not hidden:
            found[name] = value
    return found
