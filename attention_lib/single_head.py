"""Chapter 2: one attention head, as a function of tensors, as a layer, and in NumPy."""

import math
from contextlib import nullcontext, suppress

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Real
from torch import Tensor, nn

from attention_lib import _arguments, _validate
from attention_lib.lookup import softmax

Array = np.ndarray
# Devices on which PyTorch's kernel answers a row that may attend to nothing with 0, and sends no
# gradient through it; a test holds the installed version to that.
_SAFE_KERNELS = ("cpu",)


def attention_weights(
    query: Float[Tensor, "*batch q d"],
    key: Float[Tensor, "*batch k d"],
    mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "*batch q k"]:
    """The weight of every key for every query: ``softmax(query @ key.T * scale)``.

    Args:
        query: Queries, ``(..., L, d)``.
        key: Keys, ``(..., S, d)``, same leading axes.
        mask: Bool, True = may attend; ``(S,)``, ``(L, S)``, or as many axes as the query,
            broadcasting to ``(..., L, S)``.
        is_causal: Position i may attend to positions 0 to i only; needs L = S. A mask that is
            given as well holds too.
        scale: Factor for the scores, ``1 / sqrt(d)`` by default.

    Returns:
        Weights ``(..., L, S)`` in the query's dtype. Each row sums to 1; the row of a query that
        may attend to nothing is 0.

    Raises:
        TypeError: Inputs that are not float tensors of one dtype, or a mask that is not bool.
        ValueError: Shapes, devices or numbers that do not fit together.

    Source:
        Vaswani et al., "Attention is all you need", 2017, section 3.2.1, equation 1.
    """
    _validate.attention_arguments(query, key, ..., mask, is_causal, scale)
    scale = None if scale is None else float(scale)
    with _no_autocast(query):
        return _weights(query, key, _allowed(query, mask, is_causal), scale).to(query.dtype)


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch q d"],
    key: Float[Tensor, "*batch k d"],
    value: Float[Tensor, "*batch k v"],
    mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    return_weights: bool = False,
) -> Float[Tensor, "*batch q v"] | tuple[Float[Tensor, "*batch q v"], Float[Tensor, "*batch q k"]]:
    """For every query the average of the values, weighted by :func:`attention_weights`.

    float64 takes the formula step by step, so that first and second derivatives can be checked.
    Half precision computes scores and softmax in float32. Other dtypes take PyTorch's fused
    kernel where neither weights nor dropout are asked for; it gives the same numbers up to
    rounding.

    Args:
        query: Queries, ``(..., L, d)``.
        key: Keys, ``(..., S, d)``, same leading axes: nothing is broadcast.
        value: Values, ``(..., S, v)``; v may differ from d.
        mask: Bool, True = may attend; ``(S,)``, ``(L, S)``, or as many axes as the query,
            broadcasting to ``(..., L, S)``. A finite value in a masked slot has no influence as
            long as its score is finite; NaN and infinity in a masked value spread, and those in a
            masked key or its scores may.
        is_causal: Position i may attend to positions 0 to i only; needs L = S. A mask that is
            given as well holds too.
        scale: Factor for the scores, ``1 / sqrt(d)`` by default.
        dropout_p: Probability with which each weight is dropped, in every call: a layer passes 0
            when it is not training.
        return_weights: Return the weights as well; nothing else changes up to rounding. Under
            autocast the kernel rounds float32 inputs to half precision, and the formula does not.

    Returns:
        The output ``(..., L, v)`` in the query's dtype; 0 for a query that may attend to nothing.
        With ``return_weights`` a pair: the output and the weights ``(..., L, S)`` before dropout.

    Raises:
        TypeError: Inputs that are not float tensors of one dtype, or a mask that is not bool.
        ValueError: Shapes, devices or numbers that do not fit together.

    Source:
        Vaswani et al., "Attention is all you need", 2017, section 3.2.1, equation 1.
    """
    _validate.attention_arguments(query, key, value, mask, is_causal, scale, dropout_p)
    _arguments.flags(return_weights=return_weights)
    scale = None if scale is None else float(scale)  # PyTorch takes no fraction or large integer
    return _attend(query, key, value, mask, is_causal, scale, dropout_p, return_weights)


class SingleHeadAttention(nn.Module):
    """One head with its three projections; the output stays ``d_v`` wide.

    Args:
        embed_dim: Width of the inputs.
        d_k: Width of queries and keys.
        d_v: Width of values and output, ``d_k`` by default.
        bias: Whether the projections add a bias.

    Attributes:
        q_proj, k_proj, v_proj: :class:`torch.nn.Linear` layers from ``embed_dim`` to ``d_k``,
            ``d_k`` and ``d_v``, initialised as ``nn.Linear`` does.

    Raises:
        TypeError: A size that is not an integer, a bias that is not bool.
        ValueError: A size below 1.

    Source:
        Vaswani et al., 2017, section 3.2.2: ``head_i`` before the heads are concatenated.
    """

    def __init__(self, embed_dim: int, d_k: int, d_v: int | None = None, bias: bool = True):
        super().__init__()
        d_v = d_k if d_v is None else d_v
        _arguments.positive(embed_dim=embed_dim, d_k=d_k, d_v=d_v)
        _arguments.flags(bias=bias)
        self.embed_dim = embed_dim
        self.q_proj = nn.Linear(embed_dim, d_k, bias=bias)
        self.k_proj = nn.Linear(embed_dim, d_k, bias=bias)
        self.v_proj = nn.Linear(embed_dim, d_v, bias=bias)

    def forward(
        self, query, key=None, value=None, mask=None, is_causal=False, return_weights=False
    ):
        """Attend from each position of ``query`` to the positions of ``key``.

        Args:
            query: ``(batch, L, embed_dim)``.
            key: ``(batch, S, embed_dim)``; the query by default (self-attention).
            value: ``(batch, S, embed_dim)``; the key by default.
            mask: Bool, True = may attend; ``(S,)``, ``(L, S)`` or ``(batch or 1, L or 1, S or 1)``.
            is_causal: Position i may attend to positions 0 to i only; needs L = S.
            return_weights: Return the weights ``(batch, L, S)`` as well.

        Returns:
            The output ``(batch, L, d_v)``, or a pair of output and weights.

        Raises:
            TypeError, ValueError: As :func:`scaled_dot_product_attention`, and inputs that are
                not ``embed_dim`` wide.
        """
        key = query if key is None else key
        value = key if value is None else value
        embed_dim, weight = self.embed_dim, _validate._weight(self.q_proj)
        for name, x in (("query", query), ("key", key), ("value", value)):
            _arguments.float_tensor(name, x)
            _validate._same_kind(name, x, "the layer's weights", weight, autocast=True)
            if x.shape[-1:] != (embed_dim,):
                raise ValueError(
                    f"{name} must be embed_dim = {embed_dim} wide (last axis); got {tuple(x.shape)}"
                )
        return scaled_dot_product_attention(
            self.q_proj(query), self.k_proj(key), self.v_proj(value),
            mask=mask, is_causal=is_causal, return_weights=return_weights,
        )  # fmt: skip


def numpy_attention(
    inputs: Real[Array, "seq batch embed"],
    in_proj_weight: Real[Array, "3*embed embed"],
    out_proj_weight: Real[Array, "embed embed"],
    in_proj_bias: Real[Array, "3*embed"] | None = None,
    out_proj_bias: Real[Array, "embed"] | None = None,
) -> Float[Array, "seq batch embed"]:
    """Self-attention with one head in PyTorch's packed weights and sequence-first layout.

    Gives what ``torch.nn.MultiheadAttention(embed_dim, num_heads=1)`` gives for the parameters of
    the same names.

    Args:
        inputs: ``(seq, batch, embed)``.
        in_proj_weight: Rows for queries, then keys, then values, ``(3 * embed, embed)``.
        out_proj_weight: ``(embed, embed)``.
        in_proj_bias: ``(3 * embed,)``, or ``None`` for no bias.
        out_proj_bias: ``(embed,)``, or ``None`` for no bias.

    Returns:
        The output, ``(seq, batch, embed)``.

    Raises:
        TypeError: Not NumPy arrays of real numbers.
        ValueError: Shapes do not fit together.
    """
    arrays = (in_proj_weight, out_proj_weight, in_proj_bias, out_proj_bias)
    inputs = _validate.packed_arguments(inputs, *arrays)
    embed_dim = inputs.shape[-1]
    projected = inputs @ in_proj_weight.T + (0 if in_proj_bias is None else in_proj_bias)
    # attention runs over positions, so the batch goes first for the two products
    query, key, value = (x.swapaxes(0, 1) for x in np.split(projected, 3, axis=-1))
    weights = softmax(query @ key.swapaxes(-2, -1) / math.sqrt(embed_dim))
    output = (weights @ value).swapaxes(0, 1)
    return output @ out_proj_weight.T + (0 if out_proj_bias is None else out_proj_bias)


def _attend(query, key, value, mask, is_causal, scale, dropout_p, return_weights):
    """:func:`scaled_dot_product_attention` for arguments that are known to fit."""
    by_formula = return_weights or dropout_p > 0 or query.dtype == torch.float64
    if not by_formula and key.shape[-2] > 0:
        return _fused(query, key, value, mask, is_causal, scale)
    with _no_autocast(query):
        weights = _weights(query, key, _allowed(query, mask, is_causal), scale)
        kept = F.dropout(weights, float(dropout_p)) if dropout_p > 0 else weights
        output = _to(kept @ _to(value, kept.dtype), query.dtype)
    return (output, _to(weights, query.dtype)) if return_weights else output


def _to(x, dtype):
    return x if x.dtype == dtype else x.to(dtype)  # a call that does nothing takes time too


def _no_autocast(query):
    """A context in which autocast does not lower the scores to half precision."""
    if not _validate.autocast_is_on(query):
        return nullcontext()
    return torch.autocast(query.device.type, enabled=False)


def _allowed(query, mask, is_causal):
    """The mask and the causal triangle combined by *and*; ``None`` where all may attend to all."""
    if not is_causal:
        return mask
    length = query.shape[-2]
    triangle = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    return triangle if mask is None else mask & triangle


def _weights(query, key, allowed, scale):
    """Softmax of the scores, in float32 for half precision."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if query.dtype in (torch.float16, torch.bfloat16):
        query, key = query.float(), key.float()
    scores = _scores(query, key, scale)
    if allowed is None:
        return _softmax(scores)
    # A row without any key would be softmax of -inf only: NaN, and NaN gradients for the whole
    # batch. Such a row keeps its scores and gets weight 0 afterwards.
    empty = ~allowed.any(dim=-1, keepdim=True)
    weights = _softmax(scores.masked_fill(~(allowed | empty), -math.inf))
    return weights.masked_fill(empty, 0.0)


def _scores(query, key, scale):
    """``query @ key.T * scale`` in one call, which spares a pass over a scaled copy."""
    if query.ndim == 2:
        return _scores(query[None], key[None], scale)[0]
    queries, keys = query.flatten(0, -3), key.flatten(0, -3)
    unread = query.new_empty(())  # with beta = 0
    scores = torch.baddbmm(unread, queries, keys.mT, beta=0, alpha=scale)
    return scores.unflatten(0, query.shape[:-2])


def _softmax(scores):
    """Softmax over the keys; in the memory of the scores where nobody differentiates."""
    if scores.device.type == "cpu" and not torch.is_grad_enabled():
        # Fresh memory costs more than the arithmetic. vmap and forward derivatives refuse it.
        with suppress(RuntimeError):
            return torch.softmax(scores, dim=-1, out=scores)
    return scores.softmax(dim=-1)


def _fused(query, key, value, mask, is_causal, scale):
    """PyTorch's kernel, with 0 for rows that may attend to nothing on every back end."""
    # The kernel multiplies its own fill of -inf by the scale: NaN for a scale of 0 or less.
    if mask is None and not (is_causal and scale is not None and scale <= 0):
        output = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=scale)
        return _to(output, query.dtype)  # another one under autocast
    allowed = _allowed(query, mask, is_causal)
    allowed = allowed[None] if allowed.ndim == 1 else allowed
    if query.device.type in _SAFE_KERNELS:
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, scale=scale)
    else:
        empty = ~allowed.any(dim=-1, keepdim=True)
        output = F.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed | empty, scale=scale
        )
        output = output.masked_fill(empty, 0.0)
    return _to(output, query.dtype)
