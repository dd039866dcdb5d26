"""The byte tokenizer is reversible, and agrees with the spec's vocabulary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainer.data.tokenizer import BOS, EOS, PAD, ByteTokenizer, dtype_of
from trainyard.spec.rules import BYTE_VOCABULARY


@given(st.text())
def test_text_survives(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(text.encode())) == text


@given(st.lists(st.binary(), max_size=5))
def test_bytes_are_their_own_tokens(texts: list[bytes]) -> None:
    tokenizer = ByteTokenizer()
    encoded = tokenizer.encode_batch(texts)
    assert [tokens.tolist() for tokens in encoded] == [list(text) for text in texts]
    assert {tokens.dtype for tokens in encoded} <= {dtype_of(tokenizer)}


def test_special_and_unknown_tokens_are_no_text() -> None:
    assert ByteTokenizer().decode([BOS, 72, 105, PAD, 319, EOS]) == "Hi"


def test_broken_utf8_becomes_the_replacement_character() -> None:
    assert ByteTokenizer().decode([0xC3, 40]) == "\N{REPLACEMENT CHARACTER}("


def test_the_vocabulary_is_the_one_that_specs_are_checked_against() -> None:
    assert ByteTokenizer.vocab_size == BYTE_VOCABULARY == PAD + 1
