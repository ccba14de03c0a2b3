"""What attention must give: its definition in float64, how near to it, and inputs to try.

The definition is written in plain Python numbers and NumPy, and shares no code with the library.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

lengths, widths, seeds = st.integers(0, 5), st.integers(1, 5), st.integers(0, 2**31)
LAYOUTS = ["plain", "transposed", "strided", "expanded"]


def assert_as_exact_as(plain, actual, exact, size=None):
    """The largest error of ``actual`` is at most twice that of ``plain``, plus two roundings.

    ``plain`` is the textbook formula in the same dtype. The same operations in another order are
    as many roundings of the same size, so the largest error is of the same size, and 2 is for
    luck. Where the plain formula happens to be exact (a single key), the rounding of a result is
    left: one step of the dtype at the largest number, and 2 again. The largest number is that of
    ``size``, what is added up without its signs, since what cancels was rounded before.

    Source: the tests of Dao's flash-attention, tests/test_flash_attn.py ("at most twice the
    numerical error of a Pytorch implementation"), and hopper/test_flash_attn.py for the rounding.
    """
    dtype = torch.as_tensor(actual).dtype
    assert dtype == torch.as_tensor(plain).dtype
    actual, plain, exact = (torch.as_tensor(x).detach().double() for x in (actual, plain, exact))
    assert actual.shape == exact.shape
    if not actual.numel():
        return
    finite = exact.isfinite()  # the log-sum-exp of no key is minus infinity
    assert torch.equal(actual[~finite], exact[~finite])
    actual, plain, exact = (torch.where(finite, x, 0.0) for x in (actual, plain, exact))
    largest = torch.as_tensor(exact if size is None else size).abs().max()
    step = torch.finfo(dtype).eps * largest.clamp(min=torch.finfo(dtype).tiny)
    error, of_plain = ((x - exact).abs().max() for x in (actual, plain))
    assert error <= 2 * of_plain + 2 * step, (error.item(), of_plain.item(), step.item())


# The definition in float64, and the textbook formula in any dtype


def one_head(query, key, value, allowed, scale):
    """Output, weights and log-sum-exp of one head, number by number."""
    output, weights, lse = [], [], []
    for row, sees in zip(query, allowed, strict=True):
        scores = [
            scale * math.fsum(row * k) if s else -math.inf for k, s in zip(key, sees, strict=True)
        ]
        top = max(scores, default=-math.inf)
        parts = [math.exp(score - top) if top > -math.inf else 0.0 for score in scores]
        total = math.fsum(parts)
        weights.append([part / (total or 1) for part in parts])
        output.append([math.fsum(weights[-1] * column) for column in value.T])
        lse.append(top + math.log(total) if total else -math.inf)
    return (
        np.reshape(output, (len(query), value.shape[1])),
        np.reshape(weights, allowed.shape),
        np.reshape(lse, len(query)),
    )


def by_definition(query, key, value, allowed, scale):
    """Output, weights and log-sum-exp of each head, in float64; the sizes of the first and last."""
    query, key, value = (x.detach().double().numpy() for x in (query, key, value))
    lead, length, keys = query.shape[:-2], query.shape[-2], key.shape[-2]
    shapes = (*lead, length, value.shape[-1]), (*lead, length, keys), (*lead, length)
    results = tuple(np.empty(shape) for shape in shapes)
    for head in np.ndindex(lead):
        parts = one_head(query[head], key[head], value[head], allowed[head], scale)
        for result, part in zip(results, parts, strict=True):
            result[head] = part
    # scores and the logarithm of the number of keys, before one cancels the other
    size = abs(scale) * np.max(abs(query) @ abs(key).swapaxes(-2, -1), axis=-1, initial=0)
    return *results, results[1] @ abs(value), size + math.log(max(1, keys))


def gradients_by_definition(query, key, value, weights, scale, cotangent):
    """The closed form: of the softmax ``w * (g - sum(w * g))``, of the products their factors.

    Returns the three gradients, and the same with plus for every sign: the size of what is summed.
    """
    tensors = [x.detach().double().numpy() for x in (query, key, value, cotangent)]
    results = []
    for sign, factor, (q, k, v, g) in (
        (-1, scale, tensors),
        (1, abs(scale), map(np.abs, tensors)),
    ):
        by_weight = g @ v.swapaxes(-2, -1)
        of_row = sign * (weights * by_weight).sum(-1, keepdims=True)
        by_score = factor * weights * (by_weight + of_row)
        results.append((by_score @ k, by_score.swapaxes(-2, -1) @ q, weights.swapaxes(-2, -1) @ g))
    return results


def by_formula(query, key, value, allowed, scale):
    """The same by the textbook formula; scores and softmax of half precision in float32."""
    dtype = query.dtype
    wide = torch.promote_types(dtype, torch.float32)
    scores = (query.to(wide) @ key.to(wide).mT * scale).masked_fill(~allowed, -math.inf)
    top = torch.cat([scores.detach(), scores.new_full((*scores.shape[:-1], 1), -math.inf)], -1)
    top = top.amax(-1, keepdim=True).clamp(min=torch.finfo(wide).min)
    parts = torch.exp(scores - top)
    total = parts.sum(-1, keepdim=True)
    weights = (parts / torch.where(total == 0, 1, total)).to(dtype)
    return weights @ value, weights, (top + total.log()).squeeze(-1)


def heads_of(linear, x, heads, wide):
    """A projection and its split by the definition, in NumPy or, with ``wide``, as tensors."""
    weight, bias = linear.weight, linear.bias
    if not wide:
        projected = x @ weight.mT + (0 if bias is None else bias)
        return torch.stack(projected.chunk(heads, dim=-1), dim=1)
    weight, x = (t.detach().double().numpy() for t in (weight, x))
    projected = x @ weight.T + (0 if bias is None else bias.detach().double().numpy())
    return torch.from_numpy(np.stack(np.split(projected, heads, axis=-1), axis=1))


def layer_by(method, layer, inputs, allowed, turn=lambda x: x):
    """Output and weights of a layer by the definition, with the output's size, or the formula."""
    wide = method is by_definition
    h, shared = layer.num_heads, layer.num_kv_heads
    query = turn(heads_of(layer.q_proj, inputs[0], h, wide))
    key = turn(heads_of(layer.k_proj, inputs[1], shared, wide))
    value = heads_of(layer.v_proj, inputs[2], shared, wide)
    owner = torch.arange(h) // (h // shared)  # the key head of each query head
    allowed = allowed.numpy() if wide else allowed
    scale = query.shape[-1] ** -0.5
    output, weights, _, *sizes = method(query, key[:, owner], value[:, owner], allowed, scale)
    output, *size = (
        torch.cat([*torch.as_tensor(x).unbind(1)], dim=-1) for x in (output, *sizes[:1])
    )
    size = [x @ layer.out_proj.weight.detach().double().abs().mT for x in size]
    return heads_of(layer.out_proj, output, 1, wide)[:, 0], weights, *size


# What is drawn


class Problem(NamedTuple):
    inputs: list
    options: dict
    allowed: torch.Tensor
    scale: float


def normal(*shape, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def powers(*shape, seed, dtype):
    """Small integers times a power of 2, so that large scores are exact and ties stay ties."""
    largest = 13 if dtype == torch.float16 else 66  # about 1e4 and 1e20
    below = math.log2(torch.finfo(dtype).smallest_normal) - 3  # subnormal
    exponent = [0, 13, largest, below][seed % 4]
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(-3, 4, shape, generator=generator).double()
    return (whole * 2.0**exponent).to(dtype)


def laid_out(x, layout):
    """Other strides. In between lies what would be seen: NaN, or the opposite of a mask."""
    if layout == "transposed":
        return x.mT.contiguous().mT
    if layout == "strided":
        other = ~x if x.dtype == torch.bool else torch.full_like(x, math.nan)
        return torch.stack([other, x], dim=-1).flatten(-2)[..., 1::2]
    if layout == "expanded" and x.shape[-2]:
        return x[..., :1, :].expand(x.shape)  # other numbers: all rows are the first one
    return x


@st.composite
def tensors(draw, *shapes_and_dtype_and_numbers):
    *shapes, dtype, numbers = shapes_and_dtype_and_numbers
    seed = draw(seeds)
    drawn = [numbers(*shape, seed=seed + i, dtype=dtype) for i, shape in enumerate(shapes)]
    return [laid_out(x, draw(st.sampled_from(LAYOUTS))) for x in drawn]


@st.composite
def masks(draw, shape):
    """A bool mask of the shape, with rows that may attend to nothing more often than by chance."""
    share = draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    mask = torch.from_numpy(np.random.default_rng(draw(seeds)).random(shape) < share)
    if len(shape) > 1 and shape[-2] and draw(st.booleans()):
        mask[..., draw(st.integers(0, shape[-2] - 1)), :] = False
    return laid_out(mask, draw(st.sampled_from(LAYOUTS))) if len(shape) > 1 else mask


@st.composite
def problems(draw, dtype, numbers=normal, scales=(None, 0.3, -1.0, 0.0)):
    """Arguments of an attention function, what they allow, and the factor of the scores."""
    lead = draw(st.sampled_from([(), (2,), (2, 3), (1, 3), (0, 2), (2, 1, 2)]))
    length, keys, d, v = draw(lengths), draw(lengths), draw(widths), draw(widths)
    is_causal = draw(st.booleans())
    keys = length if is_causal else keys
    inputs = draw(tensors((*lead, length, d), (*lead, keys, d), (*lead, keys, v), dtype, numbers))
    full = (*lead, length, keys)
    some = tuple(draw(st.sampled_from([1, size])) for size in full)
    shape = draw(st.sampled_from([None, full[-1:], full[-2:], full, some]))
    mask = None if shape is None else draw(masks(shape))
    allowed = torch.ones(full, dtype=torch.bool) if mask is None else mask.expand(full)
    scale = draw(st.sampled_from(scales))
    options = {"mask": mask, "is_causal": is_causal, "scale": scale}
    allowed = allowed.tril() if is_causal else allowed
    return Problem(inputs, options, allowed, d**-0.5 if scale is None else scale)
