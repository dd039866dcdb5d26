"""A small synthetic input and its spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.dataset import Dataset, open_dataset
from trainyard.spec.job import JobSpec, parse_job_spec

SEQ_LEN = 8


def write_text(folder: Path, *, sequences: int, seq_len: int = SEQ_LEN, seed: int = 0) -> Path:
    """Write a file whose tokens fill exactly `sequences` windows: random letters, one document."""
    letters = np.random.default_rng(seed).integers(97, 123, sequences * seq_len + 1 - 2)
    path = folder / "text.txt"
    path.write_bytes(letters.astype(np.uint8).tobytes())
    return path


def text_spec(
    place: str = "data:.", *, seq_len: int = SEQ_LEN, seed: int = 0, **data: Any
) -> JobSpec:
    return parse_job_spec(
        {
            "data": {"source": "text", "path": place, **data},
            "training": {"seq_len": seq_len, "seed": seed},
        }
    )


def open_text(
    root: Path, *, place: str = "data:.", seq_len: int = SEQ_LEN, seed: int = 0, **data: Any
) -> Dataset:
    """Open the text below `root`, with its cache next to the root."""
    return open_dataset(
        text_spec(place, seq_len=seq_len, seed=seed, **data),
        roots={"data": str(root)},
        cache_dir=root.with_name("cache"),
        on_progress=lambda: None,
    )


def text_root(tmp_path: Path, *, sequences: int, seq_len: int = SEQ_LEN) -> Path:
    root = tmp_path / "data"
    root.mkdir(exist_ok=True)
    write_text(root, sequences=sequences, seq_len=seq_len)
    return root
