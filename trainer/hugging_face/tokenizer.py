"""The tokenizer files of an export; they are generated for the byte tokenizer, else copied."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from trainer.data.files.places import refuse_pointer
from trainer.data.huggingface_tokenizer import CONFIG, FILE, TokenizerFile
from trainer.data.tokenizer import BOS, EOS, PAD, ByteTokenizer
from trainer.errors import LaunchError
from trainer.hugging_face.config import SpecialIds

GENERATION = "generation_config.json"
# Tokenizer files on the hub, and the settings for text generation.
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
"""Names of the byte tokenizer's special tokens; text with such a name is encoded as bytes."""


def tokenizer_of(given: str) -> TokenizerSource:
    """Return the byte tokenizer for `byte`; otherwise the tokenizer in a folder."""
    return ByteFiles() if given == ByteTokenizer.name else FolderFiles(Path(given))


class ByteFiles:
    """The byte tokenizer in the format of the library `tokenizers`.

    Each byte is the token with its value. A text starts with BOS, like every document in training,
    and text that spells a special token is encoded as bytes.
    """

    name = ByteTokenizer.name

    def write(self, folder: Path, rows: int) -> SpecialIds:
        """Write the tokenizer files; return the ids of the special tokens.

        Args:
            folder: folder of the export.
            rows: size of the model's vocabulary. Ids without a token in the tokenizer are
                suppressed in text generation.
        """
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
    """The tokenizer files in a folder, which are copied without a check against the model."""

    folder: Path

    @property
    def name(self) -> str:
        """Path of the folder."""
        return str(self.folder)

    def write(self, folder: Path, rows: int) -> None:
        """Copy those files of `FILES` that exist; return None, because special tokens are unknown.

        Raises:
            LaunchError: the folder has none of the files.
            DataError: a file is a pointer of Git LFS.
        """
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
    """The tokenizer at a job's `data.tokenizer_path`: copies its files, generates missing ones."""

    name: str
    """Place of the tokenizer."""
    roots: Mapping[str, str]

    def write(self, folder: Path, rows: int) -> SpecialIds:
        """Copy the files; generate missing configurations with BOS and EOS; return the special ids.

        Raises:
            DataError: the tokenizer is missing, or has more tokens than the model.
        """
        source = TokenizerFile(self.name, self.roots)
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


TokenizerSource = ByteFiles | FolderFiles | PlaceFiles
"""Tokenizer for an export; it has a `name`, and `write` writes its files to a folder."""


def write_json(path: Path, content: object) -> None:
    """Write an object to a file as JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _copy(files: Mapping[str, Path], folder: Path) -> None:
    for name, path in files.items():
        refuse_pointer(path)
        shutil.copyfile(path, folder / name)


def _write_config(folder: Path, *, bos: str | None, eos: str | None, **settings: object) -> None:
    tokens = {"eos_token": eos} if bos is None else {"bos_token": bos, "eos_token": eos}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", **tokens}
    write_json(folder / CONFIG, settings | {"clean_up_tokenization_spaces": False})


def _write_generation(folder: Path, ids: SpecialIds, *, unknown: Sequence[int]) -> None:
    """Write the ids of the special tokens; suppress the ids `unknown`, which have no token."""
    named = {"bos_token_id": ids.bos, "eos_token_id": ids.eos, "pad_token_id": ids.pad}
    settings: dict[str, Any] = {key: token for key, token in named.items() if token is not None}
    if unknown:
        settings["suppress_tokens"] = list(unknown)
    write_json(folder / GENERATION, settings)


def _byte_vocabulary() -> dict[str, int]:
    """Return the byte for each character in the byte-level alphabet of `tokenizers`.

    Printable Latin-1 bytes map to their own characters; the other bytes map to U+0100 and up, in
    order.
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }
