"""The control plane: FastAPI, scheduler and reconciler; the only part that touches the database."""
