"""The whole product as its users run it, with real faults; one control plane serves these files."""
