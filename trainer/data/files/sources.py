"""Opens the input of a spec: the list of its files, and a reader for them."""

from __future__ import annotations

import json
import re
import sysconfig
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from trainer.data.files.corpus import Corpus, InputFile, has_ending
from trainer.data.files.lines import JsonLines, TextFiles
from trainer.data.files.places import real, resolve
from trainer.data.files.reader import Part, Reader, Text, grouped
from trainyard.spec.sections.model import DataSection

JSON_LINES = tuple(
    f".{kind}{c}" for kind in ("jsonl", "ndjson", "json") for c in ("", ".gz", ".zst")
)

# Excluded if the data are Python's standard library: packages and build configuration, which differ
# between machines, and tests, which many distributions lack.
NOT_LIBRARY = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
MACHINE_SPECIFIC = ("_sysconfigdata", "sitecustomize", "usercustomize", "config-")

SHARD = re.compile(r"(?P<split>.+)-\d{5}-of-\d{5}\b")
"""File names that the hub gives to the shards of a split, such as
`train-00000-of-00004-0a1b2c.parquet`.
"""
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
"""Words that name a split in other file names; the `datasets` library uses the same words."""
SAVED = "data"
"""File name prefix of the shards that `save_to_disk` writes; the folder, not the file, names the
split.
"""


@dataclass(frozen=True)
class Source:
    """The documents of one input; it is picklable."""

    corpus: Corpus
    data: DataSection

    def parts(self, on_file: Callable[[InputFile], None] = lambda _file: None) -> Iterator[Part]:
        """Yield the parts of all documents; they depend only on the files.

        Args:
            on_file: called with each file.

        Raises:
            DataError: a file is unreadable or damaged.
        """

        def files() -> Iterator[InputFile]:
            for file in self.corpus.files():
                on_file(file)
                yield file

        return grouped(s for file in files() for s in self._reader(file).slices(file))

    def texts(self, part: Part) -> Iterator[Text]:
        """Yield the texts of a part, in the order of the input.

        Raises:
            DataError: a text is invalid; the message names the file, the line or row, and its
                content.
        """
        for piece in part:
            yield from self._reader(piece.file).texts(piece)

    def _reader(self, file: InputFile) -> Reader:
        kind = self.data.source
        if kind in {"corpus", "text"}:
            return TextFiles(self.corpus, utf8=self.data.tokenizer != "byte")
        if kind == "jsonl" or has_ending(file.name, JSON_LINES):
            return JsonLines(self.corpus, self.data.text_field)
        # Imported here, because importing pyarrow takes longer than all other imports together.
        from trainer.data.files import tables

        table = tables.Arrow if has_ending(file.name, ".arrow") else tables.Parquet
        return table(self.corpus, self.data.text_field)


def open_source(data: DataSection, roots: Mapping[str, str]) -> Source:
    """Return the input of a spec; check place and splits, but read no documents.

    Args:
        data: section `data` of the spec.
        roots: absolute path of each root on this node, by name.

    Raises:
        DataError: the place is missing or outside of its root, this node does not know the root,
            the data set has no such split, or one of its files is unreadable or damaged.
    """
    if data.source == "corpus":
        field = f"data.corpus={data.corpus!r}"
        library = real(Path(sysconfig.get_paths()["stdlib"]), field)
        return Source(Corpus(field, root=library, top=library, wanted=_is_library), data)
    assert data.path is not None  # a rule of the spec ensures this
    field = f"data.path={data.path!r}"
    root, top = resolve(data.path, field, roots)
    wanted = WANTED[data.source]
    corpus = Corpus(field, root=root, top=top, wanted=wanted, name=Path(data.path).name)
    if data.source == "huggingface":
        corpus = replace(corpus, names=_names_of_split(corpus, data.split))
    return Source(corpus, data)


def _names_of_split(corpus: Corpus, split: str) -> frozenset[str]:
    files = list(corpus.files())
    lists: dict[Path, frozenset[str]] = {}
    for file in files:
        if Path(file.name).name == "state.json":
            corpus.refuse_pointer(file)
            with corpus.open(file) as opened:
                lists[Path(file.name).parent] = _listed(corpus, file, opened.read())
    by_split = _split_names([file.name for file in files if _is_data(file, lists)])
    if by_split and split not in by_split:
        corpus.refuse(
            corpus.top,
            f"has no data.split={split!r}; legal: {', '.join(sorted(by_split))}",
        )
    return frozenset(by_split.get(split, ()))


def _split_names(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the file names of each split; without split names, all files are in `train`."""
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
        return name.parent.name  # a data set dictionary has a folder for each split
    for part in reversed(name.parts):
        for word in re.split(r"[^A-Za-z]+", part):
            if word.lower() in WORDS:
                return WORDS[word.lower()]
    return None


def _listed(corpus: Corpus, file: InputFile, content: bytes) -> frozenset[str]:
    """Return the file names in a saved data set's `state.json`; other files are leftovers."""
    try:
        return frozenset(entry["filename"] for entry in json.loads(content)["_data_files"])
    except (ValueError, TypeError, KeyError):
        corpus.refuse(file.path, "is no state.json of a data set: it lists no '_data_files'")


def _is_data(file: InputFile, lists: Mapping[Path, frozenset[str]]) -> bool:
    path = Path(file.name)
    if path.parent in lists:
        return path.name in lists[path.parent]
    described = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json"}
    return path.name not in described


def _is_library(path: Path) -> bool:
    if path.is_symlink() or path.name.startswith(MACHINE_SPECIFIC):
        return False
    return path.suffix == ".py" or (path.name not in NOT_LIBRARY and path.is_dir())


def _is_not_hidden(path: Path) -> bool:
    return not path.name.startswith(".")


def _is_of_kind(path: Path, *, endings: tuple[str, ...]) -> bool:
    return _is_not_hidden(path) and (has_ending(path.name, endings) or path.is_dir())


WANTED: Mapping[str, Callable[[Path], bool]] = {
    "text": _is_not_hidden,
    "jsonl": partial(_is_of_kind, endings=JSON_LINES),
    "parquet": partial(_is_of_kind, endings=(".parquet",)),
    "huggingface": partial(_is_of_kind, endings=(".arrow", ".parquet", *JSON_LINES)),
}
