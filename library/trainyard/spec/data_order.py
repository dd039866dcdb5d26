"""Fields of a spec that decide the sequences and their order."""

from __future__ import annotations

from trainyard.spec.sections.model import DataSection

WITHOUT_EFFECT = frozenset({"data.document_masks", "data.prefetch_batches"})
"""Fields of the section `data` that leave sequences and order as they are."""
OUTSIDE_DATA = ("training.seq_len", "training.seed")
ORDER_FIELDS = (
    *(f for name in DataSection.model_fields if (f := f"data.{name}") not in WITHOUT_EFFECT),
    *OUTSIDE_DATA,
)
"""All such fields; with one of them changed, a position denotes another sequence."""


def keeps_order(field: str) -> bool:
    """Return whether the data can continue with another value of a field, such as `data.path`."""
    return field not in ORDER_FIELDS
