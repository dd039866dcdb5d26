"""Assigns the files of a Hugging Face data set to splits, by their names alone."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath

SHARD = re.compile(r"(?P<split>.+)-\d{5}-of-\d{5}\b")
"""The hub's names of the shards of a split: `train-00000-of-00004-0a1b2c.parquet`."""
WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "dev": "validation",
    "val": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
"""Words that name a split in any other file name; those of the `datasets` library."""
SAVED = "data"
"""Prefix of the shards of `save_to_disk` for every split: the folder names the split."""


def split_names(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the file names of each split; all are `train` if no name contains a split."""
    found = {name: _split(PurePosixPath(name)) for name in names}
    if not any(found.values()):
        return {"train": list(found)} if found else {}
    by_split: dict[str, list[str]] = defaultdict(list)
    for name, split in found.items():
        if split is not None:
            by_split[split].append(name)
    return dict(by_split)


def _split(name: PurePosixPath) -> str | None:
    shard = SHARD.match(name.name)
    if shard and shard["split"] != SAVED:
        return shard["split"]
    if shard and name.parent.name:
        return name.parent.name  # a data set dictionary: a folder for each split
    for part in reversed(name.parts):
        for word in re.split(r"[^A-Za-z]+", part):
            if word.lower() in WORDS:
                return WORDS[word.lower()]
    return None
