"""The tokenizer of a Hugging Face `tokenizer.json`, with its BOS and EOS tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import numpy as np
import tokenizers
import xxhash
from numpy.typing import NDArray

from trainer.data.files.places import refuse_pointer, resolve, shown
from trainer.data.tokenizer import dtype_of
from trainer.errors import DataError
from trainyard.spec.storage_uri import split_place

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
# Usual names of BOS and EOS in published vocabularies, for a file without a configuration.
BEGINS = ("<|begin_of_text|>", "<s>", "<bos>", "[BOS]")
ENDS = ("<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|endoftext|>")


RANDOM = ("dropout", "alpha", "nbest_size")
"""Options in a vocabulary that would make the encoding of a text random."""


class HuggingFaceTokenizer:
    """Encodes with a vocabulary from a file; the same text always yields the same tokens.

    Special tokens in a text are encoded as plain text, so that no document can forge a boundary.
    """

    def __init__(self, content: str, *, bos: int | None, eos: int) -> None:
        self._content = content
        self._tokenizer = tokenizers.Tokenizer.from_str(content)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        for option in RANDOM:
            if getattr(self._tokenizer.model, option, None) is not None:
                setattr(self._tokenizer.model, option, None)
        self.bos = bos
        self.eos = eos
        self.vocab_size = max(self._tokenizer.get_vocab().values()) + 1
        digest = xxhash.xxh3_128_hexdigest(content.encode())
        self.name = f"huggingface {digest} bos={bos} eos={eos}"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), bos=self.bos, eos=self.eos), (self._content,)

    def encode_batch(self, texts: Sequence[bytes]) -> list[NDArray[Any]]:
        """Return the tokens `[n]` of each UTF-8 text, without special tokens."""
        encodings = self._tokenizer.encode_batch_fast(
            [text.decode() for text in texts], add_special_tokens=False
        )
        dtype = dtype_of(self)
        return [np.array(encoding.ids, dtype=dtype) for encoding in encodings]

    def decode(self, tokens: Iterable[int] | NDArray[np.integer]) -> str:
        """Return the text of tokens, without special tokens."""
        return self._tokenizer.decode([int(token) for token in tokens], skip_special_tokens=True)


class TokenizerFile:
    """A `tokenizer.json`, or a folder with a `tokenizer.json` and other tokenizer files."""

    def __init__(self, place: str, roots: Mapping[str, str]) -> None:
        self._field = f"data.tokenizer_path={place!r}"
        self._roots = roots
        root, relative = split_place(place)
        _, self._path = resolve(place, self._field, roots)
        # The folder of the given path, not of the link's target. In the hub's cache, the links of
        # one folder have targets named by digest.
        self._folder = f"{root}:{relative if self._path.is_dir() else relative.parent}"
        if self._path.is_dir():
            _, self._path = resolve(self._beside(FILE), self._field, roots)

    def open(self, rows: int) -> HuggingFaceTokenizer:
        """Return the tokenizer for a model with a vocabulary of `rows` tokens.

        Raises:
            DataError: a file is unreadable or damaged, no EOS token is named, or the vocabulary
                lacks a named token or has more tokens than `rows`.
        """
        content = self._read(self._path)
        try:
            known = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # noqa: BLE001 (the library raises nothing more precise)
            self._refuse(f"is no tokenizer of Hugging Face: {error}")
        config = self._config()
        eos = self._special(known, config, key="eos_token", usual=ENDS)
        if eos is None:
            self._refuse(
                f"names no token for the end of a text; name one as eos_token in {CONFIG} in "
                f"its folder, or have one of {', '.join(ENDS)} in the vocabulary"
            )
        bos = self._special(known, config, key="bos_token", usual=BEGINS)
        if bos == eos or config.get("add_bos_token") is False:
            bos = None  # one special token between documents is enough
        tokenizer = HuggingFaceTokenizer(content, bos=bos, eos=eos)
        if tokenizer.vocab_size > rows:
            self._refuse(
                f"has {tokenizer.vocab_size} tokens, which do not fit model.vocab_size={rows}; "
                f"legal: model.vocab_size={tokenizer.vocab_size} or more"
            )
        return tokenizer

    def files(self, names: Iterable[str]) -> dict[str, Path]:
        """Return the path of `tokenizer.json` and of every file in `names` that the folder has."""
        found = {name: self._resolved(name) for name in names if name != FILE}
        return {FILE: self._path} | {name: path for name, path in found.items() if path is not None}

    def _special(
        self,
        known: tokenizers.Tokenizer,
        config: Mapping[str, Any],
        *,
        key: str,
        usual: Sequence[str],
    ) -> int | None:
        """Return the token that the configuration names, None for null.

        Without the key, return the first existing token in `usual`, or None.
        """
        if key not in config:
            ids = (known.token_to_id(name) for name in usual)
            return next((token for token in ids if token is not None), None)
        named = config[key]
        if isinstance(named, dict):
            named = named.get("content")
        if named is None:
            return None
        token = known.token_to_id(str(named))
        if token is None:
            self._refuse(f"has no token {named!r}, which {CONFIG} in its folder names as {key}")
        return token

    def _config(self) -> dict[str, Any]:
        path = self._resolved(CONFIG)
        if path is None:
            return {}
        try:
            config = json.loads(self._read(path))
        except ValueError as error:
            raise DataError(
                f"{self._field}: {shown(path)} is no JSON: {error}", path=shown(path)
            ) from None
        return config if isinstance(config, dict) else {}

    def _resolved(self, name: str) -> Path | None:
        """Return the path of a file in the folder; None if it is missing or outside of the root."""
        try:
            _, path = resolve(self._beside(name), self._field, self._roots)
        except DataError:
            return None
        return path

    def _beside(self, name: str) -> str:
        root, folder = self._folder.split(":", 1)
        return f"{root}:{PurePosixPath(folder) / name}"

    def _read(self, path: Path) -> str:
        """Return the text of a file in the folder, without a byte order mark."""
        refuse_pointer(path, self._field)
        try:
            return path.read_text(encoding="utf-8-sig")
        except OSError as error:
            self._refuse(f"cannot be read: {error.strerror}")
        except UnicodeDecodeError:
            self._refuse("is no text in UTF-8")

    def _refuse(self, what: str) -> NoReturn:
        path = shown(self._path)
        raise DataError(f"{self._field}: {path} {what}", path=path)
