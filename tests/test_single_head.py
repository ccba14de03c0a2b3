"""Chapter 2: one head, against loops from the definition and against PyTorch."""

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from attention_lib import (
    SingleHeadAttention,
    attention_weights,
    numpy_attention,
    scaled_dot_product_attention,
)
from attention_lib.single_head import _softmax

# every axis another prime, so that a swapped axis cannot pass
B, H, L, S, D, V = 2, 3, 5, 7, 11, 13


def tensors(*lead, length=L, keys=S, d=D, v=V, dtype=torch.float64, seed=0, grad=False):
    rng = torch.Generator().manual_seed(seed)
    shapes = (*lead, length, d), (*lead, keys, d), (*lead, keys, v)
    made = [torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) for shape in shapes]
    return [tensor.requires_grad_(grad) for tensor in made]


def random_mask(*shape, seed=1):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.5


def attention_by_loops(query, key, value, allowed, scale):
    """Rank 2, written from the definition; a query without a key gives zeros."""
    output = torch.zeros(len(query), value.shape[-1], dtype=query.dtype)
    weights = torch.zeros(len(query), len(key), dtype=query.dtype)
    for i in range(len(query)):
        keys = [j for j in range(len(key)) if allowed[i, j]]
        exponentials = {j: math.exp(float(sum(query[i] * key[j])) * scale) for j in keys}
        for j in keys:
            weights[i, j] = exponentials[j] / sum(exponentials.values())
            output[i] += weights[i, j] * value[j]
    return output, weights


@given(
    length=st.integers(0, 5),
    keys=st.integers(0, 5),
    scale=st.sampled_from([None, 0.0, 0.3, -1.0]),
    masked=st.booleans(),
    seed=st.integers(0, 99),
)
def test_attention_agrees_with_loops_from_the_definition(length, keys, scale, masked, seed):
    query, key, value = tensors(length=length, keys=keys, seed=seed)
    mask = random_mask(length, keys, seed=seed) if masked else None
    allowed = torch.ones(length, keys, dtype=torch.bool) if mask is None else mask
    expected = attention_by_loops(query, key, value, allowed, D**-0.5 if scale is None else scale)
    actual = scaled_dot_product_attention(
        query, key, value, mask=mask, scale=scale, return_weights=True
    )
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(attention_weights(query, key, mask, scale=scale), expected[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("lead", [(), (B,), (B, H), (2, B, H)])
def test_attention_agrees_with_pytorch_on_every_rank(lead, dtype):
    query, key, value = tensors(*lead, dtype=dtype)
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-6}[dtype]
    for mask in (None, random_mask(L, S) | torch.eye(L, S, dtype=torch.bool)):
        expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        actual = scaled_dot_product_attention(query, key, value, mask=mask)
        torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_asking_for_weights_changes_nothing_else(dtype, masked, is_causal):
    query, key, value = tensors(B, H, keys=L, dtype=dtype)
    mask = random_mask(B, 1, L, L) if masked else None
    output = scaled_dot_product_attention(query, key, value, mask=mask, is_causal=is_causal)
    same, weights = scaled_dot_product_attention(
        query, key, value, mask=mask, is_causal=is_causal, return_weights=True
    )
    assert output.dtype == same.dtype == weights.dtype == dtype
    assert weights.shape == (B, H, L, L)
    tolerance = {torch.float64: 0, torch.float32: 2e-6}.get(dtype, 4 * torch.finfo(dtype).eps)
    torch.testing.assert_close(output, same, rtol=0, atol=tolerance)


@pytest.mark.parametrize("masked", [False, True])
def test_autocast_keeps_the_dtype_and_asking_for_weights_changes_nothing_else(masked):
    query, key, value = tensors(B, H, dtype=torch.float32)
    mask = torch.tensor([True] * (S - 1) + [False]) if masked else None
    expected = scaled_dot_product_attention(query, key, value, mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        alone = scaled_dot_product_attention(query, key, value, mask)
        output, weights = scaled_dot_product_attention(query, key, value, mask, return_weights=True)
        assert torch.equal(attention_weights(query, key, mask), weights)
    assert alone.dtype == output.dtype == weights.dtype == torch.float32
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(alone, expected, rtol=0, atol=8 * torch.finfo(torch.bfloat16).eps)


def test_is_causal_is_the_lower_triangle_and_adds_to_a_mask():
    query, key, value = tensors(B, keys=L)
    triangle = torch.ones(L, L, dtype=torch.bool).tril()
    causal = scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(causal, scaled_dot_product_attention(query, key, value, triangle))
    mask = random_mask(B, L, L)
    both = scaled_dot_product_attention(query, key, value, mask=mask, is_causal=True)
    torch.testing.assert_close(
        both, scaled_dot_product_attention(query, key, value, mask & triangle)
    )


def test_first_position_of_causal_attention_sees_itself_only():
    query, key, value = tensors(keys=L)
    output = scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(output[0], value[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("return_weights", [False, True])
def test_query_that_may_attend_to_nothing_gets_zeros(dtype, return_weights):
    query, key, value = tensors(B, H, dtype=dtype)
    mask = random_mask(B, 1, L, S)
    mask[0, 0, 1] = False
    result = scaled_dot_product_attention(
        query, key, value, mask=mask, return_weights=return_weights
    )
    for tensor in result if return_weights else (result,):
        assert (tensor[0, :, 1] == 0).all()
        assert tensor.isfinite().all()
    assert (attention_weights(query, key, mask)[0, :, 1] == 0).all()


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("masked_rows", [[1], list(range(L))])
def test_gradients_stay_finite_where_a_query_may_attend_to_nothing(dtype, masked_rows):
    arguments = tensors(B, H, dtype=dtype, grad=True)
    mask = torch.ones(L, S, dtype=torch.bool)
    mask[masked_rows] = False
    with torch.autograd.detect_anomaly(check_nan=True):
        scaled_dot_product_attention(*arguments, mask=mask).square().sum().backward()
    query = arguments[0].grad
    assert (query[:, :, masked_rows] == 0).all()
    assert all(tensor.grad.isfinite().all() for tensor in arguments)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_first_and_second_derivatives_agree_with_finite_differences(is_causal, masked):
    arguments = tensors(2, length=3, keys=3, d=2, v=2, grad=True)
    mask = random_mask(3, 3)
    mask[1] = False

    def attention(query, key, value):
        return scaled_dot_product_attention(
            query, key, value, mask=mask if masked else None, is_causal=is_causal
        )

    assert torch.autograd.gradcheck(attention, arguments)
    assert torch.autograd.gradgradcheck(attention, arguments)


def test_gradients_of_the_fused_kernel_agree_with_the_formula():
    arguments = tensors(B, H, keys=L, dtype=torch.float32, grad=True)
    mask = random_mask(L, L)
    mask[2] = False
    cotangent = torch.randn(B, H, L, V, generator=torch.Generator().manual_seed(3))
    fused = scaled_dot_product_attention(*arguments, mask=mask, is_causal=True)
    formula, _ = scaled_dot_product_attention(
        *arguments, mask=mask, is_causal=True, return_weights=True
    )
    torch.testing.assert_close(
        torch.autograd.grad(fused, arguments, cotangent),
        torch.autograd.grad(formula, arguments, cotangent),
        rtol=0,
        atol=1e-5,
    )


@pytest.mark.parametrize("content", [0.0, 1e30, -1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_content_of_a_masked_slot_has_no_influence(content, dtype):
    query, key, value = tensors(B, dtype=dtype)
    mask = torch.ones(S, dtype=torch.bool)
    mask[2] = False
    expected = scaled_dot_product_attention(query, key, value, mask=mask)
    key[:, 2] = value[:, 2] = content
    torch.testing.assert_close(
        scaled_dot_product_attention(query, key, value, mask=mask), expected, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_masked_weight_is_0_however_low_the_scores_of_the_others_are(dtype):
    query, key = torch.full((1, 4), 200.0, dtype=dtype), torch.zeros(2, 4, dtype=dtype)
    key[0] = -200  # a score of -80000, below -65504 and any "large" constant of half precision
    mask = torch.tensor([True, False])
    weights = attention_weights(query, key, mask)
    torch.testing.assert_close(weights, torch.tensor([[1.0, 0.0]], dtype=dtype))
    value = torch.tensor([[3.0], [9.0]], dtype=dtype)
    output = scaled_dot_product_attention(query, key, value, mask=mask)
    torch.testing.assert_close(output, value[:1])


@pytest.mark.parametrize("return_weights", [False, True])
def test_nan_in_a_masked_slot_spreads_as_in_pytorch(return_weights):
    query, key, value = tensors(1, 1, dtype=torch.float32)
    value[..., 2, :] = math.nan
    mask = torch.arange(S) != 2
    result = scaled_dot_product_attention(
        query, key, value, mask=mask, return_weights=return_weights
    )
    assert (result[0] if return_weights else result).isnan().all()
    assert F.scaled_dot_product_attention(query, key, value, attn_mask=mask[None]).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("return_weights", [False, True])
def test_scores_beyond_the_range_of_half_precision_are_no_problem(dtype, return_weights):
    query, key, value = tensors(1, 1, d=512, dtype=dtype)
    # beyond 65504 in float16, even after scaling: 512 * 60 * 60 / 22.6
    query, key = torch.full_like(query, 60), torch.full_like(key, 60)
    result = scaled_dot_product_attention(query, key, value, return_weights=return_weights)
    output = result[0] if return_weights else result
    expected = value.float().mean(dim=-2, keepdim=True).expand(1, 1, L, V)
    torch.testing.assert_close(output.float(), expected, rtol=0, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_within_its_rounding_of_float64(dtype):
    arguments = tensors(B, H, dtype=dtype)
    exact = scaled_dot_product_attention(*(tensor.double() for tensor in arguments))
    for return_weights in (False, True):
        result = scaled_dot_product_attention(*arguments, return_weights=return_weights)
        output = result[0] if return_weights else result
        error = (output.double() - exact).abs().max().item()
        assert error < 4 * torch.finfo(dtype).eps


@pytest.mark.refusal
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("return_weights", [False, True])
def test_scale_and_dropout_may_be_numbers_that_pytorch_does_not_take(dtype, return_weights):
    query, key, value = tensors(B, dtype=dtype)
    for scale in (Fraction(1, 2), 10**20):  # the second one does not fit into 64 bits
        torch.testing.assert_close(
            *(
                scaled_dot_product_attention(
                    query, key, value, scale=number, return_weights=return_weights
                )
                for number in (scale, float(scale))
            )
        )
        torch.testing.assert_close(
            *(attention_weights(query, key, scale=number) for number in (scale, float(scale)))
        )
    output = scaled_dot_product_attention(query, key, value, dropout_p=Fraction(1))
    assert not output.any()


def test_dropout_scales_what_it_keeps_and_returned_weights_are_from_before_it():
    query, key, value = tensors(100, dtype=torch.float32)
    torch.manual_seed(0)
    output, weights = scaled_dot_product_attention(
        query, key, value, dropout_p=0.5, return_weights=True
    )
    torch.testing.assert_close(weights, attention_weights(query, key))
    torch.manual_seed(0)
    kept = F.dropout(weights, 0.5)
    assert 0.45 < (kept == 0).float().mean() < 0.55
    torch.testing.assert_close(output, kept @ value)
    torch.manual_seed(0)
    torch.testing.assert_close(
        scaled_dot_product_attention(query, key, value, dropout_p=0.5), output
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("length", "keys"), [(0, S), (L, 0), (0, 0)])
def test_empty_sequences_give_empty_results_or_zeros(dtype, length, keys):
    arguments = tensors(B, length=length, keys=keys, dtype=dtype, grad=True)
    output = scaled_dot_product_attention(*arguments)
    assert output.shape == (B, length, V)
    assert (output == 0).all()
    output.sum().backward()
    same, weights = scaled_dot_product_attention(*arguments, return_weights=True)
    assert torch.equal(same, output)
    assert weights.shape == (B, length, keys)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_transposed_and_expanded_inputs_give_what_their_copies_give(dtype):
    query, key, value = tensors(B, H, dtype=dtype)
    layouts = [
        tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (query, key, value)
    ]
    assert not layouts[0].is_contiguous()
    expected = scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(scaled_dot_product_attention(*layouts), expected)
    one = [tensor[:1].expand(B, -1, -1, -1) for tensor in (query, key, value)]
    expanded = scaled_dot_product_attention(*one)
    torch.testing.assert_close(expanded, expected[:1].expand(B, -1, -1, -1))
    mask = random_mask(L, S).expand(B, H, L, S)
    torch.testing.assert_close(
        scaled_dot_product_attention(query, key, value, mask=mask),
        scaled_dot_product_attention(query, key, value, mask=mask.contiguous()),
    )


@given(st.data())
def test_every_mask_that_broadcasts_equals_its_expanded_copy(data):
    shape = tuple(data.draw(st.sampled_from([1, size])) for size in (B, H, L, S))
    shape = data.draw(st.sampled_from([shape, (S,), (L, S)]))
    mask = random_mask(*shape, seed=data.draw(st.integers(0, 99)))
    for dtype in (torch.float32, torch.float64):
        arguments = tensors(B, H, dtype=dtype)
        torch.testing.assert_close(
            scaled_dot_product_attention(*arguments, mask=mask),
            scaled_dot_product_attention(*arguments, mask=mask.expand(B, H, L, S)),
        )


def test_arguments_and_mask_stay_as_they_were():
    arguments, mask = tensors(B, keys=L, dtype=torch.float32), random_mask(L, L)
    copies = [tensor.clone() for tensor in (*arguments, mask)]
    for return_weights in (False, True):
        scaled_dot_product_attention(
            *arguments, mask=mask, is_causal=True, return_weights=return_weights
        )
    for now, before in zip((*arguments, mask), copies, strict=True):
        assert torch.equal(now, before)


def test_the_order_of_the_keys_does_not_matter_and_the_order_of_the_queries_is_kept():
    query, key, value = tensors(B)
    order = torch.randperm(S, generator=torch.Generator().manual_seed(0))
    expected = scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(
        scaled_dot_product_attention(query, key[:, order], value[:, order]), expected
    )
    torch.testing.assert_close(
        scaled_dot_product_attention(query.flip(1), key, value), expected.flip(1)
    )


def test_layer_is_the_function_on_three_projections():
    torch.manual_seed(0)
    layer = SingleHeadAttention(embed_dim=D, d_k=3, d_v=V)
    x, context = torch.randn(B, L, D), torch.randn(B, S, D)
    mask = random_mask(B, L, S)
    output, weights = layer(x, context, mask=mask, return_weights=True)
    assert (output.shape, weights.shape) == ((B, L, V), (B, L, S))
    expected = scaled_dot_product_attention(
        layer.q_proj(x), layer.k_proj(context), layer.v_proj(context), mask=mask
    )
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(layer(x), layer(x, x, x))
    torch.testing.assert_close(layer(x, is_causal=True)[:, 0], layer.v_proj(x)[:, 0])


def test_layer_has_one_projection_each_and_d_v_follows_d_k():
    shapes = {
        name: tuple(parameter.shape)
        for name, parameter in SingleHeadAttention(D, 3).named_parameters()
    }
    assert shapes == {f"{p}_proj.{kind}": (3, D) if kind == "weight" else (3,)
                      for p in "qkv" for kind in ("weight", "bias")}  # fmt: skip
    assert not [
        n for n, _ in SingleHeadAttention(D, 3, bias=False).named_parameters() if "bias" in n
    ]


def test_numpy_attention_is_pytorchs_layer_with_one_head_and_random_biases():
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(D, num_heads=1, dtype=torch.float64)
    torch.nn.init.normal_(module.in_proj_bias)  # both biases start at 0, which would hide them
    torch.nn.init.normal_(module.out_proj.bias)
    inputs = torch.randn(L, B, D, dtype=torch.float64)
    expected, _ = module(inputs, inputs, inputs)
    p = {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}
    actual = numpy_attention(
        inputs.numpy(), p["in_proj_weight"], p["out_proj.weight"], p["in_proj_bias"],
        p["out_proj.bias"],
    )  # fmt: skip
    np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=0, atol=1e-12)


def test_numpy_attention_without_biases_is_with_zero_biases():
    rng = np.random.default_rng(0)
    inputs, packed = rng.normal(size=(L, B, D)), rng.normal(size=(3 * D, D))
    out = rng.normal(size=(D, D))
    np.testing.assert_allclose(
        numpy_attention(inputs, packed, out),
        numpy_attention(inputs, packed, out, np.zeros(3 * D), np.zeros(D)),
    )


REFUSED = [
    ({"query": np.zeros((B, L, D))}, TypeError, "query must be a torch.Tensor; got ndarray"),
    ({"value": [[1.0]]}, TypeError, "value must be a torch.Tensor; got list"),
    (
        {"key": torch.ones(B, S, D).long()},
        TypeError,
        "key must have a real floating dtype; got torch.int64",
    ),
    (
        {"key": torch.ones(B, S, D).cfloat()},
        TypeError,
        "key must have a real floating dtype; got torch.complex64",
    ),
    (
        {"value": torch.ones(B, S, V).double()},
        TypeError,
        "one dtype; got query torch.float32 and value torch.float64",
    ),
    (
        {"key": torch.ones(B, S, D, device="meta")},
        ValueError,
        "one device; got query on cpu and key on meta",
    ),
    (
        {"query": torch.ones(D)},
        ValueError,
        "at least two axes, (..., position, width); got query (11,)",
    ),
    (
        {"key": torch.ones(1, S, D), "value": torch.ones(1, S, V)},
        ValueError,
        "nothing is broadcast; got query (2, 5, 11), key (1, 7, 11)",
    ),
    ({"value": torch.ones(S, V)}, ValueError, "nothing is broadcast"),
    (
        {"key": torch.ones(B, S, 3)},
        ValueError,
        "same width (last axis); got query (2, 5, 11), key (2, 7, 3)",
    ),
    (
        {"query": torch.ones(B, L, 0), "key": torch.ones(B, S, 0)},
        ValueError,
        "width of query and key must be at least 1",
    ),
    (
        {"value": torch.ones(B, 3, V)},
        ValueError,
        "key and value must have the same length (axis -2)",
    ),
    (
        {"mask": np.ones((L, S), bool)},
        TypeError,
        "mask must be a torch.Tensor of bool; got ndarray",
    ),
    (
        {"mask": torch.ones(L, S)},
        TypeError,
        "mask must be bool with True = may attend; got torch.float32. From 1 = attend",
    ),
    ({"mask": torch.ones(L, S).long()}, TypeError, "got torch.int64"),
    (
        {"mask": torch.ones(L, S, dtype=torch.bool, device="meta")},
        ValueError,
        "query's device cpu; got meta",
    ),
    (
        {"mask": torch.ones(S, L, dtype=torch.bool)},
        ValueError,
        "(S,) = (7,), (L, S) = (5, 7), or 3 axes that broadcast to (2, 5, 7); got (7, 5)",
    ),
    ({"mask": torch.ones(L, 1, dtype=torch.bool)}, ValueError, "got (5, 1)"),
    ({"mask": torch.ones(1, B, L, S, dtype=torch.bool)}, ValueError, "got (1, 2, 5, 7)"),
    ({"mask": torch.ones((), dtype=torch.bool)}, ValueError, "got ()"),
    ({"is_causal": True}, ValueError, "as many queries as keys; got L = 5, S = 7"),
    ({"is_causal": 1}, TypeError, "is_causal must be True or False; got int"),
    ({"scale": math.nan}, ValueError, "scale must be a finite number or None; got nan"),
    ({"scale": "0.5"}, ValueError, "scale must be a finite number or None; got '0.5'"),
    ({"dropout_p": 1.5}, ValueError, "dropout_p must be a probability between 0 and 1; got 1.5"),
    ({"dropout_p": None}, ValueError, "dropout_p must be a probability between 0 and 1; got None"),
]


@pytest.mark.refusal
@pytest.mark.parametrize(("change", "error", "message"), REFUSED)
def test_arguments_that_do_not_fit_are_refused_with_rule_and_what_came(change, error, message):
    arguments = dict(zip(["query", "key", "value"], tensors(B, dtype=torch.float32), strict=True))
    with pytest.raises(error) as caught:
        scaled_dot_product_attention(**(arguments | change))
    assert message in str(caught.value)


@pytest.mark.refusal
def test_weights_alone_are_refused_in_the_same_words():
    with pytest.raises(ValueError, match=r"same width \(last axis\)"):
        attention_weights(torch.ones(L, D), torch.ones(S, 3))


@pytest.mark.refusal
def test_fewer_key_heads_than_query_heads_are_refused_with_the_way_out():
    query, _, _ = tensors(B, 4, dtype=torch.float32)
    for heads in (1, 2):
        _, key, value = tensors(B, heads, dtype=torch.float32)
        with pytest.raises(ValueError, match=r"num_kv_heads.*repeat_interleave"):
            scaled_dot_product_attention(query, key, value)


@pytest.mark.refusal
def test_the_two_alignments_are_drawn_and_both_work_when_passed():
    query, key, value = tensors(length=2, keys=4)
    with pytest.raises(ValueError, match="top_left") as caught:
        scaled_dot_product_attention(query, key, value, is_causal=True)
    assert "    x . . .\n    x x . .\n" in str(caught.value)
    assert str(caught.value).endswith("    x x x .\n    x x x x")
    ones = torch.ones(2, 4, dtype=torch.bool)
    last = scaled_dot_product_attention(query, key, value, mask=ones.tril(2))[-1]
    torch.testing.assert_close(last, scaled_dot_product_attention(query, key, value)[-1])


@pytest.mark.refusal
def test_layer_refuses_inputs_of_another_width():
    layer = SingleHeadAttention(D, 3)
    with pytest.raises(ValueError, match=r"key must be embed_dim = 11 wide.*got \(2, 7, 5\)"):
        layer(torch.ones(B, L, D), torch.ones(B, S, 5))
    with pytest.raises(ValueError, match="nothing is broadcast"):
        layer(torch.ones(B, L, D), torch.ones(1, S, D))


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((L, D), (3 * D, D), (D, D)), r"must have shape \(seq, batch, embed\); got \(5, 11\)"),
        (((L, B, D), (D, D), (D, D)), r"in_proj_weight must have shape \(33, 11\); got \(11, 11\)"),
        (((L, B, D), (3 * D, D), (V, D)), r"out_proj_weight must have shape \(11, 11\)"),
        (((L, B, D), (3 * D, D), (D, D), (D,)), r"in_proj_bias must have shape \(33,\)"),
        (((L, B, D), (3 * D, D), (D, D), (3 * D,), (1,)), r"out_proj_bias must have shape \(11,\)"),
    ],
)
def test_numpy_attention_refuses_shapes_that_do_not_fit(shapes, message):
    with pytest.raises(ValueError, match=message):
        numpy_attention(*(np.zeros(shape) for shape in shapes))


def test_no_warning_is_given_on_any_path():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            arguments = tensors(B, keys=L, dtype=dtype)
            scaled_dot_product_attention(*arguments, mask=random_mask(L), is_causal=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_scale_is_that_of_the_formula_on_every_path(dtype, masked):
    query, key, value = tensors(B, dtype=dtype)
    mask = random_mask(L, S) if masked else None
    expected = scaled_dot_product_attention(
        query.double(), key.double(), value.double(), mask, scale=0.03
    )
    actual = scaled_dot_product_attention(query, key, value, mask, scale=0.03)
    tolerance = 4 * max(torch.finfo(dtype).eps, 1e-12)
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=tolerance)


def test_weights_alone_are_those_that_come_with_the_output():
    query, key, value = tensors(B, keys=L)
    for mask in (None, random_mask(B, L, L)):
        _, weights = scaled_dot_product_attention(
            query, key, value, mask, is_causal=True, return_weights=True
        )
        assert torch.equal(attention_weights(query, key, mask, is_causal=True), weights)
        assert (weights.triu(1) == 0).all()


@pytest.mark.parametrize("dropout_p", [0.2, 0.7])
def test_dropout_drops_the_part_that_it_was_asked_to(dropout_p):
    arguments = tensors(100, dtype=torch.float32)
    torch.manual_seed(0)
    output = scaled_dot_product_attention(*arguments, dropout_p=dropout_p)
    torch.manual_seed(0)
    kept = F.dropout(attention_weights(*arguments[:2]), dropout_p)
    torch.testing.assert_close(output, kept @ arguments[2])


@pytest.mark.parametrize(
    ("dtype", "keys", "options", "times"),
    [
        (torch.float32, S, {}, 1),
        (torch.bfloat16, S, {}, 1),
        (torch.float32, 1, {}, 1),
        (torch.float32, 0, {}, 0),
        (torch.float64, S, {}, 0),
        (torch.float32, S, {"return_weights": True}, 0),
        (torch.float32, S, {"dropout_p": 0.1}, 0),
    ],
)
def test_pytorchs_kernel_runs_where_neither_weights_nor_dropout_nor_float64_are_asked_for(
    dtype, keys, options, times, monkeypatch
):
    calls, kernel = [], F.scaled_dot_product_attention

    def counted(*arguments, **named):
        calls.append(arguments)
        return kernel(*arguments, **named)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    scaled_dot_product_attention(*tensors(B, keys=keys, dtype=dtype), **options)
    assert len(calls) == times


def test_a_kernel_of_another_device_is_never_given_a_row_without_keys(monkeypatch):
    """Some kernels of PyTorch answer such a row with NaN; the one for the CPU does not."""
    monkeypatch.setattr("attention_lib.single_head._SAFE_KERNELS", ())

    def kernel(query, key, value, attn_mask, scale):
        assert attn_mask.any(dim=-1).all()
        return ((query @ key.mT) * scale).masked_fill(~attn_mask, -math.inf).softmax(-1) @ value

    monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    query, key, value = tensors(B, dtype=torch.float32)
    one_row = random_mask(B, L, S)
    one_row[:, 1] = False
    for mask in (one_row, torch.zeros(S, dtype=torch.bool)):
        expected = attention_weights(query, key, mask, scale=0.7) @ value
        actual = scaled_dot_product_attention(query, key, value, mask, scale=0.7)
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scale", [-1.0, 0.0, 0.7])
def test_the_kernel_gets_along_with_any_scale(scale, is_causal):
    query, key, value = tensors(B, H, keys=L, v=D)
    expected = scaled_dot_product_attention(query, key, value, None, is_causal, scale)
    single = [x.float() for x in (query, key, value)]
    actual = scaled_dot_product_attention(*single, None, is_causal, scale)
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("lead", [(), (B,), (B, H)])
@pytest.mark.parametrize("width", [D, 3 * D])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_kernel_of_the_cpu_gives_a_row_without_keys_nothing_by_itself(
    lead, width, dtype, monkeypatch
):
    """Outputs and gradients are the same numbers as where such rows are taken care of.

    The kernel works through the keys in blocks, so there are several, with some all masked.
    """
    keys = 1201
    query, key, value = tensors(*lead, keys=keys, v=width, dtype=dtype)
    mask = random_mask(L, keys)
    mask[1] = False
    mask[2, :900] = False
    mask[3, 7:] = False
    results = []
    for kernels in (("cpu",), ()):
        monkeypatch.setattr("attention_lib.single_head._SAFE_KERNELS", kernels)
        inputs = [x.detach().requires_grad_() for x in (query, key, value)]
        output = scaled_dot_product_attention(*inputs, mask)
        results.append((output, *torch.autograd.grad(output.square().sum(), inputs)))
    assert not results[0][0][..., 1, :].any()
    for safe, cared_for in zip(*results, strict=True):
        assert torch.equal(safe, cared_for)


@pytest.mark.parametrize("lead", [(), (B,), (B, H)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_nothing_changes_where_nobody_differentiates(lead, dtype):
    query, key, value = tensors(*lead, dtype=dtype)
    mask = random_mask(L, S)
    expected = scaled_dot_product_attention(query, key, value, mask, return_weights=True)
    with torch.no_grad():
        actual = scaled_dot_product_attention(query, key, value, mask, return_weights=True)
    for now, before in zip(actual, expected, strict=True):
        assert torch.equal(now, before)


def test_weights_take_the_memory_of_the_scores_where_nobody_differentiates():
    for differentiates in (False, True):
        scores = torch.randn(L, S)
        with torch.set_grad_enabled(differentiates):
            weights = _softmax(scores)
        assert (weights.data_ptr() == scores.data_ptr()) is not differentiates


def test_vmap_gives_the_same_with_and_without_gradients():
    query, key, _ = tensors(B)
    expected = attention_weights(query, key)
    for differentiates in (False, True):
        with torch.set_grad_enabled(differentiates):
            torch.testing.assert_close(torch.vmap(attention_weights)(query, key), expected)


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_causal_attention_stays_on_the_device_of_its_inputs(masked, return_weights):
    # the device "meta" has shapes and no numbers, and is on every machine
    query, key, value = (tensor.to("meta") for tensor in tensors(B, keys=L, dtype=torch.float32))
    mask = random_mask(L, L).to("meta") if masked else None
    result = scaled_dot_product_attention(
        query, key, value, mask, is_causal=True, return_weights=return_weights
    )
    for tensor in result if return_weights else (result,):
        assert tensor.device.type == "meta"


def test_layer_takes_values_of_their_own():
    torch.manual_seed(0)
    layer = SingleHeadAttention(D, 3, V)
    x, key, value = torch.randn(B, L, D), torch.randn(B, S, D), torch.randn(B, S, D)
    output, weights = layer(x, key, value, return_weights=True)
    torch.testing.assert_close(output, weights @ layer.v_proj(value))


@pytest.mark.refusal
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_layer_names_the_input_that_it_refuses(name):
    layer, inputs = SingleHeadAttention(D, 3), dict.fromkeys(["query", "key", "value"])
    inputs |= {"query": torch.ones(B, L, D)}
    with pytest.raises(TypeError) as caught:
        layer(**(inputs | {name: torch.ones(B, L, D).double()}))
    assert str(caught.value) == (
        "all inputs must have one dtype; "
        f"got the layer's weights torch.float32 and {name} torch.float64"
    )
    with pytest.raises(ValueError, match="wide") as caught:
        layer(**(inputs | {name: torch.ones(B, L, V)}))
    message = f"{name} must be embed_dim = 11 wide (last axis); got (2, 5, 13)"
    assert str(caught.value) == message


def test_layer_takes_half_precision_under_autocast():
    layer = SingleHeadAttention(D, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.ones(B, L, D).bfloat16()).dtype == torch.bfloat16


def test_dropout_of_1_drops_every_weight():
    output = scaled_dot_product_attention(*tensors(B), dropout_p=1.0)
    assert torch.equal(output, torch.zeros(B, L, V, dtype=torch.float64))


@pytest.mark.refusal
def test_refusal_of_is_causal_draws_both_masks_up_to_8_by_8():
    with pytest.raises(ValueError, match="is_causal") as caught:
        scaled_dot_product_attention(*tensors(length=9, keys=10), is_causal=True)
    rows = ["x" * seen + "." * (8 - seen) for seen in range(1, 9)]
    top_left, bottom_right = ("\n".join("    " + " ".join(row) for row in picture)
                              for picture in (rows, [*rows[1:], rows[-1]]))  # fmt: skip
    assert str(caught.value) == (
        "is_causal needs as many queries as keys; got L = 9, S = 10. Two masks could be meant "
        "(rows are queries, x = may attend). Pass the one you mean as mask=:\n"
        f'  causal_mask(L, S, align="top_left"):\n{top_left}\n'
        f'  causal_mask(L, S, align="bottom_right"), for decoding:\n{bottom_right}'
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("query", "key", "is_about_heads"),
    [
        ((B, 4), (B, 2), True),
        ((3, B, 4), (3, B, 2), True),
        ((B, 4), (1, 2), False),
        ((B,), (1,), False),
        ((B, 4), (B,), False),
        ((), (B, 4), False),
    ],
)
def test_way_out_for_fewer_key_heads_is_told_where_only_the_heads_differ(
    query, key, is_about_heads
):
    query, key, value = torch.ones(*query, L, D), torch.ones(*key, S, D), torch.ones(*query, S, V)
    with pytest.raises(ValueError, match="nothing is broadcast") as caught:
        scaled_dot_product_attention(query, key, value)
    hint = (
        " Where groups of query heads share a key/value head (num_kv_heads), repeat it for each of"
        " them first: key.repeat_interleave(query_heads // key_heads, dim=-3)."
    )
    assert str(caught.value) == (
        "all axes before the last two (batch, heads) must be the same, nothing is broadcast; "
        f"got query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}."
        + hint
        * is_about_heads
    )


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float32])
def test_numpy_attention_takes_integers_of_both_kinds_and_floats(dtype):
    rng = np.random.default_rng(0)
    shapes = (L, B, D), (3 * D, D), (D, D)
    arrays = [rng.integers(0, 3, size=shape) for shape in shapes]
    actual = numpy_attention(*(array.astype(dtype) for array in arrays))
    expected = numpy_attention(*(array.astype(float) for array in arrays))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.refusal
def test_numpy_attention_checks_the_bias_of_the_output_without_that_of_the_inputs():
    arrays = (np.zeros(shape) for shape in ((L, B, D), (3 * D, D), (D, D)))
    with pytest.raises(ValueError, match=r"^out_proj_bias must have shape \(11,\); got \(13,\)$"):
        numpy_attention(*arrays, None, np.zeros(V))


@pytest.mark.refusal
@pytest.mark.parametrize(("wrong", "got"), [([1.0], "list"), (np.ones(3, bool), "bool")])
def test_numpy_attention_says_what_is_no_array_of_numbers(wrong, got):
    message = f"^inputs must be a NumPy array of real numbers; got {got}$"
    with pytest.raises(TypeError, match=message):
        numpy_attention(wrong, np.ones((3, 1)), np.ones((1, 1)))


@pytest.mark.refusal
def test_function_takes_one_dtype_under_autocast_too():
    query, key, value = tensors(B, dtype=torch.float32)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(TypeError, match="all inputs must have one dtype"),
    ):
        scaled_dot_product_attention(query, key.bfloat16(), value)


@pytest.mark.refusal
def test_mask_of_numbers_is_refused_with_every_converter():
    with pytest.raises(TypeError, match="mask must be bool") as caught:
        attention_weights(torch.ones(L, D), torch.ones(S, D), torch.ones(L, S))
    assert str(caught.value) == (
        "mask must be bool with True = may attend; got torch.float32. "
        "From 1 = attend, 0 = blocked: from_ones_and_zeros(mask). From additive 0 = attend, "
        "-inf = blocked: from_additive(mask). From nn.MultiheadAttention, True = blocked: "
        "from_torch_attn_mask(mask) or from_key_padding_mask(mask), all in attention_lib.masks."
    )


def test_small_integers_do_not_wrap_around_in_the_numpy_function():
    rng = np.random.default_rng(0)
    whole = [rng.integers(0, 200, shape, np.uint8) for shape in ((3, 5, 4), (12, 4), (4, 4))]
    expected = numpy_attention(*(x.astype(np.float64) for x in whole))
    np.testing.assert_array_equal(numpy_attention(*whole), expected)
