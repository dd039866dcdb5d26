"""The byte tokenizer gives back what it was given, and agrees with the spec's vocabulary."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specs.rules import BYTE_VOCABULARY
from trainer.data.tokenizer import BOS, EOS, PAD, ByteTokenizer


@given(st.text())
def test_text_survives(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(text.encode())) == text


@given(st.lists(st.binary(), max_size=5))
def test_a_document_is_its_bytes_between_its_marks(chunks: list[bytes]) -> None:
    tokenizer = ByteTokenizer()
    tokens = np.concatenate(list(tokenizer.encode_document(chunks)))
    assert tokens.dtype == tokenizer.dtype
    assert tokens.tolist() == [BOS, *b"".join(chunks), EOS]
    assert tokens.size == tokenizer.count(len(b"".join(chunks)))


def test_special_and_unknown_tokens_are_no_text() -> None:
    assert ByteTokenizer().decode([BOS, 72, 105, PAD, 319, EOS]) == "Hi"


def test_broken_utf8_becomes_the_replacement_character() -> None:
    assert ByteTokenizer().decode([0xC3, 40]) == "\N{REPLACEMENT CHARACTER}("


def test_the_vocabulary_is_the_one_that_specs_are_checked_against() -> None:
    assert ByteTokenizer.vocab_size == BYTE_VOCABULARY == PAD + 1
