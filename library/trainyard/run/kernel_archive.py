"""The largest archive of compiled kernels."""

LARGEST_ARCHIVE = 512 * 2**20
"""Most bytes of an archive; kernels of a large model take some tens of MiB."""
