"""The whole product with settings or faults that need a control plane of their own."""
