"""Unix accounts of the owners of jobs: lookups on this node, and the setting `owner`."""
