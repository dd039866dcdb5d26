"""The command of torchrun on one machine, for benchmarks, checks and tests."""

from __future__ import annotations

import sys
from pathlib import Path

ONE_MACHINE = (
    "--nnodes=1",
    # The kernel chooses a free port. `--standalone` would resolve the machine's host name.
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=127.0.0.1:0",
    "--local-addr=127.0.0.1",
)


def torchrun(ranks: int, *words: str, python: Path = Path(sys.executable)) -> list[str]:
    """Return the command that runs a script, or `-m` and a module, on `ranks` ranks."""
    launcher = [str(python), "-m", "torch.distributed.run", *ONE_MACHINE]
    return [*launcher, f"--nproc-per-node={ranks}", *words]
