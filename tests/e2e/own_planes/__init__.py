"""The whole product with settings or faults that one control plane for all tests cannot have."""
