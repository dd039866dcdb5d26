"""The token cache: text as token ids on disk, built once a node by several processes."""
