"""One check of arguments for every attention function: rule, what was expected, what came."""

import math
from numbers import Real

import torch
from torch import Tensor

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def attention_arguments(
    query, key, value=None, mask=None, is_causal=False, scale=None, dropout_p=0.0
):
    """Refuse what :func:`attention_lib.scaled_dot_product_attention` does not mean to accept.

    Args:
        query: ``(..., L, d)``.
        key: ``(..., S, d)``.
        value: ``(..., S, v)``, or ``None`` where only the weights are asked for.
        mask: ``None`` or bool, True = may attend.
        is_causal: bool.
        scale: ``None`` or a finite number.
        dropout_p: A probability.

    Raises:
        TypeError: Not a tensor, not a float dtype, two dtypes, a mask that is not bool.
        ValueError: Shapes, devices or numbers that do not fit.
    """
    tensors = {"query": query, "key": key}
    if value is not None:
        tensors["value"] = value
    _same_kind(tensors)
    _same_sizes(tensors)
    if not isinstance(is_causal, bool):
        raise TypeError(f"is_causal must be True or False; got {type(is_causal).__name__}")
    if is_causal and query.shape[-2] != key.shape[-2]:
        raise ValueError(_two_alignments(query.shape[-2], key.shape[-2]))
    if mask is not None:
        _mask(mask, query, key.shape[-2])
    if scale is not None and not (isinstance(scale, Real) and math.isfinite(scale)):
        raise ValueError(f"scale must be a finite number or None; got {scale!r}")
    if not (isinstance(dropout_p, Real) and 0 <= dropout_p <= 1):
        raise ValueError(f"dropout_p must be a probability between 0 and 1; got {dropout_p!r}")


def _same_kind(tensors):
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor; got {type(tensor).__name__}")
        if tensor.dtype not in _DTYPES:
            raise TypeError(f"{name} must have a real floating dtype; got {tensor.dtype}")
    query = tensors["query"]
    for name, tensor in tensors.items():
        if tensor.dtype != query.dtype:
            raise TypeError(
                f"all inputs must have one dtype; got query {query.dtype} and {name} {tensor.dtype}"
            )
        if tensor.device != query.device:
            raise ValueError(
                "all inputs must be on one device; "
                f"got query on {query.device} and {name} on {tensor.device}"
            )


def _same_sizes(tensors):
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    got = "got " + ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    query, key = shapes["query"], shapes["key"]
    if any(len(shape) < 2 for shape in shapes.values()):
        raise ValueError(f"inputs need at least two axes, (..., position, width); {got}")
    if any(shape[:-2] != query[:-2] for shape in shapes.values()):
        raise ValueError(
            "all axes before the last two (batch, heads) must be the same, nothing is broadcast; "
            f"{got}.{_about_heads(query, key)}"
        )
    if query[-1] != key[-1]:
        raise ValueError(f"query and key must have the same width (last axis); {got}")
    if query[-1] == 0:
        raise ValueError(f"the width of query and key must be at least 1; {got}")
    if "value" in shapes and shapes["value"][-2] != key[-2]:
        raise ValueError(f"key and value must have the same length (axis -2); {got}")


def _about_heads(query, key):
    """A hint where only the number of heads differs."""
    if len(query) != len(key) or len(query) < 4 or query[:-3] != key[:-3]:
        return ""
    return (
        " Where groups of query heads share a key/value head (num_kv_heads), repeat it for each of"
        " them first: key.repeat_interleave(query_heads // key_heads, dim=-3)."
    )


def _mask(mask, query, length):
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a torch.Tensor of bool; got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be bool with True = may attend; got {mask.dtype}. "
            "From 1 = attend, 0 = blocked: mask == 1. From additive 0 = attend, -inf = blocked: "
            "mask == 0. From nn.MultiheadAttention's bool masks, True = blocked: ~mask."
        )
    if mask.device != query.device:
        raise ValueError(f"mask must be on the query's device {query.device}; got {mask.device}")
    target = (*query.shape[:-1], length)
    broadcasts = mask.ndim == query.ndim and all(
        size in (1, wanted) for size, wanted in zip(mask.shape, target, strict=True)
    )
    if not broadcasts and tuple(mask.shape) not in (target[-1:], target[-2:]):
        raise ValueError(
            f"mask must have shape (S,) = {target[-1:]}, (L, S) = {target[-2:]}, or {query.ndim} "
            f"axes that broadcast to {target}; got {tuple(mask.shape)}"
        )


def _two_alignments(length, keys):
    """Why ``is_causal`` is refused where the lengths differ, with both meanings drawn."""

    def drawing(offset):
        return "\n".join(
            "    " + " ".join("x" if k <= q + offset else "." for k in range(min(keys, 8)))
            for q in range(min(length, 8))
        )

    return (
        f"is_causal needs as many queries as keys; got L = {length}, S = {keys}. Two masks could "
        "be meant (rows are queries, x = may attend). Pass the one you mean as mask=:\n"
        f"  top left, torch.ones(L, S, dtype=torch.bool).tril():\n{drawing(0)}\n"
        "  bottom right (decoding), torch.ones(L, S, dtype=torch.bool).tril(S - L):\n"
        f"{drawing(keys - length)}"
    )
