"""The whole product like for users, with real faults; one control plane serves these files."""
