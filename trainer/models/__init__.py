"""Model families, own models, and reproducible initial weights and dropout."""
