"""What the storing of reports costs, how much a machine takes, and how that grows."""
