"""HTTP mechanisms of every endpoint: requests, wire limits, authentication, the live stream."""
