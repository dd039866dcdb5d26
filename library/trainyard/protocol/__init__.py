"""Data that the programs exchange: REST views, worker messages, events, manifests."""
