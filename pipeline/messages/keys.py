"""Where Kafka's default partitioner puts a key: clients and offline runs must agree with it."""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_FACTOR = 0x5BD1E995


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key, in [0, partitions)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(key: bytes) -> int:
    """Return the 32-bit hash that Kafka's Java client takes of a key, as an unsigned number."""
    length = len(key)
    value = 0x9747B28C ^ length
    whole = length - length % 4
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * _FACTOR & _MASK
        word = (word ^ word >> 24) * _FACTOR & _MASK
        value = value * _FACTOR & _MASK ^ word
    if length % 4:
        value = (value ^ int.from_bytes(key[whole:], "little")) * _FACTOR & _MASK
    value = (value ^ value >> 13) * _FACTOR & _MASK
    return value ^ value >> 15
