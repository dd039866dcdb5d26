"""Slurm commands with jobs as files of `FAKE_SLURM`; arguments: NAME of the command, its own."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path


def sbatch(folder: Path, arguments: list[str]) -> int:
    """Store a job, with its arguments and its script as `<id>.sbatch`."""
    options = dict(word.partition("=")[::2] for word in arguments)
    job_id = len(list(folder.glob("*.json"))) + 1
    job = {
        "JobID": str(job_id),
        "State": "PENDING",
        "Name": options["--job-name"],
        "Comment": options["--comment"],
        "Reason": "Priority",
        "RestartCnt": "0",
    }
    script = sys.stdin.read()
    (folder / f"{job_id}.sbatch").write_text("\n".join(arguments) + "\n" + script)
    (folder / f"{job_id}.json").write_text(json.dumps(job))
    sys.stdout.write(f"{job_id}\n")
    return 0


def squeue(folder: Path, arguments: list[str]) -> int:
    """Print jobs in the requested fixed columns."""
    if "--version" in arguments:
        sys.stdout.write("slurm 22.05.8\n")
        return 0
    options = dict(word.partition("=")[::2] for word in arguments)
    names = options["--name"].split(",") if "--name" in options else None
    for path in sorted(folder.glob("*.json")):
        job = json.loads(path.read_text())
        if names is not None and job["Name"] not in names:
            continue
        columns = (word.split(":") for word in options["--Format"].split(","))
        line = "".join(job.get(name, "N/A")[: int(w)].ljust(int(w)) for name, w in columns)
        sys.stdout.write(f"{line}\n")
    return 0


def scancel(folder: Path, arguments: list[str]) -> int:
    """End jobs."""
    for job_id in arguments:
        path = folder / f"{job_id}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"State": "CANCELLED"}))
    return 0


def scontrol(folder: Path, arguments: list[str]) -> int:
    """Print configuration, nodes or names of nodes."""
    if arguments == ["show", "config"]:
        sys.stdout.write("KillJobs = 1\nKillWait                = 30 sec\n")
    elif arguments[:2] == ["show", "hostnames"]:
        sys.stdout.write("\n".join(arguments[2].split(",")) + "\n")
    elif "node" in arguments:
        for index, name in enumerate(arguments[-1].split(",")):
            state = "DOWN*" if (folder / f"{name}.down").exists() else "IDLE"
            sys.stdout.write(f"NodeName={name} NodeAddr=10.1.1.{index + 1} State={state}\n")
    return 0


def sacct(folder: Path, arguments: list[str]) -> int:
    """Print the accounting's records, if accounting exists."""
    path = folder / "accounting"
    if not path.exists():
        sys.stderr.write("Slurm accounting storage is disabled\n")
        return 1
    sys.stdout.write(path.read_text())
    return 0


def main() -> int:
    """Run one command; a file named after it in the folder is its error."""
    folder = Path(os.environ["FAKE_SLURM"])
    folder.mkdir(exist_ok=True)
    name, arguments = sys.argv[1], sys.argv[2:]
    broken = folder / f"{name}.broken"
    if broken.exists():
        sys.stderr.write(broken.read_text())
        return 1
    assert re.fullmatch("sbatch|squeue|scancel|scontrol|sacct", name)
    commands = {
        "sbatch": sbatch,
        "squeue": squeue,
        "scancel": scancel,
        "scontrol": scontrol,
        "sacct": sacct,
    }
    return commands[name](folder, arguments)


if __name__ == "__main__":
    sys.exit(main())
