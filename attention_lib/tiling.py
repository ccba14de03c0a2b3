"""Chapter 13: attention that never stores the score matrix, in PyTorch and as a kernel for GPUs.

Both compute the scores block by block and need no block twice: :func:`online_softmax` corrects
what it has summed whenever a larger score turns up. For the backward pass both keep the output
and one number for each query, the logarithm of the sum of its exponentials (log-sum-exp), from
which the weights of any block can be computed again.
"""

import math
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attention_lib import _arguments, _validate
from attention_lib.single_head import _no_autocast

_WIDEST = 128  # head width for which a block of keys and one of values fit into shared memory


def online_softmax(
    blocks: Iterable[tuple[Float[Tensor, "*batch q _"], Float[Tensor, "*batch _ v"]] | list],
) -> tuple[Float[Tensor, "*batch q v"], Float[Tensor, "*batch q"]]:
    """``softmax(scores) @ values`` from one pass over blocks of scores and values.

    Three things are carried from block to block: for each query the largest score so far, the
    sum of ``exp(score - largest)``, and the sum of the values with these weights. A new largest
    score multiplies both sums by ``exp(old largest - new largest)``.

    Args:
        blocks: Pairs of scores ``(..., L, n)`` and values ``(..., n, v)``, at least one; n alone
            may differ from block to block. A score of minus infinity hides its value.

    Returns:
        The averages ``(..., L, v)`` and the log-sum-exp of the scores ``(..., L)``, in float32
        for half precision, which is computed in it: 0 and minus infinity for a query that sees
        nothing. The log-sum-exp has no gradient there, and NaN comes back in its place, also
        where the log-sum-exp of other queries alone is used; :func:`tiled_attention` gives 0.

    Raises:
        TypeError: Not pairs of float tensors, or not all of one dtype.
        ValueError: No block, a block without a key, or shapes or devices that do not fit.

    Example:
        >>> scores, values = torch.tensor([[0.0, 5.0, 1.0]]), torch.eye(3)
        >>> average, lse = online_softmax(zip(scores.split(2, 1), values.split(2), strict=True))
        >>> torch.allclose(average, scores.softmax(dim=-1))
        True

    Source:
        Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, algorithm 3;
        with the values: Dao et al., "FlashAttention", 2022, section 3.1.
    """
    largest, total, sums, common = -math.inf, 0.0, 0.0, None
    _arguments.instance("blocks", blocks, Iterable, "pairs of scores and values")
    for block in blocks:
        scores, values, common = _arguments.block(block, common)
        scores, values = _wide(scores), _wide(values)
        before, largest = largest, scores.amax(-1, keepdim=True).clamp(min=largest)
        # Where nothing was seen yet, -inf - -inf would be NaN; exp(-inf - 0) is the 0 it should be.
        shift = largest.masked_fill(largest == -math.inf, 0.0)
        exponentials, correction = (scores - shift).exp_(), (before - shift).exp()
        total = total * correction + exponentials.sum(-1, keepdim=True)
        sums = sums * correction + exponentials @ values
    if common is None:
        raise ValueError("online_softmax needs at least one block of scores and values; got none")
    average, lse = _average(sums, total, shift)
    return average.to(common[0]), lse


def _average(sums, total, shift):
    return sums / total.masked_fill(total == 0, 1.0), (shift + total.log()).squeeze(-1)


def tiled_attention(
    query: Float[Tensor, "*batch q d"],
    key: Float[Tensor, "*batch k d"],
    value: Float[Tensor, "*batch k v"],
    mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    block_size: int = 128,
    return_lse: bool = False,
) -> Float[Tensor, "*batch q v"] | tuple[Float[Tensor, "*batch q v"], Float[Tensor, "*batch q"]]:
    """What the formula gives, forward and backward, in memory linear in the lengths.

    The formula is :func:`~attention_lib.single_head.scaled_dot_product_attention`. Neither pass
    holds more of the scores than one block, ``(..., block_size, block_size)``. The backward pass
    keeps the output and the log-sum-exp of every query and computes the weights again. Half
    precision is computed in float32, also under autocast. Blocks in which no query may attend to
    any key are skipped: half of them with ``is_causal``, most of them with a window. What a
    skipped block holds is not read, so NaN and infinity do not spread from there. ``backward`` and
    ``torch.autograd`` give the gradients; PyTorch refuses the transforms of ``torch.func`` here.

    Args:
        query: Queries, ``(..., L, d)``.
        key: Keys, ``(..., S, d)``, same leading axes: nothing is broadcast.
        value: Values, ``(..., S, v)``; v may differ from d.
        mask: Bool, True = may attend; ``(S,)``, ``(L, S)``, or as many axes as the query,
            broadcasting to ``(..., L, S)``. Leave axes that can be 1 at 1: the mask is kept.
        is_causal: Position i may attend to positions 0 to i only; needs L = S. A mask that is
            given as well holds too.
        scale: Factor for the scores, ``1 / sqrt(d)`` by default.
        block_size: How many queries, and how many keys, one block takes.
        return_lse: Return the log-sum-exp as well. It has gradients, too.

    Returns:
        The output ``(..., L, v)`` in the query's dtype; 0 for a query that may attend to nothing.
        With ``return_lse`` a pair: the output and the natural logarithm of the sum of the
        exponentials of the scores, ``(..., L)``, in float32 for half precision; minus infinity
        for a query that may attend to nothing.

    Raises:
        TypeError: Inputs that are not float tensors of one dtype, a mask that is not bool, or a
            block size that is not an integer.
        ValueError: Shapes, devices or numbers that do not fit together.
        NotImplementedError: A second derivative is asked for.

    Source:
        Dao, "FlashAttention-2", 2023, algorithms 1 and 2, with blocks of any mask.
    """
    _validate.attention_arguments(query, key, value, mask, is_causal, scale)
    _arguments.positive(block_size=block_size)
    _arguments.flags(return_lse=return_lse)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    options = {"is_causal": is_causal, "scale": scale, "block_size": block_size}
    forward, backward = partial(_forward, **options), partial(_backward, **options)
    output, lse = _Attention.apply(forward, backward, query, key, value, mask)
    return (output, lse) if return_lse else output


def flash_attention(
    query: Float[Tensor, "*batch q d"],
    key: Float[Tensor, "*other k d"],
    value: Float[Tensor, "*other k v"],
    is_causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
) -> Float[Tensor, "*batch q v"] | tuple[Float[Tensor, "*batch q v"], Float[Tensor, "*batch q"]]:
    """:func:`tiled_attention` without a mask, as Triton kernels for a GPU, forward and backward.

    The kernels are compiled and tuned at the first call with a dtype, a width and a class of
    lengths, which takes seconds. With ``TRITON_INTERPRET=1`` in the environment before Triton is
    first imported they are interpreted, slowly, on the CPU; bfloat16 does not work there.

    Args:
        query: Queries, ``(..., L, d)``, float32, float16 or bfloat16, with d up to 128.
        key: Keys, ``(..., S, d)``. With four axes or more, axis -3 (heads) may be shorter than
            the query's: equal groups of query heads then share a key/value head, in order.
        value: Values, ``(..., S, v)``, as many heads as the keys; v up to 128.
        is_causal: Position i may attend to positions 0 to i only; needs L = S.
        scale: Factor for the scores, ``1 / sqrt(d)`` by default.
        return_lse: Return the log-sum-exp as well, ``(..., L)`` in float32. It has gradients, too.

    Returns:
        The output ``(..., L, v)`` in the query's dtype, or a pair of output and log-sum-exp.

    Raises:
        TypeError: Inputs that are not float tensors of one dtype, or float64.
        ValueError: Shapes, devices or numbers that do not fit together; neither a GPU of compute
            capability 8.0 or more nor the interpreter.
        ImportError: Triton is not installed.
        NotImplementedError: A second derivative is asked for.

    Source:
        Dao, "FlashAttention-2", 2023, algorithms 1 and 2.
    """
    _arguments.flags(return_lse=return_lse)
    _flash_arguments(query, key, value, is_causal, scale)
    from attention_lib import _flash  # needs Triton

    if not _flash.INTERPRETED:
        _gpu(query.device)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    options = {"is_causal": is_causal, "scale": scale}
    forward, backward = (partial(f, **options) for f in (_flash.forward, _flash.backward))
    output, lse = _Attention.apply(forward, backward, query, key, value, None)
    return (output, lse) if return_lse else output


class _Attention(torch.autograd.Function):
    """Attention that keeps its inputs, the output and the log-sum-exp, and no weights."""

    @staticmethod
    def forward(ctx, forward, backward, query, key, value, mask):
        with _no_autocast(query):
            output, lse = forward(query, key, value, mask)
        ctx.save_for_backward(query, key, value, mask, output, lse)
        ctx.gradients = backward
        return output, lse

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        gradients = _Gradients.apply(ctx.gradients, *ctx.saved_tensors, grad_output, grad_lse)
        return None, None, *gradients, None


class _Gradients(torch.autograd.Function):
    """The backward pass as a function of its own, so that a second one is refused by name."""

    @staticmethod
    def forward(ctx, gradients, *tensors):
        with _no_autocast(tensors[0]):
            return gradients(*tensors)

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(
            "tiled_attention and flash_attention have first derivatives only; got a request for "
            "second ones. scaled_dot_product_attention in float64 has them."
        )


def _forward(query, key, value, mask, *, is_causal, scale, block_size):
    """Output and log-sum-exp, one block of queries after another."""
    output = query.new_zeros(*query.shape[:-1], value.shape[-1])
    query, key, value = map(_ready, (query, key, value))
    lse = query.new_full(query.shape[:-1], -math.inf)
    for rows in _blocks(query.shape[-2], block_size):
        of_rows = query[..., rows, :] * scale
        seen = _seen(rows, query, key, mask, is_causal, block_size)
        blocks = (
            (_scores(of_rows, key[..., columns, :], allowed), value[..., columns, :])
            for columns, allowed in seen
        )
        if seen:
            output[..., rows, :], lse[..., rows] = online_softmax(blocks)
    return output, lse


def _backward(
    query, key, value, mask, output, lse, grad_output, grad_lse, *, is_causal, scale, block_size
):
    """Gradients of query, key and value, with every block's weights computed again."""
    dtype = query.dtype
    query, key, value, output, grad_output = map(_ready, (query, key, value, output, grad_output))
    grads = [torch.zeros_like(x) for x in (query, key, value)]
    # the part of the softmax's derivative that all keys of a query share
    shared = (grad_output * output).sum(-1, keepdim=True) - grad_lse.unsqueeze(-1)
    shift = lse.masked_fill(lse == -math.inf, 0.0).unsqueeze(-1)
    for rows in _blocks(query.shape[-2], block_size):
        of_rows, grad = query[..., rows, :] * scale, grad_output[..., rows, :]
        for columns, allowed in _seen(rows, query, key, mask, is_causal, block_size):
            of_keys = key[..., columns, :]
            scores = _scores(of_rows, of_keys, allowed)
            weights = scores.sub_(shift[..., rows, :]).exp_()
            grad_scores = grad @ value[..., columns, :].mT
            grad_scores.sub_(shared[..., rows, :]).mul_(weights)
            grads[0][..., rows, :] += grad_scores @ of_keys
            grads[1][..., columns, :] += grad_scores.mT @ of_rows
            grads[2][..., columns, :] += weights.mT @ grad
    grads[0].mul_(scale)
    return tuple(grad.to(dtype) for grad in grads)


def _ready(x):
    """In the dtype to compute in, and in one piece: a block of a transposed tensor is copied."""
    return _wide(x).contiguous()


def _wide(x):
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _blocks(length, block_size):
    return [slice(i, min(i + block_size, length)) for i in range(0, length, block_size)]


def _seen(rows, query, key, mask, is_causal, block_size):
    """The blocks of keys that some query of ``rows`` may attend to.

    Returns pairs of the keys' slice and what may be attended to in the block, ``None`` for all.
    """
    if mask is not None:
        mask = mask.expand(*mask.shape[:-2], query.shape[-2], key.shape[-2])  # a view
    seen = []
    for columns in _blocks(rows.stop if is_causal else key.shape[-2], block_size):
        allowed = None if mask is None else mask[..., rows, columns]
        if is_causal and columns.stop > rows.start + 1:
            size = rows.stop - rows.start, columns.stop - columns.start
            triangle = torch.ones(size, dtype=torch.bool, device=query.device)
            triangle = triangle.tril(rows.start - columns.start)
            allowed = triangle if allowed is None else triangle & allowed
        if mask is None or allowed.any():
            seen.append((columns, allowed))
    return seen


def _scores(query, key, allowed):
    scores = query @ key.mT
    return scores if allowed is None else scores.masked_fill_(~allowed, -math.inf)


def _flash_arguments(query, key, value, is_causal, scale):
    """Refuse what the kernels do not take."""
    as_many = [key, value]  # heads as the query has, without a copy, for the common checks
    if all(isinstance(x, Tensor) and x.ndim > 3 for x in (query, key, value)):
        heads, shared = query.shape[-3], key.shape[-3]
        if value.shape[-3] != shared or (heads != shared and (shared == 0 or heads % shared)):
            raise ValueError(
                "key and value must have the same number of heads (axis -3), one that divides the "
                f"query's; got query {heads}, key {shared}, value {value.shape[-3]}"
            )
        if heads != shared:
            as_many = [
                x.narrow(-3, 0, 1).expand(*x.shape[:-3], heads, *x.shape[-2:]) for x in as_many
            ]
    _validate.attention_arguments(query, *as_many, None, is_causal, scale)
    if query.dtype == torch.float64:
        raise TypeError(
            "flash_attention takes float32, float16 and bfloat16; got torch.float64. "
            "tiled_attention takes it."
        )
    widths = query.shape[-1], value.shape[-1]
    if max(widths) > _WIDEST or min(widths) < 1:
        raise ValueError(
            f"the widths d of query and key and v of values must be 1 to {_WIDEST}; got d = "
            f"{widths[0]}, v = {widths[1]}. tiled_attention takes any."
        )
    if find_spec("triton") is None:
        raise ImportError(
            "flash_attention needs Triton, which runs on Linux: "
            "pip install 'attention-lib[kernels]'. tiled_attention needs nothing."
        )


def _gpu(device):
    """Refuse a device that Triton cannot compile for."""
    if device.type != "cuda":
        raise ValueError(
            "flash_attention needs tensors on a GPU, or TRITON_INTERPRET=1 in the environment "
            f"before Triton is first imported; got tensors on {device} and no interpreter. "
            "tiled_attention runs anywhere."
        )
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < (8, 0):
        raise ValueError(
            "flash_attention needs a GPU of compute capability 8.0 or more (Ampere, 2020), which "
            f"Triton compiles for; got {torch.cuda.get_device_name(device)} with "
            f"{capability[0]}.{capability[1]}. scaled_dot_product_attention in float16 or float32 "
            "takes PyTorch's memory-efficient kernel there."
        )
