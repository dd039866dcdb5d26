"""Opens the tokenizer of a spec."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.data.tokenizer import ByteTokenizer, Tokenizer
from trainyard.spec.job import JobSpec


def open_tokenizer(spec: JobSpec, roots: Mapping[str, str]) -> Tokenizer:
    """Return the tokenizer of a spec.

    Args:
        spec: the job's spec.
        roots: absolute path of each root on this node, by name.

    Raises:
        DataError: the tokenizer's file is missing, outside of its root or damaged, names no EOS
            token, or has more tokens than the model.
    """
    if spec.data.tokenizer == "byte":
        return ByteTokenizer()
    # Imported here, because the import is slow and the byte tokenizer does not need it.
    from trainer.data.huggingface_tokenizer import TokenizerFile

    assert spec.data.tokenizer_path is not None  # a rule of the spec ensures this
    return TokenizerFile(spec.data.tokenizer_path, roots).open(spec.architecture.vocab_size)
