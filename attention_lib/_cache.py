"""Chapter 14: keys and values that are kept; :mod:`attention_lib.decoding` uses and exports them.

A cache belongs to one layer. It stores the token at position p of a sample in a slot of its own
(p, or p modulo the window), so padding takes no slot and each sample has its own length.
"""

import math
from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attention_lib import _arguments

_Real = Bool[Tensor, "b q"] | None
_Heads = Float[Tensor, "b h_kv k d"]


class KeyValueCache:
    """Keys and values of the past, in memory that is taken once.

    Args:
        batch_size: Number of samples.
        num_kv_heads: Number of key/value heads of the layer.
        capacity: Number of positions that fit, for each sample.
        width: Width d of one head.
        dtype: Float dtype of what is stored, the default dtype by default.
        device: Where it lives, the CPU by default.

    Attributes:
        keys, values: ``(batch, key/value heads, capacity, d)``, 0 where nothing is stored: with
            weight 0 a NaN would spread all the same.
        lengths: ``(batch,)``, how many tokens of each sample came in so far.
        window: How many positions a query sees, its own among them; ``None`` for all.

    Raises:
        TypeError: A size that is not an integer, or a dtype that is not a float.
        ValueError: A size below 1, or a device that PyTorch does not know.

    Example:
        >>> cache = KeyValueCache(batch_size=1, num_kv_heads=2, capacity=8, width=4)
        >>> key = torch.ones(1, 2, 3, 4)
        >>> keys, values, positions = cache.append(key, key)
        >>> keys.shape, positions.tolist(), cache.nbytes
        (torch.Size([1, 2, 3, 4]), [[0, 1, 2]], 512)
    """

    window: int | None = None

    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        capacity: int,
        width: int,
        dtype: torch.dtype | None = None,
        device=None,
    ):
        shape = (batch_size, num_kv_heads, capacity, width)
        names = ("batch_size", "num_kv_heads", "capacity", "width")
        _arguments.positive(**dict(zip(names, shape, strict=True)))
        _arguments.float_dtype("dtype", torch.get_default_dtype() if dtype is None else dtype)
        _arguments.device(device)
        self.capacity = capacity
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros_like(self.keys)
        self.lengths = torch.zeros(batch_size, dtype=torch.int64, device=device)

    @property
    def nbytes(self) -> int:
        """How many bytes keys and values take, filled or not; see :func:`cache_bytes`."""
        return self.keys.nbytes + self.values.nbytes

    def positions(self) -> Int[Tensor, "b {self.capacity}"]:
        """The position that each slot holds, ``(batch, capacity)``; -1 for an empty slot."""
        last = self.lengths[:, None] - 1
        slots = torch.arange(self.capacity, device=self.lengths.device)
        return (last - (last - slots) % self.capacity).clamp(min=-1)

    def next_positions(self, length: int, real: _Real = None) -> Int[Tensor, "b {length}"]:
        """The positions of the next tokens, counted on for each sample.

        Args:
            length: Number of tokens L of each sample that come, padding included.
            real: ``(batch, L)``, True = a token, False = padding, wherever it stands.

        Returns:
            ``(batch, L)``; -1 for padding.

        Raises:
            TypeError: A length that is not an integer, or a ``real`` that is not bool.
            ValueError: A negative length, or a ``real`` of another shape or on another device.
        """
        _arguments.counts(length=length)
        shape = (len(self.lengths), length)
        if real is None:
            real = torch.ones(shape, dtype=torch.bool, device=self.lengths.device)
        _check_real(real, shape, self.lengths.device)
        return (self.lengths[:, None] + real.cumsum(dim=1) - 1).masked_fill(~real, -1)

    def append(
        self, key: Float[Tensor, "b h_kv q d"], value: Float[Tensor, "b h_kv q d"], real=None
    ) -> tuple[_Heads, _Heads, Int[Tensor, "b k"]]:
        """Store the next tokens and return everything that their queries may need.

        Args:
            key: ``(batch, key/value heads, L, d)``. Where positions turn the keys, turned ones.
            value: The same shape.
            real: ``(batch, L)``, True = a token, False = padding, which is not stored.

        Returns:
            Keys and values ``(batch, key/value heads, S, d)``, which are views of the cache where
            that is possible, and the position of each, ``(batch, S)``, -1 for none.

        Raises:
            TypeError: Another dtype than the cache's, or a ``real`` that is not bool.
            ValueError: Another shape or device than the cache's, no room, or tensors that record
                a gradient: the next write would change what a backward pass needs.
        """
        for name, tensor in (("key", key), ("value", value)):
            self._check(name, tensor)
        if key.shape != value.shape:
            raise ValueError(
                f"key and value must have one shape; got {(*key.shape,)} and {(*value.shape,)}"
            )
        return self._append(key, value, self.next_positions(key.shape[2], real))

    def rewind(self, length: int) -> None:
        """Forget what stands at position ``length`` and later, of every sample.

        Args:
            length: The largest length of a sample afterwards; 0 empties the cache.

        Raises:
            TypeError: A length that is not an integer.
            ValueError: A negative length.
        """
        _arguments.counts(length=length)
        self.keys[:, :, length:] = self.values[:, :, length:] = 0
        self.lengths = self.lengths.clamp(max=length)

    def _append(self, key, value, positions):
        needed = int(positions.max()) + 1 if positions.numel() else 0
        if needed > self.capacity:
            raise ValueError(
                f"the cache has room for capacity = {self.capacity} positions; {needed} are "
                f"needed, the longest sample holds {int(self.lengths.max())} now"
            )
        return self._store(key, value, positions)

    def _store(self, key, value, positions):
        """Write into the slots, of two positions with one slot the later one; what is there now."""
        lengths = self.lengths + (positions >= 0).sum(dim=1)
        kept = (positions >= 0) & (positions >= lengths[:, None] - self.capacity)
        rows, columns = kept.nonzero(as_tuple=True)
        slots = positions[rows, columns] % self.capacity
        self.keys[rows, :, slots] = key[rows, :, columns]
        self.values[rows, :, slots] = value[rows, :, columns]
        self.lengths = lengths
        return self._stored()

    def _stored(self):
        """Keys, values and positions of the slots up to the last one in use."""
        used = int(self.lengths.max())
        return self.keys[:, :, :used], self.values[:, :, :used], self.positions()[:, :used]

    def _check(self, name, tensor):
        _arguments.float_tensor(name, tensor)
        if tensor.dtype != self.keys.dtype:
            raise TypeError(
                f"{name} must have the cache's dtype {self.keys.dtype}; got {tensor.dtype}"
            )
        if tensor.device != self.keys.device:
            raise ValueError(
                f"{name} must be on the cache's device {self.keys.device}; got {tensor.device}"
            )
        batch, heads, _, width = self.keys.shape
        if tensor.ndim != 4 or (*tensor.shape[:2], tensor.shape[3]) != (batch, heads, width):
            raise ValueError(
                f"{name} must have the cache's shape (batch, key/value heads, L, d) = "
                f"({batch}, {heads}, L, {width}); got {tuple(tensor.shape)}"
            )
        if tensor.requires_grad:
            raise ValueError(
                f"{name} must not record a gradient, a cache is overwritten in place: append "
                "under torch.no_grad()"
            )


class RollingCache(KeyValueCache):
    """A cache of the last ``capacity`` positions: the newest takes the slot of the oldest.

    Arguments and methods are those of :class:`KeyValueCache`; it never overflows, and a query sees
    ``window = capacity`` positions, its own among them. Position p is in slot ``p % capacity``.

    Source:
        Jiang et al., "Mistral 7B", 2023, section 2, "Rolling buffer cache".

    Example:
        >>> cache = RollingCache(batch_size=1, num_kv_heads=1, capacity=3, width=2)
        >>> for _ in range(5):
        ...     _ = cache.append(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))
        >>> cache.positions().tolist()
        [[3, 4, 2]]
    """

    @property
    def window(self) -> int:
        """The capacity, since a query sees as many positions, its own among them."""
        return self.capacity

    def rewind(self, length: int) -> None:
        """As in a full cache, while nothing that would be needed again was overwritten.

        Raises:
            TypeError: A length that is not an integer.
            ValueError: A negative length, or one whose window is not there any more.
        """
        longest = int(self.lengths.max())
        if isinstance(length, Integral) and 0 < length < longest and longest > self.capacity:
            raise ValueError(
                f"a rolling cache of capacity = {self.capacity} that holds {longest} positions "
                f"has overwritten what position {length} would see; rewind(0) empties it"
            )
        super().rewind(length)

    def _append(self, key, value, positions):
        if key.shape[2] == 1:  # what is overwritten has left the window
            return self._store(key, value, positions)
        both = zip(self._stored(), (key, value, positions), (2, 2, 1), strict=True)
        # copies, since early queries of the chunk still need what its end overwrites
        together = tuple(torch.cat((old, new), dim=axis) for old, new, axis in both)
        self._store(key, value, positions)
        return together


def cache_bytes(
    num_layers: int,
    num_kv_heads: int,
    width: int,
    positions: int,
    batch_size: int = 1,
    bytes_per_number: int = 2,
) -> int:
    """Bytes of the keys and values of all layers.

    ``2 * num_layers * batch_size * num_kv_heads * positions * width * bytes_per_number``; the 2 is
    for keys and values.

    Args:
        num_layers: Number of layers.
        num_kv_heads: Number of key/value heads of a layer.
        width: Width d of one head.
        positions: Number of positions.
        batch_size: Number of samples.
        bytes_per_number: 2 for half precision.

    Returns:
        A number of bytes.

    Raises:
        TypeError: A size that is not an integer.
        ValueError: A negative size.

    Example:
        >>> cache_bytes(num_layers=12, num_kv_heads=12, width=64, positions=1024) // 1024**2
        36
    """
    sizes = dict(
        num_layers=num_layers, num_kv_heads=num_kv_heads, width=width, positions=positions,
        batch_size=batch_size, bytes_per_number=bytes_per_number,
    )  # fmt: skip
    _arguments.counts(**sizes)
    return 2 * math.prod(map(int, sizes.values()))  # int64 could overflow


def _check_caches(caches, blocks, window):
    """Refuse what would give a model of that many blocks wrong numbers."""
    for cache in caches:
        _arguments.instance("each cache", cache, KeyValueCache, "a KeyValueCache")
    if not len(caches) == len(set(map(id, caches))) == blocks:
        raise ValueError(
            f"there must be {blocks} caches, one for each block; "
            f"got {len(caches)}, {len(set(map(id, caches)))} of them different"
        )
    for cache in caches:
        if cache.window != window and not (cache.window is None and cache.capacity <= window):
            raise ValueError(
                f"each cache must have the model's window, {window}, or no window and no larger "
                f"capacity; got window {cache.window} and capacity {cache.capacity}"
            )
        if not torch.equal(cache.lengths, caches[0].lengths):
            raise ValueError(
                "all caches must hold the same number of tokens; "
                f"got {caches[0].lengths.tolist()} and {cache.lengths.tolist()}"
            )


def _check_real(real, shape, device):
    if not isinstance(real, Tensor) or real.dtype != torch.bool:
        kind = _arguments.kind(real)
        raise TypeError(f"real must be a bool tensor, True = a token; got {kind}")
    if tuple(real.shape) != tuple(shape):
        raise ValueError(f"real must have shape (batch, L) = {shape}; got {tuple(real.shape)}")
    if real.device != device:
        raise ValueError(f"real must be on the device {device}; got {real.device}")
