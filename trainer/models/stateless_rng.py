"""Dropout whose mask is a pure function of seed, step, sequence, site and element.

A generator's stream depends on who draws in which order, hence on layout and micro-batches. Here
every element has its own counter, hashed by integer arithmetic that is the same on every device, so
masks stay bit-equal under any layout, micro-batch size and recomputation.

The key of (seed, step), then of the position, then of the site opens a splitmix64 stream (Steele et
al., Fast Splittable Pseudorandom Number Generators, 2014) with 64 bits for each token; those key
two rounds of a 32-bit mix (constants of Wellons' lowbias32) over the features of the token. 32-bit
integers in the inner loop cost a third of 64-bit ones on a CPU.

Shapes: B sequences, S tokens, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import torch
from torch import Tensor


def sequence_keys(seed: int, step: int, positions_B: Tensor) -> Tensor:
    """Return the key of each sequence of a step, int64 [B].

    `positions_B` holds the position of each sequence in the job's data stream, int64.
    """
    return _splitmix64(positions_B ^ _key(f"{seed}:{step}"))


def keys_of_sites(keys_B: Tensor, sites: Sequence[str]) -> Tensor:
    """Return the key of each sequence at some places in the model, int64 [N, B].

    A place has a name that is unique in the model.
    """
    return torch.stack([keys_B ^ _key(site) for site in sites])


def dropout(x_BSD: Tensor, p: float, *, keys_B: Tensor, tokens_S: Tensor) -> Tensor:
    """Return `x_BSD` with each element zeroed with probability `p`, else scaled by 1/(1-p).

    Args:
        x_BSD: what is dropped from.
        p: share that is dropped.
        keys_B: key of each sequence at this place in the model, from `keys_of_sites`.
        tokens_S: which tokens of a sequence `x_BSD` holds, int64.
    """
    if p == 0:
        return x_BSD
    # Of the 2^32 values of a signed 32-bit integer, the lowest share of p is dropped.
    limit = min(round(p * 2**32) - 2**31, 2**31 - 1)
    dropped_BSD = random_bits(keys_B, tokens_S, features=x_BSD.shape[-1]) < limit
    return (x_BSD * (1 / (1 - p))).masked_fill_(dropped_BSD, 0)


class Noise:
    """The randomness of one micro-batch, for a model that is not ours.

    Args:
        keys_B: key of each sequence, from `sequence_keys`.
        tokens_S: places in the sequence of the tokens, int64.
    """

    def __init__(self, keys_B: Tensor, tokens_S: Tensor) -> None:
        self._keys_B, self._tokens_S = keys_B, tokens_S

    def within(self, part: str) -> Noise:
        """Return the noise of a part of the model; names of sites need be unique in it only.

        Blocks that are given theirs differ by tensors alone, so one compiled program serves all.
        """
        (keys_B,) = keys_of_sites(self._keys_B, [part])
        return Noise(_splitmix64(keys_B), self._tokens_S)

    def dropout(self, x_BSD: Tensor, p: float, site: str) -> Tensor:
        """Return `x_BSD` after dropout; `site` is a name for the place, unique in the model."""
        (keys_B,) = keys_of_sites(self._keys_B, [site])
        return dropout(x_BSD, p, keys_B=keys_B, tokens_S=self._tokens_S)


def random_bits(keys_B: Tensor, tokens_S: Tensor, *, features: int) -> Tensor:
    """Return 32 random bits for each element, as int32 [B, S, D]."""
    keys_BS = _splitmix64(keys_B[:, None] + tokens_S * _GAMMA)
    halves_BS2 = keys_BS.view(torch.int32).view(*keys_BS.shape, 2)
    features_D = torch.arange(features, dtype=torch.int32, device=keys_B.device)
    bits_BSD = _mix(features_D ^ halves_BS2[..., :1], 16, 0x7FEB352D)
    return _mix(bits_BSD.add_(halves_BS2[..., 1:]), 15, 0x846CA68B)


def _signed(value: int, bits: int) -> int:
    """Return the signed integer of the same bits: torch has no full unsigned arithmetic."""
    return value - (1 << bits) if value >> (bits - 1) else value


_GAMMA = _signed(0x9E3779B97F4A7C15, 64)
_SPLITMIX_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # the hash is opaque to it
def _key(text: str) -> int:
    """Return a 64-bit hash of a text, as a signed integer."""
    return _hash(text)


@lru_cache(maxsize=4096)
def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _splitmix64(x: Tensor) -> Tensor:
    """Return the finalizer of splitmix64 of each element; a bijection on int64."""
    for shift, factor in _SPLITMIX_ROUNDS:
        x = (x ^ _logical_shift(x, shift, bits=64)) * _signed(factor, 64)
    return x ^ _logical_shift(x, 31, bits=64)


def _mix(x: Tensor, shift: int, factor: int) -> Tensor:
    """Do one round of a 32-bit hash on `x`, in place; the high bits are the best ones."""
    return x.bitwise_xor_(_logical_shift(x, shift, bits=32)).mul_(_signed(factor, 32))


def _logical_shift(x: Tensor, shift: int, *, bits: int) -> Tensor:
    """Shift to the right and fill with zeros: torch's own shift copies the sign."""
    return (x >> shift).bitwise_and_((1 << (bits - shift)) - 1)
