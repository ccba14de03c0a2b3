"""Chapter 6: masks in one convention, True = may attend, and converters to everyone else's.

``L`` counts queries, ``S`` keys. A mask is ``(L, S)`` for all samples, or
``(batch or 1, heads or 1, L or 1, S)``, ready for a layer; an axis of size 1 holds for all. A
query that may attend to nothing is allowed: this library gives it weights 0 and output 0.

No function here changes its argument. Every mask is made for the lengths that it is asked for;
there is no buffer with a largest length.
"""

import math
from functools import reduce

import torch
from jaxtyping import Bool, Float, Integer, Num
from torch import Tensor

from attention_lib import _arguments

_Count = int | None
_Integers = Integer[Tensor, "..."] | list
_kind = _arguments.kind
_ALIGNMENTS = ("top_left", "bottom_right")


def causal_mask(length: int, keys: _Count = None, align=None, device=None) -> Bool[Tensor, "q k"]:
    """The mask of queries that see themselves and what stands before them, ``(L, S)``.

    Args:
        length: Number of queries ``L``.
        keys: Number of keys ``S``, ``length`` by default.
        align: Which corner the diagonal meets where ``L`` and ``S`` differ; it must be said then.
            ``"top_left"``: query i sees keys 0 to i. ``"bottom_right"``: the last query sees all
            keys, as in decoding with earlier keys in a cache. With more queries than keys the
            first ``L - S`` queries of ``"bottom_right"`` see nothing.
        device: Where the mask lives, the CPU by default.

    Returns:
        Bool, True = may attend.

    Raises:
        TypeError: A length that is not an integer.
        ValueError: A negative length, an unknown alignment, or none where it matters; or an unknown
            device.

    Example:
        >>> causal_mask(2, 3, align="top_left").int()
        tensor([[1, 0, 0],
                [1, 1, 0]], dtype=torch.int32)
        >>> causal_mask(2, 3, align="bottom_right").int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    return window_mask(length, None, 0, keys, align, device)


def window_mask(
    length: int, left: _Count, right: _Count, keys: _Count = None, align=None, device=None
) -> Bool[Tensor, "q k"]:
    """The mask of queries that see only the keys near their own position, ``(L, S)``.

    Args:
        length: Number of queries ``L``.
        left: How many keys before its own position a query sees; ``None`` for all of them.
        right: How many keys after its own position a query sees; ``None`` for all of them. The
            sliding window of a causal model that sees ``n`` keys, its own among them, is
            ``left=n - 1, right=0``.
        keys: Number of keys ``S``, ``length`` by default.
        align: ``"top_left"`` (query i stands at key i) or ``"bottom_right"`` (the last query
            stands at the last key); it must be said where ``L`` and ``S`` differ.
        device: Where the mask lives, the CPU by default.

    Returns:
        Bool, True = may attend.

    Raises:
        TypeError: A length or a side of the window that is not an integer.
        ValueError: A negative one, an unknown alignment, or none where it matters; or an unknown
            device.

    Example:
        >>> window_mask(4, left=1, right=0).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 1, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)
    """
    keys = length if keys is None else keys
    left_, right_ = (0 if side is None else side for side in (left, right))
    _arguments.counts(length=length, keys=keys, left=left_, right=right_)
    offset = _offset(length, keys, align)
    mask = torch.ones(length, keys, dtype=torch.bool, device=_arguments.device(device))
    if left is not None:
        mask = mask.triu(offset - left)
    return mask if right is None else mask.tril(offset + right)


def padding_mask(
    lengths_or_ids: _Integers, keys: _Count = None, pad_id: _Count = None
) -> Bool[Tensor, "batch 1 1 k"]:
    """The mask that hides the keys which only fill a batch of sequences up to one length.

    It hides keys, not queries: what the padded positions ask does no harm, since nobody reads
    their output, and hiding their rows too would only make queries without any key.

    Args:
        lengths_or_ids: The length of every sequence, ``(batch,)``, with padding behind it; or
            with ``pad_id`` the token ids, ``(batch, S)``, with padding wherever it stands.
        keys: Number of keys ``S``, the largest length by default.
        pad_id: The id that marks padding.

    Returns:
        Bool ``(batch, 1, 1, S)``, True = may attend. A sequence of length 0 sees nothing.

    Raises:
        TypeError: Numbers that are not integers.
        ValueError: Another shape, or a length that is negative or larger than ``keys``.

    Example:
        >>> padding_mask([2, 3])[:, 0, 0].int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
        >>> padding_mask([[7, 5, 0], [0, 4, 4]], pad_id=0)[:, 0, 0].int()
        tensor([[1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
    """
    if pad_id is not None:
        _arguments.integers(pad_id=pad_id)
        ids = _integers("ids with pad_id", lengths_or_ids, (2,), "(batch, S)")
        if keys is not None:
            raise ValueError(f"ids say how many keys there are; keys = {keys} is not needed")
        return (ids != pad_id)[:, None, None, :]
    lengths = _lengths("lengths", lengths_or_ids, "; for token ids say which pad_id")
    longest = int(lengths.max()) if len(lengths) else 0
    keys = longest if keys is None else keys
    _arguments.counts(keys=keys)
    if longest > keys:
        raise ValueError(f"no length may be larger than keys = {keys}; got {longest}")
    positions = torch.arange(keys, device=lengths.device)
    return (positions < lengths[:, None])[:, None, None, :]


def block_diagonal_mask(
    lengths: _Integers, key_lengths: _Integers | None = None
) -> Bool[Tensor, "q k"]:
    """The mask of several sequences packed one behind the other: each sees itself only.

    Args:
        lengths: The length of every sequence, ``(n,)``; ``L`` is their sum. A filled-up rest
            counts as one more sequence.
        key_lengths: The same for the keys, where they are another packed sequence
            (cross-attention); ``lengths`` by default.

    Returns:
        Bool ``(L, S)``, True = may attend; combine it with ``causal_mask`` for packed texts.

    Raises:
        TypeError: Lengths that are not integers.
        ValueError: Another shape, negative lengths, or two numbers of sequences.

    Example:
        >>> block_diagonal_mask([2, 1]).int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """
    lengths = _lengths("lengths", lengths)
    key_lengths = lengths if key_lengths is None else _lengths("key_lengths", key_lengths)
    if len(lengths) != len(key_lengths):
        raise ValueError(
            "queries and keys must be packed from the same number of sequences; "
            f"got {len(lengths)} and {len(key_lengths)}"
        )
    number = torch.arange(len(lengths), device=lengths.device)
    return segment_mask(number.repeat_interleave(lengths), number.repeat_interleave(key_lengths))


def segment_mask(
    segments: _Integers, key_segments: _Integers | None = None
) -> Bool[Tensor, "*batch q k"]:
    """The mask of queries that see the keys with the same segment id.

    Args:
        segments: The id of the segment that every position belongs to, ``(L,)`` or
            ``(batch, L)``. The positions of a segment need not stand together.
        key_segments: The same for the keys, ``(S,)`` or ``(batch, S)``; ``segments`` by default.

    Returns:
        Bool ``(L, S)``, or ``(batch, 1, L, S)`` for a batch, True = may attend.

    Raises:
        TypeError: Ids that are not integers.
        ValueError: Another shape, or two batch sizes.

    Example:
        >>> segment_mask([0, 1, 0]).int()
        tensor([[1, 0, 1],
                [0, 1, 0],
                [1, 0, 1]], dtype=torch.int32)
    """
    key_segments = segments if key_segments is None else key_segments
    segments = _integers("segments", segments, (1, 2), "(L,) or (batch, L)")
    key_segments = _integers("key_segments", key_segments, (1, 2), "(S,) or (batch, S)")
    if segments.shape[:-1] != key_segments.shape[:-1]:
        raise ValueError(
            "segments and key_segments must have the same batch size; "
            f"got {tuple(segments.shape)} and {tuple(key_segments.shape)}"
        )
    mask = segments[..., :, None] == key_segments[..., None, :]
    return mask if mask.ndim == 2 else mask[:, None]


def combine_masks(*masks: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """The mask that allows what all the masks allow: their *and*.

    Masks of one axis, ``(S,)``, and of two, ``(L, S)``, go with any other. All others need the
    same number of axes, and an axis of size 1 holds for all: ``(L, S)`` with
    ``(batch, 1, 1, S)`` gives ``(batch, 1, L, S)``.

    Args:
        masks: One or more masks, True = may attend.

    Returns:
        Bool, of the shape that all of them broadcast to.

    Raises:
        TypeError: A mask that is not bool.
        ValueError: No mask, shapes that do not fit, or two devices.

    Example:
        >>> combine_masks(causal_mask(2), padding_mask([1, 2])).int()
        tensor([[[[1, 0],
                  [1, 0]]],
        <BLANKLINE>
        <BLANKLINE>
                [[[1, 0],
                  [1, 1]]]], dtype=torch.int32)
    """
    if not masks:
        raise ValueError("combine_masks needs at least one mask")
    for mask in masks:
        _bool(mask)
    got = "got " + ", ".join(str(tuple(mask.shape)) for mask in masks)
    if len({mask.ndim for mask in masks if mask.ndim > 2}) > 1:
        raise ValueError(
            "masks of more than two axes must all have the same number of axes; "
            f"{got}. A (batch, L, S) mask for all heads is mask[:, None]."
        )
    if len({mask.device for mask in masks}) > 1:
        devices = ", ".join(str(mask.device) for mask in masks)
        raise ValueError(f"all masks must be on one device; got {devices}")
    for axis in range(1, max(mask.ndim for mask in masks) + 1):
        if len({mask.shape[-axis] for mask in masks if mask.ndim >= axis} - {1}) > 1:
            raise ValueError(f"masks must have the same size, or 1, on axis {-axis}; {got}")
    return reduce(torch.logical_and, masks, masks[0])


def to_additive(
    mask: Bool[Tensor, "*shape"], dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*shape"]:
    """The mask as numbers to add to the scores: 0 = may attend, -inf = blocked.

    Every float dtype has -inf, while -1e9 is out of the range of float16. A weight behind -inf is
    exactly 0, however low the other scores are. Two such masks may be added: -inf + -inf is -inf,
    while twice the lowest finite number overflows. Where a row allows nothing,
    ``F.scaled_dot_product_attention`` returns 0 and a plain softmax NaN: keep the mask bool as
    long as you can.

    Args:
        mask: Bool, True = may attend; any shape.
        dtype: A float dtype, that of the scores.

    Returns:
        The mask in that dtype, of the same shape.

    Raises:
        TypeError: A mask that is not bool, or a dtype that is not a float.

    Example:
        >>> to_additive(causal_mask(2), torch.float16)
        tensor([[0., -inf],
                [0., 0.]], dtype=torch.float16)
    """
    _bool(mask)
    _arguments.float_dtype("dtype", dtype)
    # filled, not multiplied: 0 * -inf is NaN
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -math.inf)


def from_additive(mask: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """The mask whose additive form this is: 0 = may attend, -1000 or less = blocked.

    Args:
        mask: Numbers that are added to scores: 0, or -inf, the lowest finite number, -1e9, -1e4.

    Returns:
        Bool, True = may attend, of the same shape.

    Raises:
        TypeError: Not a float tensor.
        ValueError: A number in between: a bias that shifts weights, which no mask can do.

    Example:
        >>> from_additive(torch.tensor([0.0, -1e9, -torch.inf]))
        tensor([ True, False, False])
    """
    if not (isinstance(mask, Tensor) and mask.dtype.is_floating_point):
        raise TypeError(
            f"an additive mask must be a float tensor; got {_kind(mask)}. {_CONVERTERS}"
        )
    allowed = mask == 0
    _only(mask, allowed | (mask <= -1000), "0 or at most -1000", "from_ones_and_zeros takes 1/0")
    return allowed


def to_ones_and_zeros(
    mask: Bool[Tensor, "*shape"], dtype: torch.dtype = torch.int64
) -> Bool[Tensor, "*shape"] | Num[Tensor, "*shape"]:
    """The mask as numbers, 1 = may attend, 0 = blocked, of the same shape.

    Hugging Face's ``attention_mask`` is ``(batch, S)``: take ``padding[:, 0, 0]``. Keras' is
    ``(batch, L, S)``: take ``mask[:, 0]``.

    Args:
        mask: Bool, True = may attend; any shape.
        dtype: The dtype of the result.

    Returns:
        Ones and zeros.

    Raises:
        TypeError: A mask that is not bool, or a dtype that is none.

    Example:
        >>> to_ones_and_zeros(padding_mask([1, 2])[:, 0, 0])
        tensor([[1, 0],
                [1, 1]])
    """
    _bool(mask)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype; got {dtype!r}")
    return mask.to(dtype, copy=True)


def from_ones_and_zeros(mask: Num[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """The mask of ones (may attend) and zeros (blocked), as bool of the same shape.

    A ``(batch, S)`` mask of Hugging Face becomes a padding mask by two more axes, as in
    ``from_ones_and_zeros(mask)[:, None, None, :]``. Keras' ``(batch, L, S)`` mask fits as it is.

    Args:
        mask: Ones and zeros of any integer or float dtype.

    Returns:
        Bool, True = may attend.

    Raises:
        TypeError: Not a tensor of numbers. A bool mask needs no conversion, or another one.
        ValueError: Another number than 0 and 1.

    Example:
        >>> from_ones_and_zeros(torch.tensor([[1, 0], [1, 1]]))
        tensor([[ True, False],
                [ True,  True]])
    """
    if not isinstance(mask, Tensor) or mask.dtype == torch.bool:
        raise TypeError(
            f"a mask of ones and zeros must be a tensor of numbers; got {_kind(mask)}. "
            "A bool mask with True = may attend is used as it is."
        )
    _only(mask, (mask == 0) | (mask == 1), "0 or 1", "from_additive takes 0/-inf")
    return mask == 1


def to_torch_attn_mask(
    mask: Bool[Tensor, "..."], num_heads: int | None = None
) -> Bool[Tensor, "..."]:
    """The mask as ``attn_mask`` of ``torch.nn.MultiheadAttention``: True = blocked.

    Args:
        mask: ``(L, S)``; or with ``num_heads`` ``(batch, L, S)`` or
            ``(batch, num_heads or 1, L, S)``. Batch, ``L`` and ``S`` are the true sizes: PyTorch
            broadcasts none of them. A mask that hides padding alone goes through
            :func:`to_key_padding_mask`.
        num_heads: Number of heads of the layer.

    Returns:
        ``(L, S)``, or ``(batch * num_heads, L, S)``: the heads of one sample stand together.

    Raises:
        TypeError: A mask that is not bool.
        ValueError: Another shape.

    Example:
        >>> to_torch_attn_mask(causal_mask(2))
        tensor([[False,  True],
                [False, False]])
        >>> to_torch_attn_mask(torch.tensor([[[True]], [[False]]]), num_heads=2).flatten()
        tensor([False, False,  True,  True])
    """
    _bool(mask)
    _arguments.positive(num_heads=1 if num_heads is None else num_heads)
    if mask.ndim == 2:
        return ~mask
    each = mask[:, None] if mask.ndim == 3 else mask
    if num_heads is None or each.ndim != 4 or each.shape[1] not in (1, num_heads):
        raise ValueError(
            "mask must have shape (L, S), or with num_heads (batch, L, S) or "
            f"(batch, num_heads or 1, L, S); got {tuple(mask.shape)} and num_heads = {num_heads}"
        )
    return ~each.expand(-1, num_heads, -1, -1).flatten(0, 1)


def from_torch_attn_mask(
    attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."], num_heads: int | None = None
) -> Bool[Tensor, "..."]:
    """The mask for this library from an ``attn_mask`` of ``torch.nn.MultiheadAttention``.

    Args:
        attn_mask: ``(L, S)``, or ``(batch * num_heads, L, S)``. Bool with True = blocked, or a
            float mask, which PyTorch adds to the scores.
        num_heads: Number of heads of the layer, for a mask of three axes.

    Returns:
        Bool ``(L, S)``, or ``(batch, num_heads, L, S)``, True = may attend.

    Raises:
        TypeError: Neither bool nor float.
        ValueError: Another shape, or a float mask that is a bias.

    Example:
        >>> from_torch_attn_mask(torch.tensor([[False, True], [False, False]]))
        tensor([[ True, False],
                [ True,  True]])
    """
    allowed = _not_blocked("attn_mask", attn_mask)
    _arguments.positive(num_heads=1 if num_heads is None else num_heads)
    if allowed.ndim == 2:
        return allowed
    if allowed.ndim != 3 or not num_heads or allowed.shape[0] % num_heads:
        raise ValueError(
            "attn_mask must have shape (L, S), or with num_heads (batch * num_heads, L, S); "
            f"got {tuple(allowed.shape)} and num_heads = {num_heads}"
        )
    return allowed.unflatten(0, (-1, num_heads))


def to_key_padding_mask(mask: Bool[Tensor, "..."]) -> Bool[Tensor, "batch k"]:
    """The padding mask as ``key_padding_mask`` of ``torch.nn.MultiheadAttention``: True = padding.

    Args:
        mask: ``(batch, 1, 1, S)``, as :func:`padding_mask` returns it.

    Returns:
        Bool ``(batch, S)``, True = blocked.

    Raises:
        TypeError: A mask that is not bool.
        ValueError: Another shape.

    Example:
        >>> to_key_padding_mask(padding_mask([1, 2]))
        tensor([[False,  True],
                [False, False]])
    """
    _bool(mask)
    if mask.ndim != 4 or mask.shape[1:3] != (1, 1):
        raise ValueError(
            "a padding mask must have shape (batch, 1, 1, S), one row of keys for each sample; "
            f"got {tuple(mask.shape)}"
        )
    return ~mask[:, 0, 0]


def from_key_padding_mask(
    key_padding_mask: Bool[Tensor, "batch k"] | Float[Tensor, "batch k"],
) -> Bool[Tensor, "batch 1 1 k"]:
    """The padding mask from a ``key_padding_mask`` of ``torch.nn.MultiheadAttention``.

    Args:
        key_padding_mask: ``(batch, S)``. Bool with True = padding, or a float mask, which PyTorch
            adds to the scores.

    Returns:
        Bool ``(batch, 1, 1, S)``, True = may attend.

    Raises:
        TypeError: Neither bool nor float.
        ValueError: Another shape, or a float mask that is a bias.

    Example:
        >>> from_key_padding_mask(torch.tensor([[False, True]]))
        tensor([[[[ True, False]]]])
    """
    allowed = _not_blocked("key_padding_mask", key_padding_mask)
    if allowed.ndim != 2:
        raise ValueError(f"key_padding_mask must have shape (batch, S); got {tuple(allowed.shape)}")
    return allowed[:, None, None, :]


_CONVERTERS = (
    "1 = attend, 0 = blocked: from_ones_and_zeros. 0 = attend, -inf = blocked: from_additive. "
    "nn.MultiheadAttention's True = blocked: from_torch_attn_mask or from_key_padding_mask."
)


def _bool(mask):
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be a bool tensor, True = may attend; got {_kind(mask)}. {_CONVERTERS}"
        )


def _offset(length, keys, align):
    """The key at which query 0 stands."""
    if align not in (None, *_ALIGNMENTS):
        raise ValueError(f"align must be one of {_ALIGNMENTS}; got {align!r}")
    if align is None and length != keys:
        raise ValueError(
            f"align must be said where L = {length} and S = {keys} differ: 'top_left' (query i "
            "stands at key i) or 'bottom_right' (the last query stands at the last key, decoding)"
        )
    return keys - length if align == "bottom_right" else 0


def _integers(name, numbers, axes, shape):
    """A tensor of integers; ``axes`` are the numbers of axes that it may have."""
    if not hasattr(numbers, "__len__") or isinstance(numbers, str | dict):
        raise TypeError(f"{name} must be a tensor or a list of integers; got {_kind(numbers)}")
    try:
        # as_tensor alone would move a tensor to the default device
        numbers = numbers if isinstance(numbers, Tensor) else torch.as_tensor(numbers)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be integers in rows of one length; got {error}") from error
    numbers = numbers if numbers.numel() else numbers.long()  # torch takes [] for floats
    if numbers.dtype == torch.bool or numbers.is_floating_point() or numbers.is_complex():
        raise TypeError(f"{name} must be integers; got {numbers.dtype}")
    if numbers.ndim not in axes:
        raise ValueError(f"{name} must have shape {shape}; got {tuple(numbers.shape)}")
    return numbers.long()  # PyTorch computes little with some of the others


def _lengths(name, lengths, more=""):
    lengths = _integers(name, lengths, (1,), "(n,), one number for each sequence" + more)
    if (lengths < 0).any():
        raise ValueError(f"{name} must not be negative; got {int(lengths.min())}")
    return lengths


def _not_blocked(name, mask):
    """True = may attend, from PyTorch's bool (True = blocked) or additive form."""
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        return ~mask
    if isinstance(mask, Tensor) and mask.dtype.is_floating_point:
        return from_additive(mask)
    raise TypeError(f"{name} must be a bool or a float tensor; got {_kind(mask)}")


def _only(mask, expected, rule, other):
    if not expected.all():
        got = mask[~expected][0].item()
        raise ValueError(f"every entry of a mask must be {rule}; got {got:g}. {other}.")
