"""The detached process of one attempt: owns its ranks, and reports until the end is stored."""
