"""`training.deterministic`: two runs of one layout on the same GPUs give the same bits.

Everything else in the trainer repeats exactly already: data, draws and the order of micro-batches
are functions of the seed and the step. What is left are kernels that add up in the order in which
their blocks happen to end, and choices that libraries make by measuring.
"""

from __future__ import annotations

import os

import torch
import torch._inductor.config
import torch.utils.deterministic

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def compute_deterministically() -> None:
    """Have this process compute so from now on; comes before its first product on a GPU.

    An operation that has no deterministic kernel raises RuntimeError and names itself.
    """
    # Without workspaces of its own for each stream, cuBLAS may split a sum in another way.
    os.environ.setdefault(WORKSPACE, ":4096:8")
    # Attention too: flash and memory-efficient backward then add up in one order, cuDNN's is left.
    torch.use_deterministic_algorithms(True)
    # It would write NaN into every new tensor, a pass over memory for what is overwritten anyway.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # Kernels that are chosen by their time may be others in the next run, and add up otherwise.
    torch._inductor.config.deterministic = True
