"""The sections of the job spec, one module for each group that is read together."""
