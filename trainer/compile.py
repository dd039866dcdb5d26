"""torch.compile, block by block: one program serves all blocks of a model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from specs.sections.parallelism import CompileSection


def compile_blocks(blocks: Iterable[nn.Module], section: CompileSection) -> None:
    """Compile the `forward` of each block, in place; names and hooks of the modules stay.

    Graphs must be whole: a break in a block would silently cost what compiling is to win.
    """
    if not section.enabled:
        return
    for block in blocks:
        block.forward = torch.compile(block.forward, backend=section.backend, fullgraph=True)
