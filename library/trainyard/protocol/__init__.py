"""What passes between the programs: REST views, worker messages, events, manifests."""
