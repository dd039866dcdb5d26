"""Parameter counts of an architecture, by part."""

from __future__ import annotations

from trainyard.planner.results import ParameterCount
from trainyard.training.architectures import Architecture
from trainyard.training.counted_model import CountedModel


def count_parameters(architecture: Architecture) -> ParameterCount:
    """Count the parameters of each part; tied embeddings count once, as embedding."""
    a = architecture
    if a.counted is not None:
        return _counted(a.counted, blocks=a.n_layers)
    kv_dim = a.n_kv_heads * a.head_dim
    qk_norms = 2 * a.head_dim if a.qk_norm else 0
    embedding = a.vocab_size * a.dim
    attention = 2 * a.dim * a.attention_dim + 2 * a.dim * kv_dim
    feed_forward = 3 * a.dim * a.ffn_dim
    norms = 2 * a.dim + qk_norms
    head = 0 if a.tied_embeddings else embedding
    return ParameterCount(
        embedding=embedding,
        blocks=a.n_layers,
        attention=attention,
        feed_forward=feed_forward,
        norms=norms,
        final_norm=a.dim,
        head=head,
        total=embedding + a.n_layers * (attention + feed_forward + norms) + a.dim + head,
    )


def _counted(model: CountedModel, *, blocks: int) -> ParameterCount:
    """Return the counts of a hub model; blocks may differ, so their mean is rounded down."""
    return ParameterCount(
        embedding=model.embedding,
        blocks=blocks,
        attention=model.attention // blocks,
        feed_forward=model.feed_forward // blocks,
        norms=model.norms // blocks,
        final_norm=model.final_norm,
        head=model.head,
        total=model.parameters,
    )
