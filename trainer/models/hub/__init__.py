"""Hub models: causal language models of `transformers` that a folder defines."""
