"""Chapter 7: what stands around attention: positions, residuals, norm, feed-forward, dropout.

Positions reach attention in four ways: added to the input (sinusoids, or a learned
:class:`torch.nn.Embedding`, which needs no class of its own), as a rotation of queries and keys,
or as a bias that is linear in the distance.
"""

import math
from functools import partial

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor, nn

from attention_lib import _arguments, _validate
from attention_lib._numbers import is_finite
from attention_lib.multi_head import MultiHeadAttention

_Mask = Bool[Tensor, "..."] | None


class TransformerBlock(nn.Module):
    """Self-attention, then a feed-forward network, each added to what it reads.

    There are no positions inside. The block computes what
    :class:`torch.nn.TransformerEncoderLayer` computes from the same weights, in both orders, with
    dropout in the same places: on the attention weights, on the hidden layer of the feed-forward
    network, and on what each of the two adds.

    Args:
        embed_dim: Width of input and output.
        num_heads: Number of heads; divides ``embed_dim``.
        feedforward_dim: Width of the hidden layer, ``4 * embed_dim`` by default.
        dropout: Probability with which a number is dropped in training.
        norm_first: ``x + f(norm(x))``; else ``norm(x + f(x))``, as in the paper.
        attention: A module to take the place of
            :class:`~attention_lib.multi_head.MultiHeadAttention`, such as
            ``RotaryAttention(embed_dim, num_heads)``. It keeps its own dropout.

    Attributes:
        attention: The attention layer.
        feedforward: Two :class:`torch.nn.Linear` layers, ``[0]`` and ``[3]``, with ReLU between.
        norm1, norm2: :class:`torch.nn.LayerNorm` of the attention and of the feed-forward part.

    Raises:
        TypeError: A size that is not an integer, or an attention that is not a module.
        ValueError: A size below 1, heads that do not divide, a dropout that is no probability, or
            an attention of other sizes.

    Source:
        Vaswani et al., "Attention is all you need", 2017, sections 3.1, 3.3 and 5.4; norm first:
        Xiong et al., "On layer normalization in the transformer architecture", 2020.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        feedforward_dim: int | None = None,
        dropout: float = 0.0,
        norm_first: bool = True,
        attention: nn.Module | None = None,
    ):
        super().__init__()
        hidden = _hidden_width(embed_dim, num_heads, feedforward_dim, dropout, norm_first)
        if attention is None:
            attention = MultiHeadAttention(embed_dim, num_heads, dropout=dropout)
        _same_attention(attention, embed_dim=embed_dim, num_heads=num_heads)
        self.embed_dim, self.num_heads, self.norm_first = embed_dim, num_heads, norm_first
        self.attention = attention
        self.feedforward = _feedforward(embed_dim, hidden, dropout)
        self.norm1, self.norm2 = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "b q {self.embed_dim}"],
        mask: _Mask = None,
        is_causal: bool = False,
        return_weights: bool = False,
    ) -> (
        Float[Tensor, "b q {self.embed_dim}"]
        | tuple[Float[Tensor, "b q {self.embed_dim}"], Float[Tensor, "b {self.num_heads} q q"]]
    ):
        """Let the positions of ``x`` attend to each other, then transform each one by itself.

        Args:
            x: ``(batch, L, embed_dim)``.
            mask: Bool, True = may attend, as in
                :class:`~attention_lib.multi_head.MultiHeadAttention`: ``(L, L)``,
                ``(batch, L, L)`` or ``(batch or 1, heads or 1, L or 1, L)``.
            is_causal: Position i may attend to positions 0 to i only. A mask that is given as
                well holds too.
            return_weights: Return the weights as well; nothing else changes.

        Returns:
            The output ``(batch, L, embed_dim)``. With ``return_weights`` a pair: the output and
            the weights ``(batch, heads, L, L)`` before dropout.

        Raises:
            TypeError, ValueError: An input or a mask that does not fit.
        """
        _validate.block_input("x", x, self.embed_dim, self.norm1)
        attend = partial(
            self.attention, mask=mask, is_causal=is_causal, return_weights=return_weights
        )
        x, *weights = _residual(self, self.norm1, x, attend)
        (x,) = _residual(self, self.norm2, x, self.feedforward)
        return (x, *weights) if return_weights else x


class CrossAttentionBlock(nn.Module):
    """Self-attention, attention to a memory, then feed-forward, each added to what it reads.

    The block computes what :class:`torch.nn.TransformerDecoderLayer` computes from the same
    weights, in both orders. There are no positions inside. The memory is used as it is, without
    a norm.

    Args:
        embed_dim: Width of input, memory and output.
        num_heads: Number of heads of both attention layers; divides ``embed_dim``.
        feedforward_dim: Width of the hidden layer, ``4 * embed_dim`` by default.
        dropout: Probability with which a number is dropped in training.
        norm_first: ``x + f(norm(x))``; else ``norm(x + f(x))``, as in the paper.

    Attributes:
        attention: Self-attention.
        cross_attention: Attention whose keys and values come from the memory.
        feedforward: As in :class:`TransformerBlock`.
        norm1, norm2, norm3: The norms of the three parts, in this order.

    Raises:
        TypeError: A size that is not an integer.
        ValueError: A size below 1, heads that do not divide, a dropout that is no probability.

    Source:
        Vaswani et al., 2017, section 3.1, "Decoder".
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        feedforward_dim: int | None = None,
        dropout: float = 0.0,
        norm_first: bool = True,
    ):
        super().__init__()
        hidden = _hidden_width(embed_dim, num_heads, feedforward_dim, dropout, norm_first)
        self.embed_dim, self.num_heads, self.norm_first = embed_dim, num_heads, norm_first
        self.attention = MultiHeadAttention(embed_dim, num_heads, dropout=dropout)
        self.cross_attention = MultiHeadAttention(embed_dim, num_heads, dropout=dropout)
        self.feedforward = _feedforward(embed_dim, hidden, dropout)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(embed_dim) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "b q {self.embed_dim}"],
        memory: Float[Tensor, "b k {self.embed_dim}"],
        mask: _Mask = None,
        memory_mask: _Mask = None,
        is_causal: bool = False,
        return_weights: bool = False,
    ) -> (
        Float[Tensor, "b q {self.embed_dim}"]
        | tuple[
            Float[Tensor, "b q {self.embed_dim}"],
            Float[Tensor, "b {self.num_heads} q q"],
            Float[Tensor, "b {self.num_heads} q k"],
        ]
    ):
        """Let ``x`` attend to itself, then to the memory, then transform each position.

        Args:
            x: ``(batch, L, embed_dim)``.
            memory: What the cross-attention reads, ``(batch, S, embed_dim)``.
            mask: For the self-attention; bool, True = may attend, ``(L, L)``, ``(batch, L, L)``
                or ``(batch or 1, heads or 1, L or 1, L)``.
            memory_mask: For the cross-attention, ``(L, S)``, ``(batch, L, S)`` or
                ``(batch or 1, heads or 1, L or 1, S)``: a padding mask of the memory is
                ``(batch, 1, 1, S)``.
            is_causal: In the self-attention position i may attend to positions 0 to i only.
            return_weights: Return the weights of both as well; nothing else changes.

        Returns:
            The output ``(batch, L, embed_dim)``. With ``return_weights`` three tensors: the
            output, the weights of the self-attention ``(batch, heads, L, L)`` and those of the
            cross-attention ``(batch, heads, L, S)``, both before dropout.

        Raises:
            TypeError, ValueError: An input or a mask that does not fit.
        """
        for name, tensor in (("x", x), ("memory", memory)):
            _validate.block_input(name, tensor, self.embed_dim, self.norm1)
        attend = partial(
            self.attention, mask=mask, is_causal=is_causal, return_weights=return_weights
        )
        look_up = partial(
            self.cross_attention, key=memory, mask=memory_mask, return_weights=return_weights
        )
        x, *weights = _residual(self, self.norm1, x, attend)
        x, *memory_weights = _residual(self, self.norm2, x, look_up)
        (x,) = _residual(self, self.norm3, x, self.feedforward)
        return (x, *weights, *memory_weights) if return_weights else x


def sinusoidal_positional_encoding(length: int, embed_dim: int) -> Float[Tensor, "position width"]:
    """Sines and cosines of each position, to be added to the vectors at these positions.

    ``encoding[p, 2 * i] = sin(p / 10000 ** (2 * i / embed_dim))``, and the cosine of the same
    angle in column ``2 * i + 1``. With an odd width the last sine has no cosine beside it.

    Args:
        length: Number of positions; they count from 0.
        embed_dim: Width of a vector.

    Returns:
        ``(length, embed_dim)`` on the CPU, in the default dtype, rounded from float64. It
        broadcasts over the batch of ``(batch, length, embed_dim)``.

    Raises:
        TypeError: A size that is not an integer.
        ValueError: A negative length or a width below 1.

    Source:
        Vaswani et al., 2017, section 3.5.

    Example:
        >>> sinusoidal_positional_encoding(2, 4)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    _arguments.counts(length=length)
    _arguments.positive(embed_dim=embed_dim)
    angles = _angles(torch.arange(length), embed_dim, 10000.0)
    encoding = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
    return encoding[:, :embed_dim].to(torch.get_default_dtype())


def rotary(
    x: Float[Tensor, "*batch position d"],
    positions: Num[Tensor, "..."] | None = None,
    base: float | int = 10000.0,
) -> Float[Tensor, "*batch position d"]:
    """Each pair of features turned by an angle that grows with the position.

    Features ``2 * i`` and ``2 * i + 1`` are a point in the plane; at position p it is turned by
    ``p / base ** (2 * i / d)``. The product of a rotated query and a rotated key then depends on
    the two vectors and on the distance of their positions, and on nothing else. Some models pair
    feature ``i`` with ``i + d / 2`` instead: the same idea with the features in another order.

    Args:
        x: Queries or keys, ``(..., position, d)`` with an even d.
        positions: ``(position,)``, or a shape that broadcasts to ``x.shape[:-1]``; 0, 1, 2, … by
            default.
        base: Sets how slowly the last pair turns.

    Returns:
        A tensor of the shape and dtype of ``x``; half precision is turned in float32.

    Raises:
        TypeError: An x that is not a float tensor, or positions that are not a tensor.
        ValueError: Less than two axes, an odd width, a base that is not a positive number, or
            positions whose shape does not fit.

    Source:
        Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021,
        section 3.2.2, equation 15.

    Example:
        >>> rotary(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        tensor([[1.0000, 0.0000],
                [0.5403, 0.8415]])
    """
    _arguments.float_tensor("x", x)
    if x.ndim < 2 or x.shape[-1] % 2:
        raise ValueError(f"x must have shape (..., position, even width); got {tuple(x.shape)}")
    if not (is_finite(base) and base > 0):
        raise ValueError(f"base must be a positive number; got {base!r:.60}")
    if positions is None:
        positions = torch.arange(x.shape[-2], device=x.device)
    _arguments.tensor("positions", positions)
    _fits(positions, x.shape[:-1])
    angles = _angles(positions, x.shape[-1], float(base))  # PyTorch takes no large integer
    # float64 angles: in float32 a far position would be turned by the wrong angle
    cos, sin = (f(angles).to(torch.promote_types(x.dtype, torch.float32)) for f in _COS_SIN)
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return turned.flatten(-2).to(x.dtype)


def linear_bias_slopes(num_heads: int) -> Float[Tensor, "h"]:
    """How much one step of distance costs in each head: ``2 ** (-8 * i / num_heads)``, i from 1.

    Args:
        num_heads: Number of heads.

    Returns:
        ``(num_heads,)``, float64.

    Raises:
        TypeError: A number that is not an integer.
        ValueError: A number below 1.

    Source:
        Press et al., "Train short, test long: attention with linear biases", 2022, section 3.
        (Their code takes other slopes where the number of heads is not a power of 2.)

    Example:
        >>> linear_bias_slopes(4).tolist()
        [0.25, 0.0625, 0.015625, 0.00390625]
    """
    _validate.layer_sizes(num_heads=num_heads, embed_dim=num_heads)
    return 2.0 ** (-8 / num_heads * torch.arange(1, num_heads + 1, dtype=torch.float64))


class RotaryAttention(MultiHeadAttention):
    """Many heads in which :func:`rotary` turns the queries and keys of each.

    Arguments and results are those of :class:`~attention_lib.multi_head.MultiHeadAttention`.
    Positions count from 0 in queries and in keys. The values are not turned.

    Raises:
        ValueError: As the layer above, and heads of odd width.
    """

    def __init__(self, embed_dim: int, num_heads: int, *args, **kwargs):
        super().__init__(embed_dim, num_heads, *args, **kwargs)
        if embed_dim // num_heads % 2:
            raise ValueError(
                "each head must have an even width, rotary turns pairs of features; "
                f"got embed_dim / num_heads = {embed_dim // num_heads}"
            )

    def _heads(self, query, key, value):
        query, key, value = super()._heads(query, key, value)
        return rotary(query), rotary(key), value


class LinearBiasAttention(MultiHeadAttention):
    """Many heads whose scores fall with the distance to the key, for causal use.

    Arguments and results are those of :class:`~attention_lib.multi_head.MultiHeadAttention`.

    The published bias for query i and key j is ``-slope * (i - j)``, with one of
    :func:`linear_bias_slopes` for each head. Softmax does not see ``-slope * i``, which is the
    same for all keys, so ``slope * j`` is left, and no bias is stored for each pair: two more
    features of each key, the digits of its position to the base 256, and two more of each query,
    the slope times 256 and the slope. Without a causal mask the last keys would win.

    Half precision holds the digits of 65536 positions exactly. Scores are sums with ``slope * j``
    in float32, and rounded as such: by up to 3e-5 at position 1000 where the slope is 0.5.
    """

    def _heads(self, query, key, value):
        query, key, value = super()._heads(query, key, value)
        d = query.shape[-1]
        position = torch.arange(key.shape[-2], device=key.device)
        # two digits, since bfloat16 rounds the integers above 256
        digits = torch.stack((position // 256, position % 256), dim=-1).to(key)
        slope = linear_bias_slopes(self.num_heads).to(query)[:, None, None]
        slopes = torch.cat((256 * slope, slope), dim=-1).expand(*query.shape[:-1], 2)
        # scores are divided by the root of d + 2 now, and the old ones still want the root of d
        query = torch.cat((query * math.sqrt(1 + 2 / d), slopes * math.sqrt(d + 2)), dim=-1)
        return query, torch.cat((key, digits.expand(*key.shape[:-1], 2)), dim=-1), value


_LAYERS = (MultiHeadAttention, RotaryAttention, LinearBiasAttention)
_COS_SIN = (torch.cos, torch.sin)


def _angles(positions, width, base):
    """``position / base ** (2 * i / width)`` for each pair i, in float64."""
    pairs = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    return positions[..., None] * base ** (-pairs / width)


def _fits(positions, shape):
    same_rank = positions.ndim == len(shape)
    if tuple(positions.shape) != tuple(shape[-1:]) and not (
        same_rank and all(p in (1, s) for p, s in zip(positions.shape, shape, strict=True))
    ):
        raise ValueError(
            f"positions must have shape {tuple(shape[-1:])} or {len(shape)} axes that broadcast to "
            f"{tuple(shape)}; got {tuple(positions.shape)}"
        )


def _feedforward(embed_dim, hidden, dropout):
    return nn.Sequential(
        nn.Linear(embed_dim, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, embed_dim)
    )


def _residual(block, norm, x, sublayer):
    """``x`` plus what the sublayer makes of it, and the weights where the sublayer returns them."""
    change = sublayer(norm(x) if block.norm_first else x)
    change, *weights = change if isinstance(change, tuple) else (change,)
    x = x + block.dropout(change)
    return (x if block.norm_first else norm(x)), *weights


def _hidden_width(embed_dim, num_heads, feedforward_dim, dropout, norm_first):
    """The width of a block's hidden layer, for arguments of a block that are not refused."""
    given = {} if feedforward_dim is None else {"feedforward_dim": feedforward_dim}
    _validate.layer_sizes(embed_dim=embed_dim, num_heads=num_heads, dropout=dropout, **given)
    _arguments.flags(norm_first=norm_first)
    return 4 * embed_dim if feedforward_dim is None else feedforward_dim


def _same_attention(attention, **sizes):
    if not isinstance(attention, nn.Module):
        raise TypeError(f"attention must be a torch.nn.Module; got {type(attention).__name__}")
    for name, size in sizes.items():
        got = getattr(attention, name, size)
        if got != size:
            raise ValueError(f"attention must have {name} = {size}, as the block; got {got}")
