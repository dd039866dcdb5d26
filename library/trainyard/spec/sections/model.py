"""Sections `model` and `data`: the model and its training text."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import Fraction, SpecModel, Tokens
from trainyard.spec.storage_uri import Place
from trainyard.training.architectures import ARCHITECTURES, Architecture, RopeScaling
from trainyard.training.counted_model import CountedModel

FACTORY = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"
ClassName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)]
Plan = Literal["tensor", "pipeline"]
Width = Annotated[int, Field(ge=1, le=1_000_000)]
SIZES = list(dict.fromkeys(size for sizes in ARCHITECTURES.values() for size in sizes))


class ModelSection(SpecModel):
    """The model: a named size of a family, optionally with some dimensions changed."""

    family: Literal["llama3", "qwen3"] = "llama3"
    """Model family."""
    size: Annotated[str, Field(min_length=1, max_length=32, examples=SIZES)] = "debug"
    """Size within the family; `debug` trains in seconds on one CPU core."""
    factory: Annotated[str, Field(pattern=FACTORY, max_length=200)] | None = None
    """The user's own model, as `package.module:build`, instead of a family. Legal only if the
    settings allow it."""
    hugging_face: Place | None = None
    """Folder with the `config.json` of a `transformers` model, such as `data:Mistral-7B`, instead
    of a family. The shape fields must equal those of the folder."""
    remote_code: bool = False
    """Whether the Python files that `config.json` names in `auto_map` may run. Legal only if the
    settings allow code."""
    counted: CountedModel | None = None
    """Numbers of the model in `hugging_face`, as `python -m trainer describe` prints them. Without
    them, the planner estimates a Llama with the shape fields."""
    code: Place | None = None
    """Folder to add to Python's import path for `factory`, such as `data:own_model`."""
    arguments: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Arguments of `factory`, in addition to `vocab_size` and `seq_len`."""
    block_classes: Annotated[tuple[ClassName, ...], Field(strict=False, max_length=16)] = ()
    """Class names of the blocks of the user's own model. Each block is sharded, recomputed and
    compiled as a unit."""
    plans: Annotated[tuple[Plan, ...], Field(strict=False, max_length=2)] = ()
    """Parallel plans that the user's own model provides. `tensor` makes `tp` legal, and `pipeline`
    makes `pp` legal."""
    initial_weights: Place | None = None
    """Hugging Face weights to start from, such as `data:Qwen3-0.6B`; if absent, random weights."""
    dim: Width | None = None
    """Width of the residual stream. If absent, `size` defines the width."""
    n_layers: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Number of transformer blocks. If absent, `size` defines the number."""
    n_heads: Width | None = None
    """Number of query heads; without a `head_dim`, it must divide `dim` into even head widths. If
    absent, `size` defines the number."""
    n_kv_heads: Width | None = None
    """Number of key and value heads; it must divide `n_heads`. If absent, `size` defines
    the number."""
    ffn_dim: Width | None = None
    """Width of the feed-forward hidden layer. If absent, `size` defines the width."""
    vocab_size: Width | None = None
    """Number of rows of the embedding, at least the size of the tokenizer's vocabulary. If absent,
    `size` defines the number."""
    head_dim: Width | None = None
    """Width of an attention head, an even number. If absent, `size` defines the width. If `size`
    defines none, the width is `dim / n_heads`."""
    tied_embeddings: bool | None = None
    """Whether the output head is the transposed embedding. If absent, `size` defines this."""
    rope_theta: Annotated[float, Field(gt=1, le=1e12)] | None = None
    """Base of the rotary position frequencies. If absent, `size` defines the base."""
    rope_factor: Annotated[float, Field(ge=1, le=1e6)] | None = None
    """Factor of Llama 3.1's rotary scaling; 1 disables the scaling. If absent, `size` defines
    the factor."""
    norm_eps: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Epsilon of the RMS norms. If absent, `size` defines the value."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability of dropping an element of a residual branch during training."""

    @property
    def is_own(self) -> bool:
        """Whether the model is a module outside of the families: `factory` or `hugging_face`."""
        return self.factory is not None or self.hugging_face is not None

    @property
    def runs_code(self) -> bool:
        """Whether the model is code that the job brings."""
        return self.factory is not None or self.remote_code

    def shape_of(self, size: Architecture) -> Architecture:
        """Return the shape of a size, changed by the values of this section."""
        given = {name: getattr(self, name) for name in SHAPE_FIELDS}
        changed = {name: value for name, value in given.items() if value is not None}
        if self.head_dim is not None:
            changed["own_head_dim"] = self.head_dim
        if self.rope_factor is not None:
            scaling = size.rope_scaling or RopeScaling(self.rope_factor)
            scaled = dataclasses.replace(scaling, factor=self.rope_factor)
            changed["rope_scaling"] = scaled if self.rope_factor > 1 else None
        return dataclasses.replace(size, **changed) if changed else size


SHAPE_FIELDS = tuple(
    field.name
    for field in dataclasses.fields(Architecture)
    if field.name in ModelSection.model_fields
)
"""Fields of this section that `Architecture` has under the same name."""


class DataSection(SpecModel):
    """The training text, and its conversion to token sequences."""

    source: Literal["corpus", "text", "jsonl", "parquet", "huggingface"] = "corpus"
    """Kind of input: a built-in corpus, text files, JSON lines, Parquet files or a Hugging Face
    data set."""
    corpus: Literal["python-stdlib"] = "python-stdlib"
    """Built-in corpus (source `corpus`): the source files of Python's own standard library."""
    path: Place | None = None
    """File or folder with the input, as `<root>:<path>`, such as `data:books`. Illegal with
    `corpus`."""
    text_field: Annotated[str, Field(min_length=1, max_length=200)] = "text"
    """Name of the field that holds the text (`jsonl`, `parquet`, `huggingface`)."""
    split: Annotated[str, Field(min_length=1, max_length=200)] = "train"
    """Split of a Hugging Face data set (`huggingface`)."""
    tokenizer: Literal["byte", "huggingface"] = "byte"
    """Tokenizer. `byte` maps each UTF-8 byte to a token and needs no file."""
    tokenizer_path: Place | None = None
    """Hugging Face tokenizer: a `tokenizer.json`, such as `data:tok.json`, or its folder."""
    document_masks: bool = False
    """Whether tokens attend only to tokens of their own document if a sequence has several
    documents."""
    max_tokens: Tokens | None = None
    """Maximum number of tokens to use, from the start of the input; if absent, all tokens."""
    validation_fraction: Annotated[Fraction, Field(lt=1)] = 0.0
    """Share of the sequences that is held out for validation, from 0 to below 1."""
    prefetch_batches: Annotated[int, Field(ge=0, le=64)] = 2
    """Number of global batches to read ahead."""
