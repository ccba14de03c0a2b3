"""Chapter 4: several heads as one packed projection, as separate heads, and in NumPy."""

import math

import numpy as np
import torch
from jaxtyping import Bool, Float, Num, Real
from torch import Tensor, nn

from attention_lib import _arguments, _packed, _validate
from attention_lib.lookup import softmax
from attention_lib.single_head import SingleHeadAttention, _attend

Array = np.ndarray


def split_heads(
    x: Num[Tensor, "*batch position width"], num_heads: int
) -> Num[Tensor, "*batch h position d"]:
    """The heads side by side in the last axis, moved to an axis of their own.

    Head i takes the entries ``i * d`` to ``(i + 1) * d - 1`` of each position, where
    ``d = width / num_heads``. Nothing is copied. A reshape straight to
    ``(..., num_heads, position, d)`` has the same shape and mixes the positions.

    Args:
        x: ``(..., position, num_heads * d)``.
        num_heads: A divisor of the width.

    Returns:
        A view ``(..., num_heads, position, d)``.

    Raises:
        TypeError: Not a tensor, or a number of heads that is not an integer.
        ValueError: Less than two axes, or heads that do not divide the width.

    Example:
        >>> split_heads(torch.arange(8).view(2, 4), num_heads=2).tolist()
        [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    """
    _arguments.tensor("x", x)
    if x.ndim < 2:
        raise ValueError(f"x must have shape (..., position, width); got {tuple(x.shape)}")
    _validate.layer_sizes(embed_dim=x.shape[-1], num_heads=num_heads)
    return _split(x, num_heads)


def merge_heads(
    x: Num[Tensor, "*batch h position d"],
) -> Num[Tensor, "*batch position h*d"]:
    """The heads side by side in the last axis again: undoes :func:`split_heads`.

    Args:
        x: ``(..., heads, position, d)``.

    Returns:
        ``(..., position, heads * d)``.

    Raises:
        TypeError: Not a tensor.
        ValueError: Less than three axes.

    Example:
        >>> merge_heads(split_heads(torch.arange(8).view(2, 4), num_heads=2)).tolist()
        [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    _arguments.tensor("x", x)
    if x.ndim < 3:
        raise ValueError(f"x must have shape (..., heads, position, d); got {tuple(x.shape)}")
    return _merge(x)


class MultiHeadAttention(nn.Module):
    """Attention with several heads, each with its own softmax, batch first.

    Every head works on ``d = embed_dim / num_heads`` features that it projects from all features
    of its input. One projection for all heads is the projections of the heads, one below the
    other: head i owns rows ``i * d`` to ``(i + 1) * d - 1`` of the weight.

    In a small layer on the CPU the parameters of ``q_proj``, ``k_proj`` and ``v_proj`` share one
    piece of memory, without overlap. Self-attention without gradients takes one product there.

    Args:
        embed_dim: Width of query and output, whatever ``vdim`` is.
        num_heads: Number of heads; divides ``embed_dim``.
        kdim: Width of the key input, ``embed_dim`` by default.
        vdim: Width of the value input, ``embed_dim`` by default.
        num_kv_heads: Number of key/value heads, ``num_heads`` by default. Query heads 0 to
            ``num_heads / num_kv_heads - 1`` share the first one, and so on.
        bias: Whether the four projections add a bias.
        dropout: Probability with which a weight is dropped in training.

    Attributes:
        q_proj, k_proj, v_proj, out_proj: :class:`torch.nn.Linear` layers.

    Raises:
        TypeError: A size that is not an integer, a bias that is not bool.
        ValueError: A size below 1, heads that do not divide, a dropout that is no probability.

    Source:
        Vaswani et al., "Attention is all you need", 2017, section 3.2.2; shared key/value heads:
        Ainslie et al., "GQA", 2023.
    """

    _block = None  # of memory, for the parameters of three projections

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kdim: int | None = None,
        vdim: int | None = None,
        num_kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        _validate.layer_sizes(
            embed_dim=embed_dim, num_heads=num_heads, kdim=self.kdim, vdim=self.vdim,
            num_kv_heads=self.num_kv_heads, dropout=dropout,
        )  # fmt: skip
        _arguments.flags(bias=bias)
        kv_width = self.num_kv_heads * (embed_dim // num_heads)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(self.kdim, kv_width, bias=bias)
        self.v_proj = nn.Linear(self.vdim, kv_width, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.reset_parameters()
        self._block = _packed.pack(self._inputs())

    def _apply(self, fn, recurse=True):
        """What ``to``, ``double`` and the like do; parameters side by side are so afterwards."""
        held = self._block is not None and self._block.holds(self._inputs())
        super()._apply(fn, recurse)
        if held and not self._block.holds(self._inputs()):
            self._block = _packed.pack(self._inputs())
        return self

    def __setstate__(self, state):
        super().__setstate__(state)
        if not self._block:  # a copy, or fresh from a file
            self._block = _packed.pack(self._inputs())

    def reset_parameters(self):
        """New initial weights, drawn uniformly with variance 1 / width of the input; biases 0.

        Inputs whose features are independent, with mean 0 and variance 1, then give queries, keys
        and values with variance 1, as chapter 3 assumes. Only the width of the input counts, so
        the start of a head does not depend on how many heads are stacked below it.

        :class:`torch.nn.MultiheadAttention` starts with other numbers. It draws the packed matrix
        of query, key and value as one, as if it had ``3 * embed_dim`` outputs: its values are
        smaller by the root of 2. With ``kdim`` or ``vdim`` it draws three matrices of variance
        ``2 / (inputs + outputs)``. Its output projection is smaller by the root of 3. Its biases
        start at 0, as these do.
        """
        _reset(self)

    def forward(
        self,
        query: Float[Tensor, "b q embed_dim"],
        key: Float[Tensor, "b k kdim"] | None = None,
        value: Float[Tensor, "b k vdim"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
        return_weights: bool = False,
    ) -> (
        Float[Tensor, "b q embed_dim"]
        | tuple[Float[Tensor, "b q embed_dim"], Float[Tensor, "b {self.num_heads} q k"]]
    ):
        """Attend from each position of ``query`` to the positions of ``key``, head by head.

        Args:
            query: ``(batch, L, embed_dim)``.
            key: ``(batch, S, kdim)``; the query by default (self-attention).
            value: ``(batch, S, vdim)``; the key by default.
            mask: Bool, True = may attend. ``(L, S)`` for all samples and heads,
                ``(batch, L, S)`` for all heads, or ``(batch or 1, heads or 1, L or 1, S)``: a
                padding mask is ``(batch, 1, 1, S)``, one mask for each head ``(1, heads, L, S)``.
            is_causal: Position i may attend to positions 0 to i only; needs L = S. A mask that is
                given as well holds too.
            return_weights: Return the weights as well; nothing else changes.

        Returns:
            The output ``(batch, L, embed_dim)``. A query that may attend to nothing gets 0 from
            every head, hence the bias of ``out_proj``. With ``return_weights`` a pair: the output
            and the weights ``(batch, heads, L, S)``, each head's softmax before dropout.

        Raises:
            TypeError: Inputs that are not float tensors of the layer's dtype (autocast may bring
                another one), or a mask that is not bool.
            ValueError: Shapes or devices that do not fit together: nothing is broadcast.
        """
        key = query if key is None else key
        value = key if value is None else value
        _validate.layer_arguments(
            (query, key, value), (self.embed_dim, self.kdim, self.vdim), self.num_heads,
            self.q_proj, mask, is_causal,
        )  # fmt: skip
        _arguments.flags(return_weights=return_weights)
        query, key, value = self._heads(query, key, value)
        if self.num_kv_heads < self.num_heads:
            group = self.num_heads // self.num_kv_heads
            key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        mask = mask[:, None] if mask is not None and mask.ndim == 3 else mask
        dropout = self.dropout if self.training else 0.0
        result = _attend(query, key, value, mask, is_causal, None, dropout, return_weights)
        if return_weights:
            return self.out_proj(_merge(result[0])), result[1]
        return self.out_proj(_merge(result))

    def _heads(self, query, key, value):
        """Queries, keys and values of all heads; a subclass may bring in the positions here."""
        if query is key is value and self._block is not None and not torch.is_grad_enabled():
            packed = self._block.product(self._inputs(), query)
            if packed is not None:
                heads = torch.unflatten(packed, -1, (3, self.num_heads, -1))
                return heads.permute(2, 0, 3, 1, 4).unbind()
        return (
            _split(self.q_proj(query), self.num_heads),
            _split(self.k_proj(key), self.num_kv_heads),
            _split(self.v_proj(value), self.num_kv_heads),
        )

    def _inputs(self):
        """The modules that project the inputs, whatever they are by now."""
        return [self._modules.get(name) for name in ("q_proj", "k_proj", "v_proj")]

    def extra_repr(self) -> str:
        """The numbers of heads and the dropout, for ``print``."""
        return (
            f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, dropout={self.dropout}"
        )


class PerHeadAttention(nn.Module):
    """The slow and plain form of :class:`MultiHeadAttention`: one head after the other.

    Args:
        embed_dim: Width of inputs and output.
        num_heads: Number of heads; divides ``embed_dim``.
        bias: Whether the projections add a bias.

    Attributes:
        heads: One :class:`~attention_lib.single_head.SingleHeadAttention` each, which is
            ``embed_dim / num_heads`` wide.
        out_proj: A :class:`torch.nn.Linear` layer that mixes the heads.

    Raises:
        TypeError: A size that is not an integer, a bias that is not bool.
        ValueError: A size below 1, or heads that do not divide.

    Source:
        Vaswani et al., 2017, section 3.2.2, written as its formula is.
    """

    def __init__(self, embed_dim: int, num_heads: int, bias: bool = True):
        super().__init__()
        _validate.layer_sizes(embed_dim=embed_dim, num_heads=num_heads)
        _arguments.flags(bias=bias)
        self.embed_dim = embed_dim
        self.heads = nn.ModuleList(
            SingleHeadAttention(embed_dim, embed_dim // num_heads, bias=bias)
            for _ in range(num_heads)
        )
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        _reset(self)

    @classmethod
    def from_multi_head(cls, layer: MultiHeadAttention) -> "PerHeadAttention":
        """The same layer, one head at a time.

        Args:
            layer: Without ``kdim``, ``vdim``, ``num_kv_heads`` and dropout.

        Returns:
            A layer of the same dtype and on the same device, with a copy of the weights that can
            be trained. Head i gets rows ``i * d`` to ``(i + 1) * d - 1`` of each projection.

        Raises:
            TypeError: Not a :class:`MultiHeadAttention`, or a subclass, which may attend in
                another way.
            ValueError: A layer that separate heads of one width cannot express, or a projection
                that is more than a :class:`torch.nn.Linear`.
        """
        _validate.plain_layer("layer", layer, MultiHeadAttention)
        widths = {layer.embed_dim, layer.kdim, layer.vdim}
        if layer.num_kv_heads != layer.num_heads or layer.dropout or len(widths) > 1:
            raise ValueError(
                "only a layer without kdim, vdim, num_kv_heads and dropout can be taken apart; "
                f"got kdim = {layer.kdim}, vdim = {layer.vdim}, {layer.extra_repr()}"
            )
        apart = cls(layer.embed_dim, layer.num_heads, bias=layer.q_proj.bias is not None)
        apart.to(layer.q_proj.weight).out_proj.load_state_dict(layer.out_proj.state_dict())
        for name in ("q_proj", "k_proj", "v_proj"):
            packed = getattr(layer, name).state_dict()
            for i, head in enumerate(apart.heads):
                rows = {kind: p.chunk(layer.num_heads)[i] for kind, p in packed.items()}
                getattr(head, name).load_state_dict(rows)
        return apart.train(layer.training)

    def forward(
        self, query, key=None, value=None, mask=None, is_causal=False, return_weights=False
    ):
        """What :class:`MultiHeadAttention` gives for the same weights, with the same arguments."""
        key = query if key is None else key
        value = key if value is None else value
        _arguments.flags(return_weights=return_weights)
        _validate.layer_arguments(
            (query, key, value), (self.embed_dim,) * 3, len(self.heads), self.out_proj,
            mask, is_causal,
        )  # fmt: skip
        if mask is not None and mask.ndim == 4:
            masks = mask.expand(-1, len(self.heads), -1, -1).unbind(1)
        else:
            masks = [mask] * len(self.heads)
        results = [
            head(query, key, value, mask_of_head, is_causal, return_weights)
            for head, mask_of_head in zip(self.heads, masks, strict=True)
        ]
        if return_weights:
            outputs, weights = zip(*results, strict=True)
            return self.out_proj(torch.cat(outputs, dim=-1)), torch.stack(weights, dim=1)
        return self.out_proj(torch.cat(results, dim=-1))


def numpy_multi_head_attention(
    inputs: Real[Array, "seq batch embed"],
    num_heads: int,
    in_proj_weight: Real[Array, "3*embed embed"],
    out_proj_weight: Real[Array, "embed embed"],
    in_proj_bias: Real[Array, "3*embed"] | None = None,
    out_proj_bias: Real[Array, "embed"] | None = None,
) -> Float[Array, "seq batch embed"]:
    """Self-attention with several heads in PyTorch's packed weights and sequence-first layout.

    Gives what ``torch.nn.MultiheadAttention(embed_dim, num_heads)`` gives for the parameters of
    the same names.

    Args:
        inputs: ``(seq, batch, embed)``.
        num_heads: A divisor of ``embed``.
        in_proj_weight: Rows for queries, then keys, then values, ``(3 * embed, embed)``; within
            each the rows of head 0, then head 1, and so on.
        out_proj_weight: ``(embed, embed)``.
        in_proj_bias: ``(3 * embed,)``, or ``None`` for no bias.
        out_proj_bias: ``(embed,)``, or ``None`` for no bias.

    Returns:
        The output, ``(seq, batch, embed)``.

    Raises:
        TypeError: Not NumPy arrays of real numbers, or a number of heads that is not an integer.
        ValueError: Shapes do not fit together, or heads that do not divide.
    """
    arrays = (in_proj_weight, out_proj_weight, in_proj_bias, out_proj_bias)
    inputs = _validate.packed_arguments(inputs, *arrays)
    seq, batch, embed_dim = inputs.shape
    _validate.layer_sizes(embed_dim=embed_dim, num_heads=num_heads)
    projected = inputs @ in_proj_weight.T + (0 if in_proj_bias is None else in_proj_bias)
    # (seq, batch, 3 * embed) to three times (batch, heads, seq, d)
    parts = projected.reshape(seq, batch, 3, num_heads, embed_dim // num_heads)
    query, key, value = parts.transpose(2, 1, 3, 0, 4)
    weights = softmax(query @ key.swapaxes(-2, -1) / math.sqrt(embed_dim // num_heads))
    output = (weights @ value).transpose(2, 0, 1, 3).reshape(seq, batch, embed_dim)
    return output @ out_proj_weight.T + (0 if out_proj_bias is None else out_proj_bias)


def _split(x, num_heads):
    # the function, not the method, which takes a microsecond more
    return torch.unflatten(x, -1, (num_heads, -1)).transpose(-3, -2)


def _merge(x):
    return x.transpose(-3, -2).flatten(-2)


def _reset(layer):
    """Uniform weights with variance 1 / fan-in, which is bound ** 2 / 3; biases 0."""
    for linear in layer.modules():
        if isinstance(linear, nn.Linear):
            bound = math.sqrt(3 / linear.in_features)
            nn.init.uniform_(linear.weight, -bound, bound)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
