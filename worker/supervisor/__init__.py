"""The detached process of one attempt: owns its ranks, and reports until the server has the end."""
