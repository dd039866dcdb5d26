"""Which files of a Hugging Face data set belong to which split, by their names alone."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath

SHARD = re.compile(r"(?P<split>.+)-\d{5}-of-\d{5}\b")
"""How the hub names the shards of a split: `train-00000-of-00004-0a1b2c.parquet`."""
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
"""Words that tell the split in any other name; those of the `datasets` library."""
SAVED = "data"
"""What `save_to_disk` calls its shards, whatever the split: the folder tells it."""


def split_names(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of each split, paths below the data set; all are `train` if none tells."""
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
