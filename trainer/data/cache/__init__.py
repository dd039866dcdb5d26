"""The token cache: text as token ids on disk, built once per node by several processes."""
