"""A model whose code tries to get its node's token: it reads it, and plants links to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn


def build(*, vocab_size: int, seq_len: int, token: str) -> Prying:
    """Return a small model; `token` is the path of the token."""
    del seq_len
    if rank := os.environ.get("RANK"):  # the check of the input builds the model, too
        pry(Path(token), Path(sys.argv[-1]), rank=int(rank))
    return Prying(vocab_size)


def pry(token: Path, run: Path, *, rank: int) -> None:
    """Try each way once, and write the result into the rank's log."""
    log, link = run / "logs" / f"rank-{rank}.log", run / "logs" / f"rank-{rank + 2}.log"
    attempt("linked", lambda: link.symlink_to(token))
    attempt("read", lambda: token.read_text())
    attempt("secret", lambda: (run / "supervisor.secret").read_text())
    attempt("replaced", lambda: link.replace(log))
    if rank == 0:
        attempt("planted", lambda: (run / "error.json").symlink_to(token))
    say(f"uid={os.getuid()}")


def attempt(name: str, act: Callable[[], object]) -> None:
    """Print the name of an action, and of its error."""
    try:
        act()
    except OSError as error:
        say(f"{name}={type(error).__name__}")
    else:
        say(f"{name}=done")


def say(text: str) -> None:
    """Write a line into the rank's log."""
    sys.stdout.write(f"{text}\n")


class Prying(nn.Module):
    """An embedding and a head."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, 16)
        self.head = nn.Linear(16, vocab_size)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Return logits [B, S, V]."""
        logits_BSV: Tensor = self.head(self.tokens(tokens_BS))
        return logits_BSV
