"""The files of a tokenizer as published weights have them: the byte tokenizer's own, or copies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from trainer.data.huggingface_tokenizer import CONFIG, FILE, TokenizerFile
from trainer.data.tokenizer import BOS, EOS, PAD, ByteTokenizer
from trainer.errors import LaunchError
from trainer.hugging_face.config import SpecialIds

GENERATION = "generation_config.json"
# What a tokenizer may consist of on the hub, and the settings of text generation.
FILES = (
    FILE,
    CONFIG,
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    GENERATION,
)
SPECIAL = {BOS: "<|begin_of_text|>", EOS: "<|end_of_text|>", PAD: "<|pad|>"}
"""What the byte tokenizer's own tokens are called; no text is taken for one of them."""


class TokenizerSource(Protocol):
    """A tokenizer that goes with an export."""

    @property
    def name(self) -> str:
        """What it is, in a word or a path."""
        ...

    def write(self, folder: Path, rows: int) -> SpecialIds | None:
        """Write its files, and return the ids of its special tokens where they are known.

        Args:
            folder: folder of the export.
            rows: tokens that the model knows; those that the tokenizer has not are never drawn.

        Raises:
            RunError: there is no such tokenizer, or it has more tokens than the model.
        """
        ...


def tokenizer_of(given: str) -> TokenizerSource:
    """Return `byte`, or the tokenizer in a folder."""
    return ByteFiles() if given == ByteTokenizer.name else FolderFiles(Path(given))


class ByteFiles:
    """The byte tokenizer, as the library `tokenizers` reads it.

    Each byte of the text is the token of that number. A text begins with BOS, as every document did
    in training, and no text is taken for a special token.
    """

    name = ByteTokenizer.name

    def write(self, folder: Path, rows: int) -> SpecialIds:
        """Write its files."""
        tokenizer = Tokenizer(models.BPE(vocab=_byte_vocabulary(), merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(SPECIAL[t], special=True) for t in SPECIAL])
        begin = SPECIAL[BOS]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, BOS)]
        )
        tokenizer.save(str(folder / FILE))
        settings = {"pad_token": SPECIAL[PAD], "split_special_tokens": True}
        _write_config(folder, bos=begin, eos=SPECIAL[EOS], **settings)
        ids = SpecialIds(BOS, EOS, PAD)
        _write_generation(folder, ids, unknown=range(ByteTokenizer.vocab_size, rows))
        return ids


@dataclass(frozen=True)
class FolderFiles:
    """The files of a folder as they are; whether they are a model's is for who names it to know."""

    folder: Path

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.folder)

    def write(self, folder: Path, rows: int) -> None:
        """Copy what there is."""
        del rows
        found = {name: self.folder / name for name in FILES if (self.folder / name).is_file()}
        if not found:
            raise LaunchError(
                f"{self.folder} holds no tokenizer; legal: a folder with some of "
                f"{', '.join(FILES)}",
                path=str(self.folder),
            )
        _copy(found, folder)


@dataclass(frozen=True)
class PlaceFiles:
    """The tokenizer at `data.tokenizer_path` of a job: its files, and what they lack."""

    place: str
    roots: Mapping[str, str]

    @property
    def name(self) -> str:
        """The place."""
        return self.place

    def write(self, folder: Path, rows: int) -> SpecialIds:
        """Copy its files, and add which token ends a text where they do not say it."""
        source = TokenizerFile(self.place, self.roots)
        known = source.open(rows)
        _copy(source.files(FILES), folder)
        ids = SpecialIds(known.bos, known.eos, None)
        if not (folder / CONFIG).exists():
            named = Tokenizer.from_file(str(folder / FILE))
            begin = None if known.bos is None else named.id_to_token(known.bos)
            _write_config(folder, bos=begin, eos=named.id_to_token(known.eos))
        if not (folder / GENERATION).exists():
            _write_generation(folder, ids, unknown=range(known.vocab_size, rows))
        return ids


def write_json(path: Path, content: object) -> None:
    """Write a file of JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _copy(files: Mapping[str, Path], folder: Path) -> None:
    for name, path in files.items():
        shutil.copyfile(path, folder / name)


def _write_config(folder: Path, *, bos: str | None, eos: str | None, **settings: object) -> None:
    tokens = {"eos_token": eos} if bos is None else {"bos_token": bos, "eos_token": eos}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", **tokens}
    write_json(folder / CONFIG, settings | {"clean_up_tokenization_spaces": False})


def _write_generation(folder: Path, ids: SpecialIds, *, unknown: Sequence[int]) -> None:
    """Say which token ends a text, and which the model knows but the tokenizer does not."""
    named = {"bos_token_id": ids.bos, "eos_token_id": ids.eos, "pad_token_id": ids.pad}
    settings: dict[str, Any] = {key: token for key, token in named.items() if token is not None}
    if unknown:
        settings["suppress_tokens"] = list(unknown)
    write_json(folder / GENERATION, settings)


def _byte_vocabulary() -> dict[str, int]:
    """Return the characters with which the byte level of `tokenizers` writes each byte.

    Printable bytes of Latin-1 are themselves; the others come behind them, from U+0100 on.
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }
