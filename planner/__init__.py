"""Pure arithmetic: parameters, FLOPs, memory, batches and legal layouts; no torch, no I/O."""
