"""Writes the text and the tokenizer of torchtitan's debug model, which its package leaves out."""

from __future__ import annotations

import json
import random
from pathlib import Path

BEGIN, END = "<s>", "</s>"


def main() -> None:
    """Write `tests/assets/c4_test` and `tokenizer` into the folder of this file."""
    folder = Path(__file__).resolve().parent
    corpus = folder / "tests" / "assets" / "c4_test"
    corpus.mkdir(parents=True, exist_ok=True)
    draws = random.Random(0)
    texts = (" ".join(str(draws.randrange(10_000)) for _ in range(400)) for _ in range(200))
    lines = (json.dumps({"text": text}) + "\n" for text in texts)
    (corpus / "data.json").write_text("".join(lines))

    tokenizer = folder / "tokenizer"
    tokenizer.mkdir(exist_ok=True)
    signs = [BEGIN, END, *(chr(code) for code in range(32, 127))]
    model = {"type": "BPE", "vocab": {sign: i for i, sign in enumerate(signs)}, "merges": []}
    plain = {"special": True, "single_word": False, "lstrip": False, "rstrip": False}
    added = [
        {"id": i, "content": sign, "normalized": False, **plain}
        for i, sign in enumerate((BEGIN, END))
    ]
    (tokenizer / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": added, "model": model})
    )
    (tokenizer / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": BEGIN, "eos_token": END})
    )


if __name__ == "__main__":
    main()
