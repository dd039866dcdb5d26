"""The probe of ranks: the values that each rank measures, for the trainer and the client."""
