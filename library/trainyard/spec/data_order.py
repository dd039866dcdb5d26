"""Which fields of a spec decide what the sequences are and in which order they come."""

from __future__ import annotations

from trainyard.spec.sections.model import DataSection

WITHOUT_EFFECT = frozenset({"data.document_masks", "data.prefetch_batches"})
"""Fields of the section `data` that leave sequences and order as they are."""
BESIDE_DATA = ("training.seq_len", "training.seed")
ORDER_FIELDS = (
    *(f for name in DataSection.model_fields if (f := f"data.{name}") not in WITHOUT_EFFECT),
    *BESIDE_DATA,
)
"""All that decide; with one of them changed, a position in the data means another sequence."""


def keeps_order(field: str) -> bool:
    """Return whether a field, such as `data.path`, may change while the data go on."""
    return field not in ORDER_FIELDS
