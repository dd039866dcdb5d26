"""From a spec to its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.data.tokenizer import ByteTokenizer, Tokenizer
from trainyard.spec.job import JobSpec


def open_tokenizer(spec: JobSpec, roots: Mapping[str, str]) -> Tokenizer:
    """Return the tokenizer of a spec.

    Args:
        spec: the job's spec.
        roots: absolute path on this node of each named root.

    Raises:
        DataError: its file is missing, outside its root or damaged, knows no end of a text, or has
            more tokens than the model.
    """
    if spec.data.tokenizer == "byte":
        return ByteTokenizer()
    # Here, because importing it takes a while, and bytes need none of it.
    from trainer.data.huggingface_tokenizer import open_huggingface_tokenizer

    return open_huggingface_tokenizer(spec, roots)
