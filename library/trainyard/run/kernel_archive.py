"""Size limit of an archive of compiled kernels."""

LARGEST_ARCHIVE = 512 * 2**20
"""Most bytes of an archive; kernels of a large model take tens of MiB."""
