"""HTTP as every endpoint uses it: requests, limits on the wire, who calls, the live stream."""
