"""The kernels of :func:`attention_lib.tiling.flash_attention`, in Triton.

A program owns one block of rows, of queries in the first two kernels and of keys in the third,
and walks along the other side. Tensors are contiguous; ``head`` counts the heads of all samples.
A width that is no power of 2 is filled up with zeros, as rows beyond the end are. Scores are in
units of ln 2, since GPUs have an instruction for ``exp2``.
"""

import math
from contextlib import nullcontext
from inspect import unwrap

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

# Triton's own functions became what the environment asked for when Triton was first imported.
INTERPRETED = isinstance(tl.zeros, InterpretedFunction)

_LOG2_E, _LN_2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)

# Shapes as _tuned takes them. A product of float32 is three products of TF32 on tensor cores, which
# keeps nearly all digits; larger blocks run out of registers and compile for minutes.
_FLOAT32 = [(32, 32, 4, 1), (32, 32, 4, 2), (32, 64, 8, 1), (64, 32, 8, 1)]


def _jit(function):
    """What ``triton.jit`` makes of the function, and the same for any two lengths.

    Triton reads the source of the function, not that of a wrapper which enforces annotations.
    """
    return triton.jit(unwrap(function), do_not_specialize=["length", "keys"])


def _tuned(*shapes):
    """Try (queries in a block, keys in a block, warps, stages) at the first call; keep the fastest.

    A shape that needs more shared memory than the GPU has drops out by itself.
    """
    shapes = [(32, 16, 4, 1)] if INTERPRETED else [*shapes, *_FLOAT32]
    configs = [
        triton.Config({"BLOCK_Q": q, "BLOCK_K": k}, num_warps=warps, num_stages=stages)
        for q, k, warps, stages in shapes
    ]
    sizes = ["D", "V", "GROUP", "CAUSAL", "LONG"]  # once for each of these, and for each dtype
    return triton.autotune(configs, sizes, prune_configs_by={"early_config_prune": _of_dtype})


def _of_dtype(configs, arguments, **_):
    count = len(_FLOAT32)
    return configs[-count:] if arguments["query"].dtype == torch.float32 else configs[:-count]


# Parts of all kernels


@_jit
def _place(length, BLOCK: tl.constexpr, LAST_FIRST: tl.constexpr):
    """Head and first row of this program; with CAUSAL the blocks with most to do start first."""
    blocks = tl.cdiv(length, BLOCK)
    head = tl.cast(tl.program_id(0) // blocks, tl.int64)  # 64 bits: it is multiplied by sizes
    block = tl.program_id(0) % blocks
    if LAST_FIRST:
        block = blocks - 1 - block
    return head, block * BLOCK


@_jit
def _load(matrix, start, stop, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
          EDGE: tl.constexpr):  # fmt: skip
    """Rows from ``start``; with EDGE they may pass the last one, ``stop - 1``."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    pointers = matrix + tl.cast(start, tl.int64) * WIDTH + row * WIDTH + column
    inside = column < WIDTH
    if EDGE:
        inside = inside & (row < stop - start)
    return tl.load(pointers, mask=inside, other=0.0)


@_jit
def _save(matrix, x, start, stop, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    pointers = matrix + tl.cast(start, tl.int64) * WIDTH + row * WIDTH + column
    inside = (row < stop - start) & (column < WIDTH)
    tl.store(pointers, x.to(matrix.dtype.element_ty), mask=inside)


@_jit
def _hide(scores, row, column, keys, CAUSAL: tl.constexpr):
    """Minus infinity where there is no key, or one that comes after the query."""
    seen = column < keys
    if CAUSAL:
        seen = seen & (column <= row)
    return tl.where(seen, scores, float("-inf"))


@_jit
def _span(first, keys, CAUSAL: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
          EDGE: tl.constexpr):  # fmt: skip
    """The blocks of keys that all queries see whole, or with EDGE those that some see in part."""
    whole, end = keys, keys
    if CAUSAL:
        whole, end = first, tl.minimum(first + BLOCK_Q, keys)
    begin = whole // BLOCK_K * BLOCK_K
    if not EDGE:
        begin, end = 0, begin
    return begin, end


# Forward: the online softmax


@_tuned(
    (128, 128, 8, 3), (128, 128, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3), (64, 128, 4, 3),  # Hopper
    (128, 64, 4, 2), (128, 32, 4, 3), (64, 64, 4, 3), (64, 32, 4, 2),  # Ampere
)  # fmt: skip
@_jit
def _forward(
    query, key, value, output, lse, scale, length, keys,
    D: tl.constexpr, V: tl.constexpr, D_BLOCK: tl.constexpr, V_BLOCK: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, LONG: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    head, first = _place(length, BLOCK_Q, True)
    key += head // GROUP * keys * D
    value += head // GROUP * keys * V
    row, column = first + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K)
    q = _load(query + head * length * D, first, length, D, BLOCK_Q, D_BLOCK, True)
    largest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    sums = tl.zeros([BLOCK_Q, V_BLOCK], tl.float32)
    for EDGE in tl.static_range(2):
        begin, end = _span(first, keys, CAUSAL, BLOCK_Q, BLOCK_K, EDGE)
        for start in range(begin, end, BLOCK_K):
            k = _load(key, start, keys, D, BLOCK_K, D_BLOCK, EDGE)
            v = _load(value, start, keys, V, BLOCK_K, V_BLOCK, EDGE)
            scores = tl.dot(q, tl.trans(k), input_precision="tf32x3") * (scale * _LOG2_E)
            if EDGE:
                scores = _hide(scores, row[:, None], start + column[None, :], keys, CAUSAL)
            # Every query sees a key of its first block: the new maximum is not minus infinity.
            new = tl.maximum(largest, tl.max(scores, 1))
            exponentials, correction = tl.exp2(scores - new[:, None]), tl.exp2(largest - new)
            total = total * correction + tl.sum(exponentials, 1)
            sums = sums * correction[:, None]
            sums = tl.dot(exponentials.to(v.dtype), v, sums, input_precision="tf32x3")
            largest = new
    total = tl.where(total == 0, 1.0, total)  # there is no key at all
    sums = sums / total[:, None]
    _save(output + head * length * V, sums, first, length, V, BLOCK_Q, V_BLOCK)
    tl.store(lse + head * length + row, largest * _LN_2 + tl.log(total), mask=row < length)


# Backward: first the gradient of the queries


@_tuned(
    (128, 128, 8, 2), (128, 64, 8, 3), (128, 64, 8, 2), (128, 32, 4, 3),  # Hopper
    (128, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 2), (64, 32, 4, 2),  # Ampere
)  # fmt: skip
@_jit
def _backward_queries(
    query, key, value, output, lse, grad, grad_lse, shared, grad_query, scale, length, keys,
    D: tl.constexpr, V: tl.constexpr, D_BLOCK: tl.constexpr, V_BLOCK: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, LONG: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    head, first = _place(length, BLOCK_Q, True)
    key += head // GROUP * keys * D
    value += head // GROUP * keys * V
    row, column = first + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K)
    q = _load(query + head * length * D, first, length, D, BLOCK_Q, D_BLOCK, True)
    g = _load(grad + head * length * V, first, length, V, BLOCK_Q, V_BLOCK, True)
    out = _load(output + head * length * V, first, length, V, BLOCK_Q, V_BLOCK, True)
    at, inside = head * length + row, row < length
    # the part of the softmax's derivative that all keys of a query share; the next kernel reads it
    s = tl.sum(g.to(tl.float32) * out.to(tl.float32), 1)
    s = s - tl.load(grad_lse + at, mask=inside, other=0.0)
    tl.store(shared + at, s, mask=inside)
    log = tl.load(lse + at, mask=inside, other=0.0) * _LOG2_E
    dq = tl.zeros([BLOCK_Q, D_BLOCK], tl.float32)
    for EDGE in tl.static_range(2):
        begin, end = _span(first, keys, CAUSAL, BLOCK_Q, BLOCK_K, EDGE)
        for start in range(begin, end, BLOCK_K):
            k = _load(key, start, keys, D, BLOCK_K, D_BLOCK, EDGE)
            v = _load(value, start, keys, V, BLOCK_K, V_BLOCK, EDGE)
            scores = tl.dot(q, tl.trans(k), input_precision="tf32x3") * (scale * _LOG2_E)
            if EDGE:
                scores = _hide(scores, row[:, None], start + column[None, :], keys, CAUSAL)
            weights = tl.exp2(scores - log[:, None])
            grad_scores = weights * (tl.dot(g, tl.trans(v), input_precision="tf32x3") - s[:, None])
            dq = tl.dot(grad_scores.to(k.dtype), k, dq, input_precision="tf32x3")
    _save(grad_query + head * length * D, dq * scale, first, length, D, BLOCK_Q, D_BLOCK)


# Backward: then the gradients of keys and values, from all query heads that share them


@_tuned(
    (64, 128, 8, 3), (64, 128, 8, 2), (32, 128, 8, 3), (64, 64, 4, 3),  # Hopper
    (32, 128, 4, 2), (64, 64, 4, 2), (32, 64, 4, 3), (32, 64, 4, 2),  # Ampere
)  # fmt: skip
@_jit
def _backward_keys(
    query, key, value, lse, grad, shared, grad_key, grad_value, scale, length, keys,
    D: tl.constexpr, V: tl.constexpr, D_BLOCK: tl.constexpr, V_BLOCK: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, LONG: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    head, first = _place(keys, BLOCK_K, False)
    column = first + tl.arange(0, BLOCK_K)
    k = _load(key + head * keys * D, first, keys, D, BLOCK_K, D_BLOCK, True)
    v = _load(value + head * keys * V, first, keys, V, BLOCK_K, V_BLOCK, True)
    dk = tl.zeros([BLOCK_K, D_BLOCK], tl.float32)
    dv = tl.zeros([BLOCK_K, V_BLOCK], tl.float32)
    begin = 0
    if CAUSAL:
        begin = first // BLOCK_Q * BLOCK_Q
    for member in range(GROUP):
        at = (head * GROUP + member) * length
        # Scores have the keys in the rows here. Queries beyond the end are 0 and add nothing.
        for start in range(begin, length, BLOCK_Q):
            row = start + tl.arange(0, BLOCK_Q)
            q = _load(query + at * D, start, length, D, BLOCK_Q, D_BLOCK, True)
            g = _load(grad + at * V, start, length, V, BLOCK_Q, V_BLOCK, True)
            log = tl.load(lse + at + row, mask=row < length, other=0.0) * _LOG2_E
            s = tl.load(shared + at + row, mask=row < length, other=0.0)
            scores = tl.dot(k, tl.trans(q), input_precision="tf32x3") * (scale * _LOG2_E)
            if CAUSAL:
                scores = _hide(scores, row[None, :], column[:, None], keys, CAUSAL)
            weights = tl.exp2(scores - log[None, :])
            dv = tl.dot(weights.to(g.dtype), g, dv, input_precision="tf32x3")
            grad_scores = weights * (tl.dot(v, tl.trans(g), input_precision="tf32x3") - s[None, :])
            dk = tl.dot(grad_scores.to(q.dtype), q, dk, input_precision="tf32x3")
    _save(grad_key + head * keys * D, dk * scale, first, keys, D, BLOCK_K, D_BLOCK)
    _save(grad_value + head * keys * V, dv, first, keys, V, BLOCK_K, V_BLOCK)


# Launching


def forward(query, key, value, _, *, is_causal, scale):
    """Output and log-sum-exp."""
    query, key, value = (x.contiguous() for x in (query, key, value))
    output = query.new_empty(*query.shape[:-1], value.shape[-1])
    lse = query.new_empty(query.shape[:-1], dtype=torch.float32)
    _launch(_forward, "BLOCK_Q", query, (query, key, value, output, lse), is_causal, scale)
    return output, lse


def backward(query, key, value, _, output, lse, grad, grad_lse, *, is_causal, scale):
    """Gradients of query, key and value."""
    query, key, value, grad = (x.contiguous() for x in (query, key, value, grad))
    grads, shared = [torch.empty_like(x) for x in (query, key, value)], torch.empty_like(lse)
    tensors = query, key, value, output, lse, grad, grad_lse.contiguous(), shared, grads[0]
    _launch(_backward_queries, "BLOCK_Q", query, tensors, is_causal, scale)
    tensors = query, key, value, lse, grad, shared, *grads[1:]
    _launch(_backward_keys, "BLOCK_K", key, tensors, is_causal, scale)
    return tuple(grads)


def _launch(kernel, block, owners, tensors, is_causal, scale):
    """Start one program for each ``block`` rows of ``owners``, ``(..., rows, width)``."""
    query, key, value = tensors[:3]
    *heads, rows, _ = owners.shape
    if math.prod(heads) * rows == 0:
        return
    (*query_heads, length, d), (*key_heads, keys, _), v = query.shape, key.shape, value.shape[-1]
    sizes = {"D": d, "V": v, "D_BLOCK": _block(d), "V_BLOCK": _block(v)}
    with torch.cuda.device(query.device) if query.is_cuda else nullcontext():
        kernel[lambda chosen: (math.prod(heads) * triton.cdiv(rows, chosen[block]),)](
            *tensors, float(scale), length, keys, **sizes, CAUSAL=is_causal,
            GROUP=math.prod(query_heads) // math.prod(key_heads), LONG=max(length, keys) >= 1024,
        )  # fmt: skip


def _block(width):
    """The width that a product takes: a power of 2, at least 16."""
    return max(16, triton.next_power_of_2(width))
