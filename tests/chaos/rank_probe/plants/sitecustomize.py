"""Plants a fault into the ranks of a node; Python imports this module at its start.

`$CHAOS_PLANT` is a file with the name of the fault.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest.mock import patch


def scaled_gradient() -> None:
    """Multiply the gradient of the last rank of the node by 1.001."""
    if os.environ["LOCAL_RANK"] == "0":
        return
    import torch

    backward = torch.Tensor.backward

    def scaled(loss: torch.Tensor) -> None:
        backward(loss, gradient=torch.tensor(1.001))  # type: ignore[no-untyped-call]

    patch.object(torch.Tensor, "backward", scaled).start()


def slow_disk() -> None:
    """Let each fsync take more than half a second."""
    sync = os.fsync

    def slow(file: int) -> None:
        time.sleep(0.6)
        sync(file)

    patch.object(os, "fsync", slow).start()


PLANTS = {"": lambda: None, "scaled_gradient": scaled_gradient, "slow_disk": slow_disk}

# torchrun and the processes of the worker have no rank.
if "LOCAL_RANK" in os.environ:
    PLANTS[Path(os.environ["CHAOS_PLANT"]).read_text()]()
