"""The job spec: its sections, and the rules that span them."""
