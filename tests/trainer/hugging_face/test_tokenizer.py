"""Tokenizers of exports, read by the library that people load them with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.data.inputs import DOCUMENTS, write_tokenizer
from trainer.data.tokenizer import BOS, EOS, PAD
from trainer.errors import DataError
from trainer.hugging_face.config import SpecialIds
from trainer.hugging_face.tokenizer import ByteFiles, PlaceFiles

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
HARD = [
    *DOCUMENTS,
    "",
    " ",
    "a\x00b\r\n\t\x7f",
    "<|end_of_text|> and <|pad|>",
    "don't ' s",
    "\u200d\ufeff",
]


def opened(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_the_byte_tokenizer_gives_our_ids_for_every_text(tmp_path: Path) -> None:
    assert ByteFiles().write(tmp_path, 320) == SpecialIds(BOS, EOS, PAD)
    tokenizer = opened(tmp_path)
    special = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert (special, len(tokenizer)) == ((BOS, EOS, PAD), 259)
    for text in HARD:
        ids = tokenizer(text)["input_ids"]
        assert ids == [BOS, *text.encode()]
        assert tokenizer.decode([*ids, EOS], skip_special_tokens=True) == text
    every = list(range(256))
    assert tokenizer.decode(every) == bytes(every).decode(errors="replace")
    padded = tokenizer(["a", "bcd"], padding=True)["input_ids"]
    assert sorted(map(len, padded)) == [4, 4]
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == EOS
    assert generation["suppress_tokens"] == list(range(259, 320))


def test_a_job_s_own_is_copied_and_what_it_lacks_is_added(tmp_path: Path) -> None:
    source = tmp_path / "models" / "small"
    write_tokenizer(source)
    theirs = json.loads((source / "tokenizer_config.json").read_text())
    (source / "notes.txt").write_text("not a tokenizer's")
    files = PlaceFiles("models:small", {"models": str(source.parent)})
    (whole := tmp_path / "whole").mkdir()
    assert files.write(whole, 300) == SpecialIds(0, 1, None)
    assert sorted(path.name for path in whole.iterdir()) == [
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert json.loads((whole / "tokenizer_config.json").read_text()) == theirs
    assert (whole / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()

    (source / "tokenizer_config.json").unlink()
    shutil.move(source / "tokenizer.json", source / "vocabulary.json")
    named = PlaceFiles("models:small/vocabulary.json", {"models": str(source.parent)})
    (bare := tmp_path / "bare").mkdir()
    ids = named.write(bare, 300)
    tokenizer = opened(bare)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (ids.bos, ids.eos)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")  # the usual names
    for text in DOCUMENTS:
        encoded = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(encoded) == text


def test_one_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "models" / "small"
    write_tokenizer(source)
    roots = {"models": str(source.parent)}
    with pytest.raises(DataError, match=r"data\.tokenizer_path='models:large'"):
        PlaceFiles("models:large", roots).write(tmp_path, 300)
    with pytest.raises(DataError, match="has 300 tokens, which do not fit"):
        PlaceFiles("models:small", roots).write(tmp_path, 299)
