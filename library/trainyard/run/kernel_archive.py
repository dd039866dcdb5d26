"""Size limit of an archive of compiled kernels."""

LARGEST_ARCHIVE = 512 * 2**20
"""Maximum size of an archive, in bytes; kernels of a large model take tens of MiB."""
