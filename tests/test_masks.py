"""Chapter 6: masks by value, against loops, against PyTorch, and every report about them."""

import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from attention_lib import attention_weights, masks, scaled_dot_product_attention
from attention_lib.masks import (
    block_diagonal_mask,
    causal_mask,
    combine_masks,
    from_additive,
    from_key_padding_mask,
    from_ones_and_zeros,
    from_torch_attn_mask,
    padding_mask,
    segment_mask,
    to_additive,
    to_key_padding_mask,
    to_ones_and_zeros,
    to_torch_attn_mask,
    window_mask,
)

# every axis another prime, so that a swapped axis cannot pass
B, H, L, S, D = 2, 3, 5, 7, 11
SIZES = st.integers(0, 6)
ALIGNMENTS = st.sampled_from(["top_left", "bottom_right"])
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def rows(mask):
    """A small mask as text, one row a query: x = may attend, as the chapter prints it."""
    return ["".join("x" if allowed else "." for allowed in row) for row in mask.tolist()]


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_mask(*shape, seed=1):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.5


def by_loops(length, keys, may_attend):
    mask = torch.zeros(length, keys, dtype=torch.bool)
    for i in range(length):
        for j in range(keys):
            mask[i, j] = may_attend(i, j)
    return mask


def position(i, length, keys, align):
    """The key at which query i stands."""
    return i if align == "top_left" else i + keys - length


# ---------------------------------------------------------------------------- causal and window


def test_causal_mask_lets_a_query_see_itself_and_the_past():
    # M20, M21, M23: the diagonal belongs to the mask, and the triangle is the lower one
    assert rows(causal_mask(3)) == ["x..", "xx.", "xxx"]
    assert rows(causal_mask(1)) == ["x"]
    additive = torch.triu(torch.full((3, 3), -math.inf), 1)
    assert torch.equal(from_additive(additive), causal_mask(3))
    assert not (~torch.ones(3, 3).triu(0).bool())[0].any()  # offset 0: nothing for the first row


@pytest.mark.parametrize(
    ("length", "keys", "align", "expected"),
    [
        (2, 5, "top_left", ["x....", "xx..."]),
        (2, 5, "bottom_right", ["xxxx.", "xxxxx"]),
        (5, 2, "top_left", ["x.", "xx", "xx", "xx", "xx"]),
        (5, 2, "bottom_right", ["..", "..", "..", "x.", "xx"]),
        (1, 4, "bottom_right", ["xxxx"]),
    ],
)
def test_alignment_means_the_same_whichever_side_is_longer(length, keys, align, expected):
    # M05, M08
    assert rows(causal_mask(length, keys, align=align)) == expected


@given(length=SIZES, keys=SIZES, align=ALIGNMENTS)
def test_causal_mask_agrees_with_loops(length, keys, align):
    expected = by_loops(length, keys, lambda i, j: j <= position(i, length, keys, align))
    assert torch.equal(causal_mask(length, keys, align), expected)


@given(
    length=SIZES,
    keys=SIZES,
    align=ALIGNMENTS,
    left=st.none() | st.integers(0, 4),
    right=st.none() | st.integers(0, 4),
)
def test_window_mask_agrees_with_loops(length, keys, align, left, right):
    def near(i, j):
        step = j - position(i, length, keys, align)
        return (left is None or -step <= left) and (right is None or step <= right)

    mask = window_mask(length, left, right, keys, align)
    assert torch.equal(mask, by_loops(length, keys, near))


def test_window_is_counted_from_the_querys_own_key():
    assert rows(window_mask(4, left=1, right=1)) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert rows(window_mask(4, left=0, right=0)) == ["x...", ".x..", "..x.", "...x"]
    assert rows(window_mask(2, 1, 0, keys=4, align="bottom_right")) == [".xx.", "..xx"]
    assert window_mask(L, None, None, keys=S, align="top_left").all()


def test_last_query_of_bottom_right_is_one_step_of_decoding():
    query, key, value = normal(S, D, seed=1), normal(S, D, seed=2), normal(S, D, seed=3)
    whole = scaled_dot_product_attention(query, key, value, is_causal=True)
    step = causal_mask(2, S, align="bottom_right")
    torch.testing.assert_close(
        scaled_dot_product_attention(query[-2:], key, value, mask=step), whole[-2:]
    )


def test_causal_mask_is_what_is_causal_does_here_and_in_pytorch():
    # C06: there is a mask, is_causal makes it inside
    query, key, value = normal(B, L, D), normal(B, L, D, seed=1), normal(B, L, D, seed=2)
    expected = scaled_dot_product_attention(query, key, value, mask=causal_mask(L))
    for attention in (scaled_dot_product_attention, F.scaled_dot_product_attention):
        torch.testing.assert_close(attention(query, key, value, is_causal=True), expected)
    top_left = causal_mask(L, S, align="top_left")
    long_key, long_value = normal(B, S, D, seed=1), normal(B, S, D, seed=2)
    torch.testing.assert_close(
        F.scaled_dot_product_attention(query, long_key, long_value, is_causal=True),
        scaled_dot_product_attention(query, long_key, long_value, mask=top_left),
    )


# ---------------------------------------------------------------------------- padding and blocks


def test_padding_mask_hides_the_keys_behind_each_length():
    mask = padding_mask([2, 0, 3], keys=4)
    assert mask.shape == (3, 1, 1, 4)
    assert rows(mask[:, 0, 0]) == ["xx..", "....", "xxx."]
    assert torch.equal(padding_mask(torch.tensor([2, 3])), padding_mask([2, 3], keys=3))


def test_padding_mask_of_ids_hides_them_wherever_they_stand():
    ids = torch.tensor([[5, 9, 0, 0], [0, 0, 7, 5]])
    mask = padding_mask(ids, pad_id=0)
    assert mask.shape == (2, 1, 1, 4)
    assert rows(mask[:, 0, 0]) == ["xx..", "..xx"]
    assert rows(padding_mask([[5, -1]], pad_id=-1)[:, 0, 0]) == ["x."]


@given(st.lists(st.integers(0, 6), max_size=5), st.integers(6, 9))
def test_padding_mask_agrees_with_loops(lengths, keys):
    expected = by_loops(len(lengths), keys, lambda sample, j: j < lengths[sample])
    mask = padding_mask(lengths, keys)
    assert torch.equal(mask, expected[:, None, None, :])
    assert mask.sum().item() == sum(lengths)


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int16, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
)
def test_lengths_and_ids_may_be_integers_of_any_dtype(dtype):
    lengths = torch.tensor([2, 0, 1])
    for mask in (padding_mask, block_diagonal_mask, segment_mask):
        assert torch.equal(mask(lengths.to(dtype)), mask(lengths))
    ids = torch.tensor([[5, 3, 0]])
    assert torch.equal(padding_mask(ids.to(dtype), pad_id=3), padding_mask(ids, pad_id=3))


def test_padding_mask_of_no_sequences_is_empty():
    assert padding_mask([]).shape == (0, 1, 1, 0)
    assert padding_mask([], keys=3).shape == (0, 1, 1, 3)


def test_padding_mask_hides_columns_only():
    # M15, M29: the rows of padded positions keep their real keys, so that no row is empty
    mask = combine_masks(causal_mask(3), padding_mask([2, 3]))
    assert mask.shape == (2, 1, 3, 3)
    assert rows(mask[0, 0]) == ["x..", "xx.", "xx."]
    assert rows(mask[1, 0]) == ["x..", "xx.", "xxx"]


@every_float
def test_sample_of_length_0_gets_zeros(dtype):
    # M25: a random generator of lengths draws 0 at some time
    query = normal(3, H, L, D, dtype=dtype)
    mask = padding_mask([0, 2, L])
    output, weights = scaled_dot_product_attention(
        query, query, query, mask=mask, return_weights=True
    )
    assert (output[0] == 0).all()
    assert (weights[0] == 0).all()
    assert output.isfinite().all()
    alone = scaled_dot_product_attention(query[1:], query[1:], query[1:], mask=mask[1:])
    rounding = 4 * torch.finfo(dtype).eps  # one call by formula, one by the fused kernel
    torch.testing.assert_close(output[1:], alone, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("content", [1e30, -1e30, math.nan])
def test_padding_hides_every_finite_content_and_nan_spreads(content):
    # N03: 0 * NaN is NaN, here and in PyTorch
    query, key, value = (normal(B, 1, L, D, seed=seed, dtype=torch.float32) for seed in range(3))
    mask = padding_mask([L - 1, L])
    expected = scaled_dot_product_attention(query, key, value, mask=mask)
    key[0, :, -1] = value[0, :, -1] = content
    for attention, name in ((scaled_dot_product_attention, "mask"),
                            (F.scaled_dot_product_attention, "attn_mask")):  # fmt: skip
        output = attention(query, key, value, **{name: mask})
        assert output[0].isnan().all() if math.isnan(content) else output.isfinite().all()
        torch.testing.assert_close(output[1], expected[1])
        if not math.isnan(content):
            torch.testing.assert_close(output[0], expected[0])


def test_left_padding_with_a_causal_mask_leaves_rows_without_keys():
    mask = combine_masks(causal_mask(3), padding_mask([[0, 4, 4]], pad_id=0))
    assert rows(mask[0, 0]) == ["...", ".x.", ".xx"]


def test_block_diagonal_mask_keeps_packed_sequences_apart():
    assert rows(block_diagonal_mask([2, 1, 3])) == [
        "xx....", "xx....", "..x...", "...xxx", "...xxx", "...xxx"
    ]  # fmt: skip
    assert rows(block_diagonal_mask([1, 2], key_lengths=[3, 1])) == ["xxx.", "...x", "...x"]
    assert rows(block_diagonal_mask([2, 0, 1])) == ["xx.", "xx.", "..x"]
    assert block_diagonal_mask([]).shape == (0, 0)


@given(st.lists(st.integers(0, 3), max_size=4))
def test_packed_attention_is_attention_of_each_sequence_alone(lengths):
    x = normal(sum(lengths), D)
    mask = combine_masks(block_diagonal_mask(lengths), causal_mask(sum(lengths)))
    packed = scaled_dot_product_attention(x, x, x, mask=mask)
    parts = [scaled_dot_product_attention(p, p, p, is_causal=True) for p in x.split(lengths)]
    torch.testing.assert_close(packed, torch.cat([x[:0], *parts]))


@given(st.lists(st.integers(0, 2), max_size=5), st.lists(st.integers(0, 2), max_size=5))
def test_segment_mask_agrees_with_loops(segments, keys):
    expected = by_loops(len(segments), len(keys), lambda i, j: segments[i] == keys[j])
    assert torch.equal(segment_mask(segments, keys), expected)


def test_segment_mask_of_a_batch_is_ready_for_a_layer():
    mask = segment_mask([[0, 0, 1], [2, 1, 2]])
    assert mask.shape == (2, 1, 3, 3)
    assert rows(mask[0, 0]) == ["xx.", "xx.", "..x"]
    assert rows(mask[1, 0]) == ["x.x", ".x.", "x.x"]
    assert rows(segment_mask([[0], [1]], [[0, 1], [0, 1]]).flatten(0, 2)) == ["x.", ".x"]


# ---------------------------------------------------------------------------- combination


@given(st.data())
def test_combination_is_the_and_of_all_masks(data):
    full = (B, H, L, S)
    shapes = st.sampled_from([(S,), (L, S), full, (B, 1, 1, S), (1, H, L, 1), (1, 1, L, S)])
    chosen = data.draw(st.lists(shapes, min_size=1, max_size=4))
    parts = [random_mask(*shape, seed=seed) for seed, shape in enumerate(chosen)]
    combined = combine_masks(*parts)
    assert combined.shape == torch.broadcast_shapes(*chosen)
    assert combined.dtype == torch.bool
    for place in np.ndindex(full):
        expected = all(bool(part.expand(full)[place]) for part in parts)
        assert bool(combined.expand(full)[place]) == expected


def test_combination_does_not_depend_on_order_and_repeats_change_nothing():
    one, two = random_mask(L, S), random_mask(B, 1, 1, S, seed=2)
    assert torch.equal(combine_masks(one, two), combine_masks(two, one, two))
    assert torch.equal(combine_masks(one), one)
    assert combine_masks(one).data_ptr() != one.data_ptr()


def test_mask_and_is_causal_are_combined():
    # A08: PyTorch's math path refuses both at once
    query = normal(B, H, L, D)
    padding = padding_mask([3, L])
    both = scaled_dot_product_attention(query, query, query, mask=padding, is_causal=True)
    combined = combine_masks(padding, causal_mask(L))
    torch.testing.assert_close(both, scaled_dot_product_attention(query, query, query, combined))


def test_mask_may_have_as_many_axes_as_the_query_and_broadcasts_over_all_but_the_width():
    # M18: with five axes, as with grouped heads, the padding mask needs five as well
    query, key = normal(B, 3, 2, L, D), normal(B, 3, 2, S, D, seed=1)
    padding = padding_mask([2, S])[:, None]
    weights = attention_weights(
        query, key, combine_masks(padding, window_mask(L, 1, 1, S, "top_left"))
    )
    for sample, length in enumerate([2, S]):
        for i in range(L):
            allowed = weights[sample, :, :, i] > 0
            expected = [abs(i - j) <= 1 and j < length for j in range(S)]
            assert (allowed == torch.tensor(expected)).all()


def test_mask_is_made_for_the_length_that_is_asked_for():
    # M27: no buffer with a largest length
    assert causal_mask(1000)[999].all()
    assert padding_mask([16], keys=16).all()


# ---------------------------------------------------------------------------- additive


@every_float
def test_additive_mask_is_0_or_minus_infinity_in_every_float_dtype(dtype):
    # N07: -1e9 is out of the range of float16
    additive = to_additive(causal_mask(2), dtype)
    assert additive.dtype == dtype
    assert additive.tolist() == [[0, -math.inf], [0, 0]]
    if dtype == torch.float16:
        with pytest.raises(RuntimeError, match="overflow"):
            additive.masked_fill(causal_mask(2), -1e9)


@every_float
def test_sum_of_two_additive_masks_is_the_additive_mask_of_both(dtype):
    # N17: the lowest finite number twice overflows, or leaves a row that leaks
    one, two = (
        causal_mask(4),
        combine_masks(window_mask(4, 1, 1), padding_mask([[3, 3, 0, 3]], pad_id=0))[0, 0],
    )
    both = to_additive(one, dtype) + to_additive(two, dtype)
    assert torch.equal(both, to_additive(combine_masks(one, two), dtype))
    scores = 20 * normal(4, 4, dtype=dtype)
    weights = (scores + both).softmax(dim=-1)
    assert weights.isfinite().all()
    assert torch.equal(weights > 0, one & two)


@every_float
def test_pytorch_gives_the_same_for_the_bool_and_the_additive_mask(dtype):
    query, key = normal(B, H, L, D, dtype=dtype), normal(B, H, S, D, seed=1, dtype=dtype)
    mask = random_mask(B, 1, L, S)
    mask[0, 0, 2] = False
    results = [
        F.scaled_dot_product_attention(query, key, key, attn_mask=form)
        for form in (mask, to_additive(mask, dtype))
    ]
    torch.testing.assert_close(*results)
    assert (results[1][0, :, 2] == 0).all()


@every_float
def test_weight_behind_an_additive_mask_is_0_however_low_the_other_scores_are(dtype):
    # N07: -1e4 in place of -inf is undercut by such scores
    scores = torch.tensor([-6e4, 3e4], dtype=dtype)
    additive = to_additive(torch.tensor([True, False]), dtype)
    assert (scores + additive).softmax(-1).tolist() == [1, 0]


def test_row_of_the_lowest_finite_number_is_uniform_and_bool_gives_0():
    # N17
    query, value = torch.zeros(1, 4), torch.arange(3.0)[:, None]
    lowest = torch.full((1, 3), torch.finfo(torch.float32).min)
    key = torch.zeros(3, 4)
    uniform = F.scaled_dot_product_attention(query, key, value, attn_mask=lowest)
    assert uniform.item() == pytest.approx(1)
    mask = from_additive(lowest)
    assert not mask.any()
    assert scaled_dot_product_attention(query, key, value, mask=mask).item() == 0
    assert (lowest + lowest).softmax(-1).isnan().all()
    assert torch.equal(from_additive(lowest + lowest), mask)


@given(st.lists(st.booleans(), max_size=8), st.sampled_from(FLOATS))
def test_additive_form_and_back_is_the_mask(bits, dtype):
    mask = torch.tensor(bits, dtype=torch.bool)
    assert torch.equal(from_additive(to_additive(mask, dtype)), mask)


@every_float
def test_additive_masks_of_others_are_read(dtype):
    lowest = torch.finfo(dtype).min
    fills = [-math.inf, lowest, -1e4, -1000.0, *([] if dtype == torch.float16 else [-1e9, -1e20])]
    read = from_additive(torch.tensor([0.0, -0.0, *fills], dtype=dtype))
    assert read.tolist() == [True, True] + [False] * len(fills)


# ---------------------------------------------------------------------------- ones and zeros


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32, torch.float16])
def test_ones_and_zeros_and_back_is_the_mask(dtype):
    mask = random_mask(B, L, S)
    numbers = to_ones_and_zeros(mask, dtype)
    assert numbers.dtype == dtype
    assert numbers.sum().item() == mask.sum().item()
    assert torch.equal(from_ones_and_zeros(numbers), mask)


def test_hugging_face_mask_becomes_a_padding_mask():
    attention_mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    mask = from_ones_and_zeros(attention_mask)[:, None, None, :]
    assert torch.equal(mask, padding_mask([2, 3]))
    assert torch.equal(to_ones_and_zeros(mask[:, 0, 0]), attention_mask)


# ---------------------------------------------------------------------------- PyTorch's layer


def layer_weights(*, attn_mask=None, key_padding_mask=None, length=L, keys=S):
    """Per-head weights (B, H, length, keys) of PyTorch's layer, float64, train mode."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(12, H, batch_first=True, dtype=torch.float64)
    query, key = normal(B, length, 12, seed=1), normal(B, keys, 12, seed=2)
    _, weights = module(
        query, key, key, attn_mask=attn_mask, key_padding_mask=key_padding_mask,
        average_attn_weights=False,
    )  # fmt: skip
    return weights


def with_a_key(mask):
    """The mask with the first key allowed to all: PyTorch's layer gives NaN for a row without."""
    return mask | (torch.arange(mask.shape[-1]) == 0)


@pytest.mark.parametrize("shape", [(L, S), (B, L, S), (B, 1, L, S), (B, H, L, S)])
def test_converted_mask_blocks_in_pytorchs_layer_what_it_blocks_here(shape):
    # M01: the same mask through every entry point; here True = may attend, there True = blocked
    mask = with_a_key(random_mask(*shape))
    meant = (mask[:, None] if mask.ndim == 3 else mask).expand(B, H, L, S)
    converted = to_torch_attn_mask(mask, num_heads=H)
    assert converted.shape == ((L, S) if mask.ndim == 2 else (B * H, L, S))
    assert torch.equal(layer_weights(attn_mask=converted) > 0, meant)
    query, key = normal(B, H, L, D), normal(B, H, S, D, seed=1)
    here = attention_weights(query, key, meant)
    assert torch.equal(here > 0, meant)
    identity = torch.eye(S, dtype=torch.float64).expand(B, H, S, S)
    for output in (
        scaled_dot_product_attention(query, key, identity, mask=meant),
        scaled_dot_product_attention(query, key, identity, mask=meant, return_weights=True)[0],
        F.scaled_dot_product_attention(query, key, identity, attn_mask=meant),
        F.scaled_dot_product_attention(query, key, identity, to_additive(meant, query.dtype)),
    ):
        torch.testing.assert_close(output, here)


@pytest.mark.parametrize("shape", [(L, S), (B, L, S), (B, 1, L, S), (B, H, L, S)])
def test_attn_mask_of_pytorchs_layer_and_back_is_the_mask(shape):
    mask = random_mask(*shape)
    back = from_torch_attn_mask(to_torch_attn_mask(mask, num_heads=H), num_heads=H)
    expected = mask if mask.ndim == 2 else (mask[:, None] if mask.ndim == 3 else mask)
    assert torch.equal(back, expected if mask.ndim == 2 else expected.expand(B, H, L, S))


def test_two_masks_of_pytorchs_layer_are_one_mask_here():
    # C07: attn_mask and key_padding_mask; M14: two bool masks, and no warning
    causal, padding = causal_mask(S), padding_mask([3, S])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights = layer_weights(
            attn_mask=to_torch_attn_mask(causal),
            key_padding_mask=to_key_padding_mask(padding),
            length=S,
        )
    combined = combine_masks(causal, padding)
    assert torch.equal(weights > 0, combined.expand(B, H, S, S))
    one = layer_weights(attn_mask=to_torch_attn_mask(combined, num_heads=H), length=S)
    torch.testing.assert_close(one, weights)


def test_key_padding_mask_and_back_is_the_padding_mask():
    padding = padding_mask([3, 1], keys=S)
    converted = to_key_padding_mask(padding)
    assert rows(~converted) == ["xxx....", "x......"]
    assert torch.equal(from_key_padding_mask(converted), padding)
    assert torch.equal(layer_weights(key_padding_mask=converted) > 0, padding.expand(B, H, L, S))


def test_float_masks_of_pytorchs_layer_are_read_as_it_reads_them():
    # M11: a float padding mask beside a causal mask; the masked weights are 0
    additive = torch.nn.Transformer.generate_square_subsequent_mask(S, dtype=torch.float64)
    assert torch.equal(from_torch_attn_mask(additive), causal_mask(S))
    padding = to_additive(padding_mask([3, S])[:, 0, 0], torch.float64)
    read = combine_masks(from_torch_attn_mask(additive), from_key_padding_mask(padding))
    weights = layer_weights(attn_mask=additive, key_padding_mask=padding, length=S)
    assert torch.equal(weights > 0, read.expand(B, H, S, S))


def test_heads_of_one_sample_stand_together_in_a_mask_of_three_axes():
    mask = torch.tensor([[[True, False]], [[False, True]]])
    assert rows(~to_torch_attn_mask(mask, num_heads=2).flatten(1)) == ["x.", "x.", ".x", ".x"]


# ---------------------------------------------------------------------------- all of them

CALLS = {
    combine_masks: (random_mask(L, S),),
    to_additive: (random_mask(L, S),),
    from_additive: (to_additive(random_mask(L, S)),),
    to_ones_and_zeros: (random_mask(L, S),),
    from_ones_and_zeros: (to_ones_and_zeros(random_mask(L, S)),),
    to_torch_attn_mask: (random_mask(B, H, L, S), H),
    from_torch_attn_mask: (random_mask(B * H, L, S), H),
    to_key_padding_mask: (random_mask(B, 1, 1, S),),
    from_key_padding_mask: (random_mask(B, S),),
    padding_mask: (torch.tensor([3, 1]),),
    block_diagonal_mask: (torch.tensor([3, 1]),),
    segment_mask: (torch.tensor([3, 1]),),
}


def test_bool_ones_and_zeros_are_a_copy():
    mask = random_mask(L, S)
    assert torch.equal(to_ones_and_zeros(mask, torch.bool).logical_not_(), ~mask)


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_arguments_stay_as_they_were_and_results_share_no_memory(function):
    argument, *rest = CALLS[function]
    before = argument.clone()
    result = function(argument, *rest)
    result.logical_not_()
    assert torch.equal(argument, before)


def test_masks_live_where_their_arguments_live():
    meta = torch.device("meta")
    assert causal_mask(3, device="meta").device == meta
    assert window_mask(3, 1, 1, device="meta").device == meta
    mask = torch.ones(B, 1, L, S, dtype=torch.bool, device="meta")
    ids = torch.ones(B, S, dtype=torch.long, device="meta")
    for result in (
        padding_mask(ids, pad_id=0),
        segment_mask(ids),
        combine_masks(mask, mask),
        to_additive(mask),
        to_torch_attn_mask(mask, H),
        to_key_padding_mask(mask[:, :, :1]),
    ):
        assert result.device == meta


def test_masks_of_lengths_live_with_the_lengths_wherever_others_are_made():
    lengths = torch.tensor([3, 1])
    with torch.device("meta"):
        assert padding_mask(lengths).device.type == "cpu"
        assert block_diagonal_mask(lengths).device.type == "cpu"


FLOAT, INTS = torch.zeros(L, S), torch.ones(L, S).long()
NOT_BOOL = [combine_masks, to_additive, to_ones_and_zeros, to_torch_attn_mask, to_key_padding_mask]


@pytest.mark.refusal
@pytest.mark.parametrize("function", NOT_BOOL, ids=lambda function: function.__name__)
@pytest.mark.parametrize(
    ("mask", "got"),
    [(FLOAT, "torch.float32"), (INTS, "torch.int64"), (np.ones(3, bool), "ndarray")],
)
def test_mask_that_is_not_bool_is_refused_with_the_converter_it_needs(function, mask, got):
    with pytest.raises(TypeError) as caught:
        function(mask)
    assert f"mask must be a bool tensor, True = may attend; got {got}." in str(caught.value)
    for name in ("from_ones_and_zeros", "from_additive", "from_torch_attn_mask",
                 "from_key_padding_mask"):  # fmt: skip
        assert name in str(caught.value)
        assert callable(getattr(masks, name))


REFUSED = [
    (
        lambda: causal_mask(2, 4),
        ValueError,
        "align must be said where L = 2 and S = 4 differ: 'top_left' (query i stands at key "
        "i) or 'bottom_right' (the last query stands at the last key, decoding)",
    ),
    (
        lambda: causal_mask(4, 2),
        ValueError,
        "align must be said where L = 4 and S = 2 differ: 'top_left' (query i stands at key "
        "i) or 'bottom_right' (the last query stands at the last key, decoding)",
    ),
    (
        lambda: causal_mask(2, 2, "left"),
        ValueError,
        "align must be one of ('top_left', 'bottom_right'); got 'left'",
    ),
    (lambda: causal_mask(2.0), TypeError, "length must be an integer; got 2.0"),
    (lambda: causal_mask(True), TypeError, "length must be an integer; got True"),
    (lambda: causal_mask(-1), ValueError, "length must be at least 0; got -1"),
    (lambda: causal_mask(1, -1), ValueError, "keys must be at least 0; got -1"),
    (lambda: window_mask(3, -1, 0), ValueError, "left must be at least 0; got -1"),
    (lambda: window_mask(3, 0, 0.5), TypeError, "right must be an integer; got 0.5"),
    (lambda: padding_mask(3), TypeError, "lengths must be a tensor or a list of integers; got int"),
    (lambda: padding_mask([2.0]), TypeError, "lengths must be integers; got torch.float32"),
    (lambda: padding_mask([True]), TypeError, "lengths must be integers; got torch.bool"),
    (
        lambda: padding_mask([[1, 0]]),
        ValueError,
        "lengths must have shape (n,), one number for each sequence; for token ids say which "
        "pad_id; got (1, 2)",
    ),
    (lambda: padding_mask([-1]), ValueError, "lengths must not be negative; got -1"),
    (
        lambda: padding_mask([16], keys=8),
        ValueError,
        "no length may be larger than keys = 8; got 16",
    ),  # M27
    (
        lambda: padding_mask([1, 0], pad_id=0),
        ValueError,
        "ids with pad_id must have shape (batch, S); got (2,)",
    ),
    (
        lambda: padding_mask([[1]], 3, pad_id=0),
        ValueError,
        "ids say how many keys there are; keys = 3 is not needed",
    ),
    (
        lambda: block_diagonal_mask([[1]]),
        ValueError,
        "lengths must have shape (n,), one number for each sequence; got (1, 1)",
    ),
    (lambda: block_diagonal_mask([-1]), ValueError, "lengths must not be negative; got -1"),
    (
        lambda: block_diagonal_mask([1], [1, 2]),
        ValueError,
        "queries and keys must be packed from the same number of sequences; got 1 and 2",
    ),
    (
        lambda: block_diagonal_mask([1], [-2]),
        ValueError,
        "key_lengths must not be negative; got -2",
    ),
    (lambda: segment_mask([0.5]), TypeError, "segments must be integers; got torch.float32"),
    (
        lambda: segment_mask([[[0]]]),
        ValueError,
        "segments must have shape (L,) or (batch, L); got (1, 1, 1)",
    ),
    (
        lambda: segment_mask([0], [[[0]]]),
        ValueError,
        "key_segments must have shape (S,) or (batch, S); got (1, 1, 1)",
    ),
    (
        lambda: segment_mask([[0]], [0]),
        ValueError,
        "segments and key_segments must have the same batch size; got (1, 1) and (1,)",
    ),
    (lambda: combine_masks(), ValueError, "combine_masks needs at least one mask"),
    (
        lambda: combine_masks(random_mask(B, L, S), random_mask(B, 1, 1, S)),
        ValueError,
        "masks of more than two axes must all have the same number of axes; got (2, 5, 7), "
        "(2, 1, 1, 7). A (batch, L, S) mask for all heads is mask[:, None].",
    ),
    (
        lambda: combine_masks(random_mask(L, S), random_mask(S, S)),
        ValueError,
        "masks must have the same size, or 1, on axis -2; got (5, 7), (7, 7)",
    ),
    (
        lambda: combine_masks(random_mask(L, S), random_mask(L, L)),
        ValueError,
        "masks must have the same size, or 1, on axis -1; got (5, 7), (5, 5)",
    ),
    (
        lambda: combine_masks(causal_mask(2), causal_mask(2, device="meta")),
        ValueError,
        "all masks must be on one device; got cpu, meta",
    ),
    (
        lambda: to_additive(causal_mask(2), torch.int64),
        TypeError,
        "dtype must be a float dtype of 16, 32 or 64 bits; got torch.int64",
    ),
    (
        lambda: from_additive(INTS),
        TypeError,
        "an additive mask must be a float tensor; got torch.int64. 1 = attend, 0 = blocked: "
        "from_ones_and_zeros. 0 = attend, -inf = blocked: from_additive. "
        "nn.MultiheadAttention's True = blocked: from_torch_attn_mask or "
        "from_key_padding_mask.",
    ),
    # M13: 0. and 1. as floats are a mild bias for PyTorch, and no mask
    (
        lambda: from_additive(torch.tensor([0.0, 1.0])),
        ValueError,
        "every entry of a mask must be 0 or at most -1000; got 1. from_ones_and_zeros takes 1/0.",
    ),
    (
        lambda: from_additive(torch.tensor([-5.0])),
        ValueError,
        "every entry of a mask must be 0 or at most -1000; got -5. from_ones_and_zeros takes 1/0.",
    ),
    (
        lambda: from_additive(torch.tensor([-999.0])),
        ValueError,
        "every entry of a mask must be 0 or at most -1000; got -999. from_ones_and_zeros "
        "takes 1/0.",
    ),
    (
        lambda: from_additive(torch.tensor([math.nan])),
        ValueError,
        "every entry of a mask must be 0 or at most -1000; got nan. from_ones_and_zeros takes 1/0.",
    ),
    (
        lambda: from_ones_and_zeros(causal_mask(2)),
        TypeError,
        "a mask of ones and zeros must be a tensor of numbers; got torch.bool. A bool mask "
        "with True = may attend is used as it is.",
    ),
    (
        lambda: from_ones_and_zeros([1, 0]),
        TypeError,
        "a mask of ones and zeros must be a tensor of numbers; got list. A bool mask with "
        "True = may attend is used as it is.",
    ),
    (
        lambda: from_ones_and_zeros(torch.tensor([0.0, -math.inf])),
        ValueError,
        "every entry of a mask must be 0 or 1; got -inf. from_additive takes 0/-inf.",
    ),
    (
        lambda: to_torch_attn_mask(random_mask(B, L, S)),
        ValueError,
        "mask must have shape (L, S), or with num_heads (batch, L, S) or (batch, num_heads or"
        " 1, L, S); got (2, 5, 7) and num_heads = None",
    ),
    (
        lambda: to_torch_attn_mask(random_mask(S), H),
        ValueError,
        "mask must have shape (L, S), or with num_heads (batch, L, S) or (batch, num_heads or"
        " 1, L, S); got (7,) and num_heads = 3",
    ),
    (
        lambda: to_torch_attn_mask(random_mask(B, 2, L, S), H),
        ValueError,
        "mask must have shape (L, S), or with num_heads (batch, L, S) or (batch, num_heads or"
        " 1, L, S); got (2, 2, 5, 7) and num_heads = 3",
    ),
    (
        lambda: from_torch_attn_mask(INTS),
        TypeError,
        "attn_mask must be a bool or a float tensor; got torch.int64",
    ),
    (
        lambda: from_torch_attn_mask(random_mask(6, L, S)),
        ValueError,
        "attn_mask must have shape (L, S), or with num_heads (batch * num_heads, L, S); got "
        "(6, 5, 7) and num_heads = None",
    ),
    (
        lambda: from_torch_attn_mask(random_mask(7, L, S), H),
        ValueError,
        "attn_mask must have shape (L, S), or with num_heads (batch * num_heads, L, S); got "
        "(7, 5, 7) and num_heads = 3",
    ),
    (
        lambda: to_key_padding_mask(causal_mask(3)),
        ValueError,
        "a padding mask must have shape (batch, 1, 1, S), one row of keys for each sample; "
        "got (3, 3)",
    ),
    (
        lambda: to_key_padding_mask(random_mask(B, 1, L, S)),
        ValueError,
        "a padding mask must have shape (batch, 1, 1, S), one row of keys for each sample; "
        "got (2, 1, 5, 7)",
    ),
    (
        lambda: from_key_padding_mask(random_mask(S)),
        ValueError,
        "key_padding_mask must have shape (batch, S); got (7,)",
    ),
    (
        lambda: from_key_padding_mask(np.ones(2)),
        TypeError,
        "key_padding_mask must be a bool or a float tensor; got ndarray",
    ),
]


@pytest.mark.refusal
@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_what_does_not_fit_is_refused_with_rule_and_what_came(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_float_of_zeros_and_ones_is_a_mild_bias_in_pytorch():
    # M13: which is why a float mask is refused here
    query, key = torch.zeros(1, 1, 4), torch.zeros(1, 2, 4)
    bias = torch.tensor([[0.0, 1.0]])
    weights = F.scaled_dot_product_attention(query, key, torch.eye(2)[None], attn_mask=bias)
    torch.testing.assert_close(weights, torch.tensor([[[0.2689, 0.7311]]]), rtol=0, atol=1e-4)
    mask = from_ones_and_zeros(bias)
    assert attention_weights(query, key, mask).tolist() == [[[0, 1]]]
