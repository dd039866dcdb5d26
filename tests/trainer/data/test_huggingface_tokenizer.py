"""A tokenizer from a file: its marks, its vocabulary, and refusals."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from tests.trainer.data.inputs import DOCUMENTS, HUGGINGFACE_TOKENIZER, write_text, write_tokenizer
from trainer.data.dataset import Dataset, open_dataset
from trainer.data.open_tokenizer import open_tokenizer
from trainer.data.tokenizer import ByteTokenizer, Tokenizer, dtype_of
from trainer.errors import DataError
from trainyard.spec.job import JobSpec, parse_job_spec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "models/small"
    write_tokenizer(folder)
    return folder


def spec_of(vocab_size: int = 320, **data: Any) -> JobSpec:
    return parse_job_spec(
        {
            "data": {**HUGGINGFACE_TOKENIZER, **data},
            "model": {"vocab_size": vocab_size},
            "training": {"seq_len": 8},
        }
    )


def opened(folder: Path, **spec: Any) -> Tokenizer:
    return open_tokenizer(spec_of(**spec), {"models": str(folder.parent)})


def refusal(folder: Path, **spec: Any) -> str:
    with pytest.raises(DataError) as caught:
        opened(folder, **spec)
    assert "data.tokenizer_path='models:" in str(caught.value)
    assert caught.value.path is not None
    return str(caught.value)


def dataset_of(folder: Path, root: Path, **spec: Any) -> Dataset:
    return open_dataset(
        spec_of(**spec),
        roots={"models": str(folder.parent), "data": str(root)},
        cache_dir=root.with_name("cache"),
        on_progress=lambda: None,
    )


def test_it_encodes_as_the_library_does_and_decodes_back(folder: Path) -> None:
    tokenizer = opened(folder)
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoded = tokenizer.encode_batch([text.encode() for text in DOCUMENTS])
    for text, tokens in zip(DOCUMENTS, encoded, strict=True):
        assert tokens.dtype == dtype_of(tokenizer) == np.uint16
        assert tokens.tolist() == reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode([tokenizer.bos or 0, *tokens, tokenizer.eos]) == text
    assert tokenizer.vocab_size == reference.get_vocab_size() == 300


def test_a_file_and_its_folder_are_the_same_tokenizer(folder: Path) -> None:
    whole = opened(folder, tokenizer_path="models:small/tokenizer.json")
    assert whole.name == opened(folder).name


def test_it_crosses_to_other_processes(folder: Path) -> None:
    tokenizer = opened(folder)
    other = copy.deepcopy(tokenizer)  # like pickle
    assert (other.name, other.bos, other.eos) == (tokenizer.name, tokenizer.bos, tokenizer.eos)
    text = [b"document <|end|> <s>"]
    assert np.array_equal(other.encode_batch(text)[0], tokenizer.encode_batch(text)[0])


def test_a_text_cannot_forge_a_special_token(folder: Path) -> None:
    tokenizer = opened(folder)
    text = b"before <|end|><|begin|> after </s>"
    [tokens] = tokenizer.encode_batch([text])
    assert not set(tokens.tolist()) & set(range(4))
    assert tokenizer.decode(tokens) == text.decode()


def test_truncation_and_padding_of_the_file_are_put_aside(folder: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=6)
    tokenizer.save(str(folder / "tokenizer.json"))
    sizes = [tokens.size for tokens in opened(folder).encode_batch([b"a", b"x y z " * 20])]
    assert sizes[0] == 1
    assert sizes[1] > 20


def test_randomness_of_the_file_is_put_aside(folder: Path) -> None:
    text = DOCUMENTS[0].encode()
    (expected,) = opened(folder).encode_batch([text])
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["dropout"] = 0.5
    path.write_text(json.dumps(content))
    library = tokenizers.Tokenizer.from_file(str(path))
    assert len({tuple(library.encode(text.decode()).ids) for _ in range(20)}) > 1
    for tokens in opened(folder).encode_batch([text] * 20):
        assert tokens.tolist() == expected.tolist()


# ---- the marks of a document --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "bos", "eos"),
    [
        ({"bos_token": "<|begin|>", "eos_token": "<|end|>"}, 0, 1),
        ({"bos_token": {"content": "<s>"}, "eos_token": {"content": "</s>"}}, 2, 3),
        ({"bos_token": None, "eos_token": "</s>"}, None, 3),
        ({"bos_token": "<|end|>", "eos_token": "<|end|>"}, None, 1),
        ({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False}, None, 3),
        ({}, 2, 3),
        (None, 2, 3),
    ],
)
def test_begin_and_end_come_from_the_configuration_or_usual_names(
    folder: Path, config: dict[str, Any] | None, bos: int | None, eos: int
) -> None:
    (folder / "tokenizer_config.json").unlink()
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = opened(folder)
    assert (tokenizer.bos, tokenizer.eos) == (bos, eos)


def test_the_configuration_lies_beside_the_name_also_when_both_are_links(folder: Path) -> None:
    """Like in the hub's cache: a snapshot links to blobs without names."""
    snapshot = folder.with_name("snapshot")
    snapshot.mkdir()
    for number, name in enumerate(("tokenizer.json", "tokenizer_config.json")):
        shutil.move(folder / name, folder.parent / f"blob{number}")
        (snapshot / name).symlink_to(folder.parent / f"blob{number}")
    for place in ("models:snapshot", "models:snapshot/tokenizer.json"):
        assert opened(folder, tokenizer_path=place).bos == 0


def test_documents_stand_between_their_marks(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    dataset = dataset_of(folder, root, **write_text(root, DOCUMENTS), document_masks=True)
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    stream = [
        token
        for text in DOCUMENTS
        for token in (0, *reference.encode(text, add_special_tokens=False).ids, 1)
    ]
    assert dataset.n_sequences == (len(stream) - 1) // 8
    seen = dataset.windows(np.arange(dataset.n_sequences))
    places = dataset.order(np.arange(dataset.n_sequences))
    assert all(w.tolist() == stream[p * 8 : p * 8 + 9] for w, p in zip(seen, places, strict=True))


# ---- the dataset --------------------------------------------------------------------------------


def other_end(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<|begin|>", "eos_token": "<s>"}')


def other_file(folder: Path) -> None:
    content = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(content + "\n")


@pytest.mark.parametrize("change", [other_end, other_file])
def test_the_digest_notices_another_tokenizer(
    folder: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    data = write_text(root, DOCUMENTS)
    before = dataset_of(folder, root, **data).digest
    assert dataset_of(folder, root, **data).digest == before
    change(folder)
    assert dataset_of(folder, root, **data).digest != before


def test_a_large_vocabulary_takes_32_bits(folder: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([f"token{n}" for n in range(66_000)])
    tokenizer.save(str(folder / "tokenizer.json"))
    large = opened(folder, vocab_size=70_000)
    assert large.vocab_size == 66_300
    assert dtype_of(large) == np.uint32
    [tokens] = large.encode_batch([b"token65999"])
    assert tokens.tolist() == [66_299]
    assert dtype_of(ByteTokenizer()) == np.uint16


# ---- what is refused ----------------------------------------------------------------------------


def test_a_vocabulary_larger_than_the_models_is_refused_with_the_numbers(folder: Path) -> None:
    opened(folder, vocab_size=300)
    told = refusal(folder, vocab_size=299)
    assert "has 300 tokens, which do not fit model.vocab_size=299" in told
    assert "legal: model.vocab_size=300 or more" in told


def test_a_missing_file_is_refused(folder: Path) -> None:
    assert "No such file" in refusal(folder, tokenizer_path="models:gone.json")
    (folder / "tokenizer.json").unlink()
    assert "No such file" in refusal(folder)


def test_a_file_that_is_none_is_refused(folder: Path) -> None:
    for content in (b"{}", b"no json", b"\xff"):
        (folder / "tokenizer.json").write_bytes(content)
        assert "is no t" in refusal(folder)


def test_a_configuration_that_is_none_is_refused(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{")
    assert "tokenizer_config.json is no JSON" in refusal(folder)


def test_an_end_that_is_not_in_the_vocabulary_is_refused(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|gone|>"}')
    assert "has no token '<|gone|>'" in refusal(folder)


def test_a_tokenizer_without_an_end_is_refused(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": null}')
    assert "names no token for the end of a text" in refusal(folder)


def test_a_text_that_is_no_utf8_is_refused_with_its_place(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (root / "latin").write_bytes(b"a first line\nna\xefve" * 3)
    with pytest.raises(DataError, match="latin is no UTF-8 at offset 15: byte 0xef") as caught:
        dataset_of(folder, root, source="text", path="data:.")
    assert "'byte' takes any encoding" in str(caught.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_pointer_of_git_lfs_is_refused_by_name(folder: Path, name: str) -> None:
    digest = "4d" * 32
    (folder / name).write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize 9085657\n"
    )
    assert f"{name} is a pointer of Git LFS to a file of 9,085,657 bytes" in refusal(folder)


def test_a_byte_order_mark_is_no_part_of_its_files(folder: Path) -> None:
    expected = opened(folder)
    for path in folder.glob("*.json"):
        path.write_text("\ufeff" + path.read_text())
    assert opened(folder).name == expected.name
