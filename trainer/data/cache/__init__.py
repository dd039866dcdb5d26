"""The token cache: text as token ids on disk; several processes build it once per node."""
