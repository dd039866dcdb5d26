"""The same documents as every kind of input, and a small tokenizer of Hugging Face."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

DOCUMENTS = [
    "A first line.\nAnd a second one.\n",
    "ünïcode, 漢字 and \U0001f600",
    "short",
    "x" * 300,
    "no line break at the end",
    "\n\nblank lines\n\n",
    *(f"document number {n}\n" * (n % 5 + 1) for n in range(20)),
]
ROW_GROUP = 4


def write_text(root: Path, documents: Sequence[str]) -> dict[str, Any]:
    for number, text in enumerate(documents):
        (root / f"{number:03}.txt").write_text(text, newline="")
    return {"source": "text", "path": "data:."}


def write_jsonl(root: Path, documents: Sequence[str], ascii_only: bool = True) -> dict[str, Any]:
    with (root / "input.jsonl").open("w") as file:
        for number, text in enumerate(documents):
            file.write(json.dumps({"id": number, "text": text}, ensure_ascii=ascii_only) + "\n")
    return {"source": "jsonl", "path": "data:input.jsonl"}


def write_unicode_jsonl(root: Path, documents: Sequence[str]) -> dict[str, Any]:
    return write_jsonl(root, documents, ascii_only=False)


def write_two_gzips(root: Path, documents: Sequence[str]) -> dict[str, Any]:
    half = len(documents) // 2
    for name, some in (("a.jsonl.gz", documents[:half]), ("b.JSONL.GZ", documents[half:])):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in some)
        (root / name).write_bytes(gzip.compress(lines.encode()))
    return {"source": "jsonl", "path": "data:."}


def table(documents: Sequence[str]) -> pa.Table:
    return pa.table({"id": list(range(len(documents))), "text": list(documents)})


def write_parquet(root: Path, documents: Sequence[str]) -> dict[str, Any]:
    pq.write_table(table(documents), root / "input.parquet", row_group_size=ROW_GROUP)
    return {"source": "parquet", "path": "data:input.parquet"}


def write_hub_folder(root: Path, documents: Sequence[str]) -> dict[str, Any]:
    """Write a data set in the form of the hub's cache: links to blobs, other splits next to it."""
    blobs, snapshot = root / "blobs", root / "snapshots/0a1b/data"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    half = len(documents) // 2
    content = {
        "train-00000-of-00002.parquet": documents[:half],
        "train-00001-of-00002.Parquet": documents[half:],
        "test-00000-of-00001.parquet": ["not to be trained on"],
    }
    for number, (name, some) in enumerate(content.items()):
        pq.write_table(table(some), blobs / str(number), row_group_size=ROW_GROUP)
        (snapshot / name).symlink_to(f"../../../blobs/{number}")
    (snapshot.parent / "README.md").write_text("# A data set")
    return {"source": "huggingface", "path": "data:snapshots/0a1b"}


def write_saved_folder(root: Path, documents: Sequence[str]) -> dict[str, Any]:
    """Write splits in the form of `datasets`, with a leftover of `map` next to the data."""
    half = len(documents) // 2
    write_saved_split(root / "train", [documents[:half], documents[half:]])
    write_saved_split(root / "test", [["not to be trained on"]])
    write_arrow(root / "train/cache-0123.arrow", ["a leftover"])
    (root / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    return {"source": "huggingface", "path": "data:."}


def write_saved_split(folder: Path, shards: Sequence[Sequence[str]]) -> None:
    folder.mkdir(parents=True)
    names = [f"data-{n:05}-of-{len(shards):05}.arrow" for n in range(len(shards))]
    for name, some in zip(names, shards, strict=True):
        write_arrow(folder / name, some)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def write_arrow(path: Path, documents: Sequence[str]) -> None:
    content = table(documents)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, content.schema) as stream:
        stream.write_table(content, max_chunksize=ROW_GROUP)


WRITERS: dict[str, Callable[[Path, Sequence[str]], dict[str, Any]]] = {
    "text": write_text,
    "jsonl": write_jsonl,
    "jsonl, unicode": write_unicode_jsonl,
    "jsonl, gzip": write_two_gzips,
    "parquet": write_parquet,
    "huggingface, hub": write_hub_folder,
    "huggingface, saved": write_saved_folder,
}


def write_tokenizer(folder: Path, documents: Sequence[str] = DOCUMENTS) -> tokenizers.Tokenizer:
    """Train a small byte-level BPE, and write it in the form of a model's folder."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        show_progress=False,
        special_tokens=["<|begin|>", "<|end|>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(documents, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


HUGGINGFACE_TOKENIZER = {"tokenizer": "huggingface", "tokenizer_path": "models:small"}
