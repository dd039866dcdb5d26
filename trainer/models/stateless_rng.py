"""Stateless dropout: the mask depends only on seed, step, sequence, site and element.

The stream of a generator depends on the order of draws, and so on layout and micro-batches. Here
every element has its own counter, which is hashed by integer arithmetic that is equal on every
device. So masks are bit-equal under any layout, micro-batch size and recomputation.

A key is derived from (seed, step), then from the position, then from the site. It starts a
splitmix64 stream (Steele et al., Fast Splittable Pseudorandom Number Generators, 2014) with 64 bits
per token. These bits are the keys for two rounds of a 32-bit mix (with the constants of Wellons'
lowbias32) over the features of the token. On a CPU, 32-bit integers in the inner loop take a third
of the time of 64-bit integers.

Shapes: B sequences, S tokens, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import torch
from torch import Tensor


def sequence_keys(seed: int, step: int, positions_B: Tensor) -> Tensor:
    """Return the key for each sequence of a step, int64 [B].

    `positions_B` is the position of each sequence in the job's data stream, int64.
    """
    return _splitmix64(positions_B ^ _key(f"{seed}:{step}"))


def keys_of_sites(keys_B: Tensor, sites: Sequence[str]) -> Tensor:
    """Return each sequence's key at N sites, int64 [N, B]; names must be unique in a model."""
    return torch.stack([keys_B ^ _key(site) for site in sites])


def dropout(x_BSD: Tensor, p: float, *, keys_B: Tensor, tokens_S: Tensor) -> Tensor:
    """Return `x_BSD` with each element zeroed with probability `p`, else scaled by 1/(1-p).

    Args:
        x_BSD: input.
        p: probability of zeroing an element, below 1.
        keys_B: key of each sequence at this site, from `keys_of_sites`.
        tokens_S: indices in the sequence of the tokens in `x_BSD`, int64.
    """
    if p == 0:
        return x_BSD
    # Random bits are signed int32, so drop the lowest p * 2^32 of the 2^32 values. The upper bound
    # keeps the limit an int32 if p is close to 1.
    limit = min(round(p * 2**32) - 2**31, 2**31 - 1)
    dropped_BSD = random_bits(keys_B, tokens_S, features=x_BSD.shape[-1]) < limit
    return (x_BSD * (1 / (1 - p))).masked_fill_(dropped_BSD, 0)


class Noise:
    """Stateless random source for one micro-batch; an own model receives this object as `noise`.

    Args:
        keys_B: key of each sequence, from `sequence_keys`.
        tokens_S: indices of the tokens in the sequence, int64.
    """

    def __init__(self, keys_B: Tensor, tokens_S: Tensor) -> None:
        self._keys_B, self._tokens_S = keys_B, tokens_S

    def within(self, part: str) -> Noise:
        """Return the source for a part of the model; names of sites must be unique within the part.

        The sources of blocks differ only in tensors, so all blocks share one compiled program.
        """
        (keys_B,) = keys_of_sites(self._keys_B, [part])
        return Noise(_splitmix64(keys_B), self._tokens_S)

    def dropout(self, x_BSD: Tensor, p: float, site: str) -> Tensor:
        """Return `x_BSD` after dropout; `site` must be a unique name in this source."""
        (keys_B,) = keys_of_sites(self._keys_B, [site])
        return dropout(x_BSD, p, keys_B=keys_B, tokens_S=self._tokens_S)


def random_bits(keys_B: Tensor, tokens_S: Tensor, *, features: int) -> Tensor:
    """Return 32 random bits for each element, as int32 [B, S, D]."""
    # In splitmix64 the state advances by the odd constant gamma, so the state for token s is
    # computed without a loop.
    keys_BS = _splitmix64(keys_B[:, None] + tokens_S * _GAMMA)
    halves_BS2 = keys_BS.view(torch.int32).view(*keys_BS.shape, 2)
    features_D = torch.arange(features, dtype=torch.int32, device=keys_B.device)
    bits_BSD = _mix(features_D ^ halves_BS2[..., :1], 16, 0x7FEB352D)
    return _mix(bits_BSD.add_(halves_BS2[..., 1:]), 15, 0x846CA68B)


def _signed(value: int, bits: int) -> int:
    """Return the signed integer with the same bits, as torch's unsigned types lack operators."""
    return value - (1 << bits) if value >> (bits - 1) else value


_GAMMA = _signed(0x9E3779B97F4A7C15, 64)
_SPLITMIX_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


# The compiler cannot trace blake2b, but the texts are constants in a program.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _key(text: str) -> int:
    """Return a 64-bit hash of a text, as a signed integer."""
    return _hash(text)


@lru_cache(maxsize=4096)
def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _splitmix64(x: Tensor) -> Tensor:
    """Return splitmix64's finalizer for each element; it is a bijection on int64."""
    for shift, factor in _SPLITMIX_ROUNDS:
        x = (x ^ _logical_shift(x, shift, bits=64)) * _signed(factor, 64)
    return x ^ _logical_shift(x, 31, bits=64)


def _mix(x: Tensor, shift: int, factor: int) -> Tensor:
    """Apply one round of a 32-bit hash to `x`, in place."""
    return x.bitwise_xor_(_logical_shift(x, shift, bits=32)).mul_(_signed(factor, 32))


def _logical_shift(x: Tensor, shift: int, *, bits: int) -> Tensor:
    """Shift right and fill with zeros, because `>>` on signed integers copies the sign bit."""
    return (x >> shift).bitwise_and_((1 << (bits - shift)) - 1)
