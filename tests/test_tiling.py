"""Chapter 13: blocks give what the whole matrix gives, forward and backward, in linear memory."""

import math
import os
import subprocess
import sys
from collections import defaultdict
from contextlib import contextmanager
from functools import partial, wraps
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attention_lib
from attention_lib import (
    causal_mask,
    flash_attention,
    online_softmax,
    scaled_dot_product_attention,
    tiled_attention,
    tiling,
    window_mask,
)

DEVICE = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

# every axis another prime, and several blocks that the lengths do not fill
B, H, L, S, D, V, BLOCK = 2, 3, 17, 13, 11, 7, 5
HALF = (torch.float16, torch.bfloat16)
ON_KERNEL = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]


def tensors(*lead, length=L, keys=S, d=D, v=V, dtype=torch.float64, seed=0, key_lead=None):
    """Query, key and value that ask for gradients."""
    rng, key_lead = torch.Generator().manual_seed(seed), lead if key_lead is None else key_lead
    shapes = (*lead, length, d), (*key_lead, keys, d), (*key_lead, keys, v)
    made = [torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) for shape in shapes]
    return [tensor.requires_grad_() for tensor in made]


def random_mask(*shape, share=0.5, seed=1):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


def with_gradients(function, inputs, seed=2):
    """Outputs of the function, then gradients for random gradients of the outputs."""
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    rng = torch.Generator().manual_seed(seed)
    random = [torch.randn(o.shape, generator=rng, dtype=torch.float64).to(o) for o in outputs]
    return *outputs, *torch.autograd.grad(outputs, inputs, random)


def formula_with_lse(query, key, value, allowed=None, scale=None):
    """The definition: all scores, their logarithm of the sum of exponentials, and the average."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(dim=-1) @ value, scores.logsumexp(dim=-1)


def assert_equal(actual, expected, tolerance):
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=tolerance, atol=tolerance)


# The online softmax


def by_loops(scores, values):
    """Average and log-sum-exp of every row, number by number."""
    average, lse = torch.zeros(len(scores), values.shape[1]).double(), []
    for i, row in enumerate(scores.tolist()):
        top = max(row)
        terms = [0.0 if s == -math.inf else math.exp(s - top) for s in row]
        for weight, value in zip(terms, values, strict=True):
            average[i] += weight / (sum(terms) or 1) * value
        lse.append(top + math.log(sum(terms)) if sum(terms) else -math.inf)
    return average, torch.tensor(lse, dtype=torch.float64)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    rows=st.integers(1, 3),
    hidden=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    factor=st.sampled_from([1.0, 500.0]),
    seed=st.integers(0, 99),
)
def test_online_softmax_agrees_with_loops_from_the_definition(sizes, rows, hidden, factor, seed):
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, sum(sizes), generator=rng, dtype=torch.float64) * factor
    scores = scores.masked_fill(random_mask(*scores.shape, share=hidden, seed=seed), -math.inf)
    values = torch.randn(sum(sizes), V, generator=rng, dtype=torch.float64)
    before = scores.clone(), values.clone()
    blocks = zip(scores.split(sizes, dim=1), values.split(sizes), strict=True)
    assert_equal(online_softmax(blocks), by_loops(scores, values), 1e-12)
    assert torch.equal(scores, before[0])
    assert torch.equal(values, before[1])


def test_online_softmax_sees_one_block_at_a_time():
    seen = []

    def blocks():
        for start in range(0, 6, 2):
            seen.append(start)
            yield torch.zeros(1, 2), torch.full((2, 1), float(start))

    average, lse = online_softmax(blocks())
    assert seen == [0, 2, 4]
    assert average.item() == pytest.approx(2)
    assert lse.item() == pytest.approx(math.log(6))


def refuses(error, message, call, *args, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert str(caught.value) == message


@pytest.mark.refusal
def test_online_softmax_refuses_no_block_and_blocks_that_do_not_fit():
    message = "online_softmax needs at least one block of scores and values; got none"
    refuses(ValueError, message, online_softmax, [])
    rule = (
        "a block needs scores (..., L, n) and values (..., n, v) with the same leading axes and "
        "the same n of at least 1"
    )
    for scores, values in [
        ((3, 2), (5, 1)), ((3, 0), (0, 1)), ((3,), (3, 1)), ((2, 3), (3,)), ((2, 1, 3), (3, 1)),
        ((2, 1, 3), (1, 3, 1)),
    ]:  # fmt: skip
        message = f"{rule}; got {scores} and {values}"
        refuses(ValueError, message, online_softmax, [(torch.zeros(scores), torch.zeros(values))])
    message = "blocks must have one device; got scores cpu and values meta"
    one = torch.ones(1, 1)
    refuses(ValueError, message, online_softmax, [(one, one.to("meta"))])


@pytest.mark.refusal
def test_online_softmax_refuses_a_block_that_is_unlike_the_first():
    first = torch.zeros(4, 2, 3), torch.zeros(4, 3, 5)
    rule = "all blocks must have the same dtype, device and (..., L, v); got"
    rule = f"{rule} (torch.float32, 'cpu', (4, 2, 5)), then"
    for scores, values, got in [
        ((4, 1, 3), (4, 3, 5), (4, 1, 5)),
        ((1, 2, 3), (1, 3, 5), (1, 2, 5)),
        ((4, 2, 3), (4, 3, 1), (4, 2, 1)),
        ((2, 3), (3, 5), (2, 5)),
    ]:
        message = f"{rule} (torch.float32, 'cpu', {got})"
        second = torch.zeros(scores), torch.zeros(values)
        refuses(ValueError, message, online_softmax, [first, second])
    message = f"{rule} (torch.float64, 'cpu', (4, 2, 5))"
    refuses(TypeError, message, online_softmax, [first, [x.double() for x in first]])
    message = f"{rule} (torch.float32, 'meta', (4, 2, 5))"
    refuses(ValueError, message, online_softmax, [first, [x.to("meta") for x in first]])


@pytest.mark.refusal
def test_online_softmax_refuses_what_are_no_blocks():
    rule, one = "blocks must be pairs of scores and values; got", torch.ones(1, 1)
    refuses(TypeError, f"{rule} int", online_softmax, 3)
    refuses(TypeError, f"{rule} int", online_softmax, [3])
    refuses(TypeError, f"{rule} tuple", online_softmax, [(one, one, one)])
    message = "scores of the blocks must be a torch.Tensor; got float"
    refuses(TypeError, message, online_softmax, [(1.0, one)])
    message = "scores of the blocks must have a real floating dtype; got torch.int64"
    refuses(TypeError, message, online_softmax, [(one.long(), one)])
    message = "values of the blocks must be a torch.Tensor; got float"
    refuses(TypeError, message, online_softmax, [(one, 1.0)])
    message = "blocks must have one dtype; got scores torch.float32 and values torch.float64"
    refuses(TypeError, message, online_softmax, [(one, one.double())])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_online_softmax_sums_half_precision_in_float32(dtype):
    # 70,000 exponentials of 1: beyond the range of one dtype, and of the digits of the other
    blocks = [(torch.zeros(1, 1000, dtype=dtype), torch.ones(1000, 1, dtype=dtype))] * 70
    average, lse = online_softmax(blocks)
    assert (average.dtype, lse.dtype) == (dtype, torch.float32)
    assert average.item() == 1
    assert lse.item() == pytest.approx(math.log(70_000), rel=1e-6)


def test_online_softmax_takes_lists_as_pairs():
    average, lse = online_softmax([[torch.zeros(1, 1), torch.ones(1, 1)]])
    assert (average.item(), lse.item()) == (1, 0)


# Agreement in float64


@given(
    length=st.integers(0, 12),
    keys=st.integers(0, 12),
    block_size=st.integers(1, 13),
    share=st.sampled_from([None, 0.1, 0.5, 0.9]),
    is_causal=st.booleans(),
    scale=st.sampled_from([None, 0.0, 0.3, -1.0]),
    seed=st.integers(0, 99),
)
def test_tiled_attention_is_the_formula_at_any_length_and_block_size(
    length, keys, block_size, share, is_causal, scale, seed
):
    keys = length if is_causal else keys
    inputs = tensors(B, length=length, keys=keys, seed=seed)
    mask = None if share is None else random_mask(length, keys, share=share, seed=seed)
    options = {"mask": mask, "is_causal": is_causal, "scale": scale}
    expected = with_gradients(lambda *x: scaled_dot_product_attention(*x, **options), inputs)
    actual = with_gradients(
        lambda *x: tiled_attention(*x, **options, block_size=block_size), inputs
    )
    assert_equal(actual, expected, 1e-10)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(L,), (L, L), (B, H, L, L), (1, H, L, L), (B, 1, 1, L), (B, 1, L, 1), (1, 1, 1, 1)],
)
def test_mask_of_any_rank_is_the_formulas(shape, is_causal):
    inputs = tensors(B, H, keys=L)
    mask = random_mask(*shape, share=0.6)
    options = {"mask": mask, "is_causal": is_causal}
    expected = with_gradients(lambda *x: scaled_dot_product_attention(*x, **options), inputs)
    actual = with_gradients(lambda *x: tiled_attention(*x, **options, block_size=BLOCK), inputs)
    assert_equal(actual, expected, 1e-10)


@pytest.mark.parametrize("lead", [(), (B,), (B, H), (2, B, H), (0, H)])
def test_any_number_of_leading_axes(lead):
    inputs = tensors(*lead)
    expected = with_gradients(lambda *x: formula_with_lse(*x), inputs)
    actual = with_gradients(
        lambda *x: tiled_attention(*x, block_size=BLOCK, return_lse=True), inputs
    )
    assert_equal(actual, expected, 1e-10)


def test_derivatives_are_those_of_finite_differences():
    inputs, mask = tensors(B, length=5, keys=5, d=3, v=2), random_mask(5, 5, share=0.8)
    mask[2] = False

    def function(*x):
        output, lse = tiled_attention(*x, mask, is_causal=True, block_size=2, return_lse=True)
        return output, lse.masked_fill(lse == -math.inf, 0.0)

    assert torch.autograd.gradcheck(function, inputs)


def test_log_sum_exp_is_that_of_the_scores_and_has_gradients():
    inputs, mask = tensors(B, H), random_mask(L, S, share=0.7) | torch.eye(L, S).bool()
    mask[-4:] = True
    expected = with_gradients(lambda *x: formula_with_lse(*x, allowed=mask, scale=0.4), inputs)
    actual = with_gradients(
        lambda *x: tiled_attention(*x, mask, scale=0.4, block_size=BLOCK, return_lse=True), inputs
    )
    assert_equal(actual, expected, 1e-10)


def test_two_halves_of_the_keys_are_put_together_by_their_log_sum_exp():
    query, key, value = tensors(B)
    parts = [
        tiled_attention(query, k, v, return_lse=True, block_size=BLOCK)
        for k, v in zip(key.split(8, dim=-2), value.split(8, dim=-2), strict=True)
    ]
    share = torch.stack([lse for _, lse in parts]).softmax(dim=0).unsqueeze(-1)
    together = sum(part * output for part, (output, _) in zip(share, parts, strict=True))
    torch.testing.assert_close(together, tiled_attention(query, key, value))


# Rows without keys, empty sequences, extreme numbers


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF])
def test_query_that_may_attend_to_nothing_gets_zeros_and_finite_gradients(dtype):
    inputs = tensors(B, H, dtype=dtype)
    mask = random_mask(B, 1, L, S)
    mask[0, :, 1] = mask[1, :, 5:12] = False  # the second: whole blocks of queries
    output, lse = tiled_attention(*inputs, mask, block_size=BLOCK, return_lse=True)
    for rows in (output[0, :, 1], output[1, :, 5:12]):
        assert (rows == 0).all()
    assert (lse[0, :, 1] == -math.inf).all()
    assert lse.isneginf().sum() == (~mask.any(-1)).sum() * H
    output.sum().backward()
    assert all(x.grad.isfinite().all() for x in inputs)
    assert (inputs[0].grad[0, :, 1] == 0).all()


def test_rows_whose_only_key_is_in_the_last_block_are_right():
    inputs, mask = tensors(B), torch.zeros(L, S, dtype=torch.bool)
    mask[1::2, -1] = True
    output = tiled_attention(*inputs, mask, block_size=BLOCK)
    torch.testing.assert_close(output[:, 1::2], inputs[2][:, -1:].expand(-1, L // 2, -1))
    assert (output[:, ::2] == 0).all()


def test_no_keys_give_zeros_and_no_queries_an_empty_result():
    for inputs in (tensors(B, keys=0), tensors(B, length=0), tensors(B, length=0, keys=0)):
        output, lse = tiled_attention(*inputs, return_lse=True)
        assert output.shape == (B, inputs[0].shape[1], V)
        assert (output == 0).all()
        assert (lse == -math.inf).all()
        output.sum().backward()
        assert all((x.grad == 0).all() for x in inputs)
    assert tiled_attention(*tensors(B, v=0)).shape == (B, L, 0)


def test_large_scores_do_not_overflow():
    query, key, value = tensors(B, dtype=torch.float32)
    output = tiled_attention(query * 1e3, key * 1e3, value, block_size=BLOCK)
    expected = scaled_dot_product_attention(
        query.double() * 1e3, key.double() * 1e3, value.double()
    )
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=1e-2)
    half = tiled_attention(*(100 * x.half() for x in (query, key, value)), block_size=BLOCK)
    assert half.isfinite().all()  # scores beyond 65504, the largest number of float16


@pytest.mark.refusal
def test_scale_may_be_an_integer_beyond_64_bits():
    inputs = tensors(B, H)
    actual, expected = (tiled_attention(*inputs, scale=scale) for scale in (10**20, 1e20))
    assert torch.equal(actual, expected)


def test_finite_numbers_in_masked_slots_have_no_influence():
    query, key, value = tensors(B)
    mask = torch.arange(S) != 2
    other = [x.detach().clone() for x in (key, value)]
    for x in other:
        x[:, 2] = 1e30
    expected = tiled_attention(query, key, value, mask, block_size=BLOCK)
    assert torch.equal(tiled_attention(query, *other, mask, block_size=BLOCK), expected)


# Precision, autograd modes, memory layout


def test_float32_is_as_near_to_float64_as_the_formula():
    inputs = tensors(B, H, length=97, keys=97, d=16, v=16, dtype=torch.float32)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    actual = with_gradients(lambda *x: tiled_attention(*x, is_causal=True, block_size=32), inputs)
    expected = with_gradients(lambda *x: scaled_dot_product_attention(*x, is_causal=True), exact)
    assert_equal(actual, expected, 4e-6)


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_summed_in_float32(dtype):
    inputs = tensors(B, H, length=97, keys=211, dtype=dtype)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    actual = with_gradients(
        lambda *x: tiled_attention(*x, block_size=BLOCK, return_lse=True), inputs
    )
    expected = with_gradients(lambda *x: formula_with_lse(*x), exact)
    assert [x.dtype for x in actual] == [dtype, torch.float32, dtype, dtype, dtype]
    assert_equal(actual[1:2], expected[1:2], 1e-5)
    # only inputs of a pass and results are rounded: several hundred terms do not add to it
    for i in (0, 2, 3, 4):
        assert_equal(actual[i : i + 1], expected[i : i + 1], 3 * torch.finfo(dtype).eps)


def test_autocast_changes_neither_dtype_nor_precision_forward_or_backward():
    inputs = tensors(B, H, keys=L, dtype=torch.float32)
    expected = with_gradients(lambda *x: tiled_attention(*x, is_causal=True), inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = with_gradients(lambda *x: tiled_attention(*x, is_causal=True), inputs)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(actual, expected, strict=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_works_where_nobody_differentiates(mode):
    inputs = tensors(B, H)
    with mode():
        output = tiled_attention(*inputs, block_size=BLOCK)
    assert not output.requires_grad
    torch.testing.assert_close(output, scaled_dot_product_attention(*inputs))


@pytest.mark.parametrize("is_causal", [False, True])
def test_shapes_come_out_on_the_meta_device(is_causal):
    inputs = [x.to("meta") for x in tensors(B, H, keys=L)]
    output, lse = tiled_attention(*inputs, is_causal=is_causal, return_lse=True)
    assert output.shape == (B, H, L, V)
    assert lse.shape == (B, H, L)


def test_default_device_does_not_matter_to_inputs_that_have_one():
    inputs, options = tensors(B, keys=L), {"is_causal": True, "block_size": BLOCK}
    expected = tiled_attention(*inputs, **options)
    with torch.device("meta"):
        assert torch.equal(tiled_attention(*inputs, **options), expected)


def test_only_what_asks_for_a_gradient_gets_one():
    query, key, value = tensors(B)
    tiled_attention(query.detach(), key, value.detach(), block_size=BLOCK).sum().backward()
    assert query.grad is None
    assert value.grad is None
    assert key.grad is not None


NO_SECOND = (
    "tiled_attention and flash_attention have first derivatives only; got a request for second "
    "ones. scaled_dot_product_attention in float64 has them."
)


def test_second_derivatives_are_refused_where_they_are_taken_and_first_ones_still_work():
    inputs = tensors(B)
    output = tiled_attention(*inputs, block_size=BLOCK)
    grad = torch.autograd.grad(output.sum(), inputs[0], create_graph=True)[0]
    torch.testing.assert_close(grad, torch.autograd.grad(output.sum(), inputs[0])[0])
    refuses(NotImplementedError, NO_SECOND, grad.square().sum().backward)


def test_transposed_and_expanded_inputs_give_the_same_and_stay_as_they_are():
    query, key, value = (x.detach() for x in tensors(B, H))
    query = query.transpose(-2, -1).contiguous().transpose(-2, -1)
    key, value = key[:1].expand(B, -1, -1, -1), value[:, :1].expand(-1, H, -1, -1)
    before = [x.clone() for x in (query, key, value)]
    mask = random_mask(L, 1).expand(L, S)
    output = tiled_attention(query, key, value, mask, block_size=BLOCK)
    assert torch.equal(output, tiled_attention(*before, mask.clone(), block_size=BLOCK))
    assert all(map(torch.equal, (query, key, value), before))


# What is kept and what is skipped


def kept_for_backward(function):
    """Numbers in every tensor that autograd keeps, and the result."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        result = function()
    return sorted(x.numel() for x in kept), result


def test_only_inputs_output_and_log_sum_exp_are_kept():
    inputs = tensors(B, H, dtype=torch.float16)
    kept, output = kept_for_backward(lambda: tiled_attention(*inputs, block_size=BLOCK))
    assert kept == sorted([*(x.numel() for x in inputs), output.numel(), B * H * L])


def count_blocks(monkeypatch, inputs, **options):
    """How many blocks of scores the forward and the backward pass compute."""
    computed, scores = [], tiling._scores
    monkeypatch.setattr(tiling, "_scores", lambda *x: computed.append(1) or scores(*x))
    output = tiled_attention(*inputs, **options)
    forward = len(computed)
    output.sum().backward()
    return forward, len(computed) - forward


def test_blocks_above_the_diagonal_and_outside_a_window_are_skipped(monkeypatch):
    inputs = tensors(length=12, keys=12)
    options = {"inputs": inputs, "block_size": 2}
    assert count_blocks(monkeypatch, **options) == (36, 36)
    assert count_blocks(monkeypatch, **options, is_causal=True) == (21, 21)
    window = window_mask(12, left=2, right=0)
    assert count_blocks(monkeypatch, **options, mask=window) == (11, 11)
    assert count_blocks(monkeypatch, **options, mask=window.flip(1), is_causal=True) == (6, 6)
    assert count_blocks(monkeypatch, **options, mask=torch.arange(12) < 3) == (12, 12)


def test_a_block_has_128_queries_and_as_many_keys_by_default(monkeypatch):
    assert count_blocks(monkeypatch, tensors(length=128, keys=256)) == (2, 2)
    assert count_blocks(monkeypatch, tensors(length=129, keys=257)) == (6, 6)


PEAK = """
import sys, torch
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from attention_lib import tiled_attention

def run(length):
    inputs = [torch.randn(1, length, 16, requires_grad=True) for _ in range(3)]
    tiled_attention(*inputs, is_causal=True).sum().backward()

def peak():  # MiB; on Linux getrusage starts with the peak of the parent
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 2**10
    return getrusage(RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)

torch.set_num_threads(1)
status = Path("/proc/self/status")
run(256)  # loads the kernels
if status.exists():  # the peak of the imports is over: start again from here
    status.with_name("clear_refs").write_text("5")
before = peak()
run(int(sys.argv[1]))
print(peak() - before)
"""


def peak(length):
    command = [sys.executable, "-c", PEAK, str(length)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform == "win32", reason="nothing here tells the peak of a process")
def test_memory_of_both_passes_grows_with_the_length_and_not_with_its_square():
    short, long = peak(4096), peak(16384)
    assert long < 64  # MiB; one score matrix has 1024
    assert long < 6 * short + 8


# Refusals


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"block_size": 0}, ValueError, r"block_size must be at least 1; got 0"),
        ({"block_size": 2.0}, TypeError, r"block_size must be an integer; got 2\.0"),
        ({"block_size": True}, TypeError, r"block_size must be an integer; got True"),
        ({"mask": torch.ones(L, S)}, TypeError, r"mask must be bool with True = may attend"),
        ({"mask": causal_mask(S, S)}, ValueError, r"mask must have shape .*got \(13, 13\)"),
        ({"is_causal": True}, ValueError, r"as many queries as keys; got L = 17, S = 13"),
        ({"scale": math.nan}, ValueError, r"scale must be a finite number or None; got nan"),
        ({"key": torch.zeros(1, S, D).double()}, ValueError, r"nothing is broadcast; got query"),
        ({"value": torch.zeros(B, S, V)}, TypeError, r"one dtype; got query torch.float64"),
    ],
)
def test_bad_input_is_refused_with_rule_and_what_came(change, error, message):
    inputs = dict(zip(("query", "key", "value"), tensors(B), strict=True))
    with pytest.raises(error, match=message):
        tiled_attention(**inputs | change)


# The kernels

WIDE = {"d": 16, "v": 16}


def flash_and_reference(dtype, heads=(2, 2), is_causal=False, scale=None, **sizes):
    """Output, log-sum-exp and gradients of the kernels, and of the formula in float64."""
    inputs = tensors(1, heads[0], key_lead=(1, heads[1]), dtype=dtype, **sizes)
    inputs = [x.detach().to(DEVICE).requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    length = exact[0].shape[-2]
    triangle = torch.ones(length, length, dtype=torch.bool, device=DEVICE).tril()
    group = heads[0] // heads[1]

    def reference(query, *others):
        others = (x.repeat_interleave(group, dim=1) for x in others)
        return formula_with_lse(query, *others, triangle if is_causal else None, scale)

    options = {"is_causal": is_causal, "scale": scale, "return_lse": True}
    actual = with_gradients(lambda *x: flash_attention(*x, **options), inputs)
    return actual, with_gradients(reference, exact)


def tolerance(dtype):
    return {torch.float32: 4e-6}.get(dtype, 4 * torch.finfo(dtype).eps)


@pytest.fixture
def stand_in(monkeypatch):
    """The tiled passes in place of the kernels, so that what is around them runs anywhere."""
    passes = {"forward": tiling._forward, "backward": tiling._backward}
    kernels = {name: partial(function, block_size=BLOCK) for name, function in passes.items()}
    module = SimpleNamespace(INTERPRETED=True, **kernels)
    monkeypatch.setattr(attention_lib, "_flash", module, raising=False)
    monkeypatch.setattr(tiling, "find_spec", lambda name: name)
    return module


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}])
def test_flash_attention_gives_both_passes_what_they_need(stand_in, options):
    inputs = tensors(B, H, keys=L, dtype=torch.float32)
    expected = with_gradients(lambda *x: tiled_attention(*x, **options, return_lse=True), inputs)
    actual = with_gradients(lambda *x: flash_attention(*x, **options, return_lse=True), inputs)
    assert_equal(actual, expected, 1e-5)
    assert torch.equal(flash_attention(*inputs, **options), actual[0])


@pytest.mark.refusal
def test_flash_attention_needs_a_gpu_or_the_interpreter(stand_in):
    stand_in.INTERPRETED = False
    with pytest.raises(ValueError, match="got tensors on cpu and no interpreter"):
        flash_attention(*tensors(B, dtype=torch.float32))


@needs_triton
@pytest.mark.parametrize("dtype", ON_KERNEL)
@pytest.mark.parametrize(
    ("length", "keys", "is_causal"),
    [
        (71, 43, False),
        (37, 67, False),
        (71, 71, True),
        (64, 64, True),
        (1, 37, False),
        (1, 1, True),
    ],
)
def test_kernels_are_the_formula_at_ragged_lengths_over_several_blocks(
    dtype, length, keys, is_causal
):
    actual, expected = flash_and_reference(
        dtype, is_causal=is_causal, length=length, keys=keys, **WIDE
    )
    assert [x.dtype for x in actual] == [dtype, torch.float32, dtype, dtype, dtype]
    assert_equal(actual, expected, tolerance(dtype))


@needs_triton
def test_kernels_are_tuned_over_the_shapes_that_their_dtype_can_take(monkeypatch):
    from attention_lib import _flash

    def shapes(configs):
        sizes = [(c.kwargs["BLOCK_Q"], c.kwargs["BLOCK_K"]) for c in configs]
        return [(*s, c.num_warps, c.num_stages) for s, c in zip(sizes, configs, strict=True)]

    monkeypatch.setattr(_flash, "INTERPRETED", False)
    half = [(128, 64, 8, 2), (64, 32, 4, 3)]
    tuner = _flash._tuned(*half)(_flash._forward.fn)
    assert shapes(tuner.configs) == half + _flash._FLOAT32
    assert tuner.keys == ["D", "V", "GROUP", "CAUSAL", "LONG"]
    for dtype, kept in (torch.float32, _flash._FLOAT32), (torch.bfloat16, half):
        query = torch.zeros(1, dtype=dtype)
        assert shapes(tuner.early_config_prune(tuner.configs, {"query": query})) == kept


@needs_triton
def test_kernels_are_one_for_any_two_lengths(monkeypatch):
    from attention_lib import _flash

    monkeypatch.setattr(_flash.triton, "jit", lambda function, **options: (function, options))
    jitted, options = _flash._jit(wraps(by_loops)(lambda: None))
    assert jitted is by_loops  # the source of a wrapper is not that of the kernel
    assert options == {"do_not_specialize": ["length", "keys"]}


@needs_triton
def test_kernels_start_on_the_gpu_that_holds_the_query(monkeypatch):
    from attention_lib import _flash

    @contextmanager
    def on(device):
        started.append(device)
        yield

    def kernel(*arguments, **options):
        started.append("kernel")

    started = []
    monkeypatch.setattr(torch.cuda, "device", on)
    second = torch.device("cuda", 1)
    inputs = [SimpleNamespace(shape=(B, L, D), is_cuda=True, device=second)] * 3
    _flash._launch(defaultdict(lambda: kernel), "BLOCK_Q", inputs[0], inputs, False, 1.0)
    assert started == [second, "kernel"]


@needs_triton
@pytest.mark.parametrize(("d", "v"), [(16, 64), (80, 24), (128, 128), (5, 3), (1, 1)])
def test_kernels_take_widths_up_to_128(d, v):
    actual, expected = flash_and_reference(torch.float32, length=37, keys=19, d=d, v=v)
    assert_equal(actual, expected, tolerance(torch.float32))


@needs_triton
@pytest.mark.parametrize("dtype", ON_KERNEL)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [(4, 2), (3, 1)])
def test_kernels_let_groups_of_query_heads_share_a_key_head(dtype, is_causal, heads):
    sizes = {"length": 37, "keys": 37, **WIDE}
    actual, expected = flash_and_reference(dtype, heads, is_causal, **sizes)
    assert_equal(actual, expected, 2 * tolerance(dtype))  # gradients of a key add up over a group


@needs_triton
@pytest.mark.parametrize("scale", [0.0, 1.0, -0.7, 100.0])
def test_kernels_take_any_scale(scale):
    sizes = {"length": 37, "keys": 37, **WIDE}
    actual, expected = flash_and_reference(torch.float32, scale=scale, **sizes)
    assert_equal(actual[:2], expected[:2], 1e-4)
    assert_equal(actual[2:], expected[2:], 1e-2 if scale == 100 else 1e-5)


@needs_triton
@pytest.mark.parametrize("lead", [(), (B,), (2, B, H)])
def test_kernels_take_any_number_of_leading_axes(lead):
    inputs = [x.to(DEVICE) for x in tensors(*lead, dtype=torch.float32)]
    torch.testing.assert_close(flash_attention(*inputs), tiled_attention(*inputs))


@needs_triton
def test_kernels_take_transposed_inputs_and_gradients():
    query, key, value = (
        x.detach().transpose(1, 2).contiguous().transpose(1, 2).to(DEVICE).requires_grad_()
        for x in tensors(B, H, dtype=torch.float32)
    )
    actual = flash_attention(query, key, value).transpose(1, 2)
    expected = tiled_attention(query, key, value).transpose(1, 2)
    torch.testing.assert_close(actual, expected)
    grad = torch.randn(expected.shape[::-1], device=DEVICE).permute(3, 2, 1, 0)
    torch.testing.assert_close(
        torch.autograd.grad(actual, (query, key, value), grad),
        torch.autograd.grad(expected, (query, key, value), grad),
    )


@needs_triton
def test_kernels_give_zeros_without_keys_and_an_empty_result_without_queries():
    for sizes in ({"keys": 0}, {"length": 0}, {"length": 0, "keys": 0}):
        inputs = [x.detach().to(DEVICE).requires_grad_() for x in tensors(B, H, **sizes)]
        inputs = [x.detach().float().requires_grad_() for x in inputs]
        output, lse = flash_attention(*inputs, return_lse=True)
        assert output.shape == (B, H, inputs[0].shape[2], V)
        assert (output == 0).all()
        assert (lse == -math.inf).all()
        output.sum().backward()
        assert all((x.grad == 0).all() for x in inputs)
    empty = (torch.zeros(0, H, 5, D, device=DEVICE) for _ in range(3))
    assert flash_attention(*empty).shape == (0, H, 5, D)


@needs_triton
def test_kernels_keep_only_inputs_output_and_log_sum_exp():
    inputs = [x.to(DEVICE) for x in tensors(B, H, length=37, keys=37, dtype=torch.float16)]
    kept, output = kept_for_backward(lambda: flash_attention(*inputs, is_causal=True))
    assert kept == sorted([*(x.numel() for x in inputs), output.numel(), B * H * 37])


@needs_triton
def test_kernels_work_under_no_grad_and_autocast():
    inputs = [x.to(DEVICE) for x in tensors(B, dtype=torch.float32)]
    expected = flash_attention(*inputs)
    with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16):
        output = flash_attention(*inputs)
    assert not output.requires_grad
    assert torch.equal(output, expected)


@needs_triton
def test_second_derivatives_of_the_kernels_are_refused():
    inputs = [x.to(DEVICE) for x in tensors(B, dtype=torch.float32)]
    grad = torch.autograd.grad(flash_attention(*inputs).sum(), inputs[0], create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="scaled_dot_product_attention in float64"):
        grad.sum().backward()


WIDTHS = "the widths d of query and key and v of values must be 1 to 128;"
HEADS = "key and value must have the same number of heads (axis -3), one that divides the query's;"


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("sizes", "options", "error", "message"),
    [
        (
            {"dtype": torch.float64},
            {},
            TypeError,
            "flash_attention takes float32, float16 and bfloat16; got torch.float64. "
            "tiled_attention takes it.",
        ),
        ({"d": 129}, {}, ValueError, f"{WIDTHS} got d = 129, v = 7. tiled_attention takes any."),
        ({"v": 129}, {}, ValueError, f"{WIDTHS} got d = 11, v = 129. tiled_attention takes any."),
        ({"v": 0}, {}, ValueError, f"{WIDTHS} got d = 11, v = 0. tiled_attention takes any."),
        (
            {},
            {"scale": math.inf},
            ValueError,
            "scale must be a finite number or None; got inf",
        ),
        ({}, {"return_lse": 1}, TypeError, "return_lse must be True or False; got int"),
        ({"key_lead": (B, 2)}, {}, ValueError, f"{HEADS} got query 3, key 2, value 2"),
        ({"key_lead": (B, 6)}, {}, ValueError, f"{HEADS} got query 3, key 6, value 6"),
        ({"key_lead": (B, 0)}, {}, ValueError, f"{HEADS} got query 3, key 0, value 0"),
    ],
)
def test_flash_attention_refuses_what_it_does_not_take(sizes, options, error, message):
    inputs = tensors(B, H, **{"dtype": torch.float32} | sizes)
    refuses(error, message, flash_attention, *inputs, **options)


@pytest.mark.refusal
def test_flash_attention_broadcasts_nothing_and_is_causal_for_equal_lengths_only():
    for key_lead, options, message in (
        ((1, H), {}, r"nothing is broadcast; got query \(2, 3, 17, 11\)"),
        ((B, H), {"is_causal": True}, r"as many queries as keys; got L = 17, S = 13"),
    ):
        with pytest.raises(ValueError, match=message):
            flash_attention(*tensors(B, H, key_lead=key_lead, dtype=torch.float32), **options)


@pytest.mark.refusal
def test_heads_are_shared_in_four_axes_only_and_by_key_and_value_alike():
    query, key, value = tensors(H, key_lead=(1,), dtype=torch.float32)
    with pytest.raises(ValueError, match="nothing is broadcast"):
        flash_attention(query, key, value)
    message = f"{HEADS} got query 3, key 1, value 3"
    many = value[None].expand(-1, 3, -1, -1)
    refuses(ValueError, message, flash_attention, query[None], key[None], many)


@pytest.mark.refusal
def test_missing_triton_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(tiling, "find_spec", lambda name: None if name == "triton" else name)
    message = (
        "flash_attention needs Triton, which runs on Linux: pip install 'attention-lib[kernels]'. "
        "tiled_attention needs nothing."
    )
    inputs = tensors(B, dtype=torch.float32)
    refuses(ImportError, message, flash_attention, *inputs)
    # refused for nothing else: the widest and the narrowest, and shared heads
    for sizes in ({"d": 128, "v": 128}, {"d": 1, "v": 1}, {"key_lead": (B, 1)}):
        refuses(ImportError, message, flash_attention, *tensors(B, H, dtype=torch.half, **sizes))
    inputs = tensors(5, B, 4, key_lead=(5, B, 2), dtype=torch.half)
    refuses(ImportError, message, flash_attention, *inputs)


@needs_triton
@pytest.mark.refusal
def test_a_cpu_without_the_interpreter_is_refused():
    code = (
        "import torch; from attention_lib import flash_attention\n"
        "try: flash_attention(*torch.zeros(3, 5, 7))\n"
        "except ValueError as error: print(error)"
    )
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert "needs tensors on a GPU, or TRITON_INTERPRET=1" in run.stdout
    assert "got tensors on cpu" in run.stdout


@pytest.mark.refusal
def test_a_gpu_that_is_too_old_for_triton_is_refused_by_name(monkeypatch):
    old, new = torch.device("cuda:1"), torch.device("cuda:2")
    capabilities = {old: (7, 5), new: (8, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.get)
    monkeypatch.setattr(torch.cuda, "get_device_name", {old: "Tesla T4"}.get)
    message = (
        "flash_attention needs a GPU of compute capability 8.0 or more (Ampere, 2020), which "
        "Triton compiles for; got Tesla T4 with 7.5. scaled_dot_product_attention in float16 or "
        "float32 takes PyTorch's memory-efficient kernel there."
    )
    refuses(ValueError, message, tiling._gpu, old)
    tiling._gpu(new)
    monkeypatch.setattr(torch.version, "hip", "6.0")  # other capabilities there
    tiling._gpu(old)


@pytest.mark.refusal
def test_a_device_that_is_no_gpu_is_refused_with_what_to_do():
    message = (
        "flash_attention needs tensors on a GPU, or TRITON_INTERPRET=1 in the environment before "
        "Triton is first imported; got tensors on cpu and no interpreter. "
        "tiled_attention runs anywhere."
    )
    refuses(ValueError, message, tiling._gpu, torch.device("cpu"))


def test_triton_is_loaded_at_the_first_call_only():
    code = "import sys, attention_lib.tiling; print('triton' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "False\n"


COMPILE = """
import warnings

warnings.simplefilter("ignore")
import torch
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from attention_lib import _flash

sizes = {"D": 40, "V": 64, "D_BLOCK": 64, "V_BLOCK": 64, "GROUP": 2, "CAUSAL": True, "LONG": True}
bf16, fp32 = torch.empty(0, dtype=torch.bfloat16), torch.empty(0)
types = {"scale": "fp32", "length": "i32", "keys": "i32", **dict.fromkeys(sizes, "constexpr")}
types |= dict.fromkeys(("lse", "grad_lse", "shared"), "*fp32")
types |= dict.fromkeys(("BLOCK_Q", "BLOCK_K"), "constexpr")
for kernel in (_flash._forward, _flash._backward_queries, _flash._backward_keys):
    names = kernel.fn.arg_names
    for capability, query in ((80, fp32), (80, bf16), (90, bf16)):
        config = kernel.early_config_prune(kernel.configs, {"query": query})
        config = config[0] if query is fp32 else config[-1]  # the smallest
        pointer = "*fp32" if query is fp32 else "*bf16"
        signature = {name: types.get(name, pointer) for name in names}
        fixed = {(names.index(k),): v for k, v in (sizes | config.kwargs).items()}
        compiled = compile(
            ASTSource(kernel.fn, signature, fixed),
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": config.num_warps, "num_stages": config.num_stages},
        )
        matrix = "wgmma" if capability == 90 else "mma.sync"
        fits = compiled.metadata.shared <= 101_376  # bytes on the smallest Ampere
        print(capability, matrix in compiled.asm["ptx"], fits)
"""


@needs_triton
@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
def test_kernels_compile_for_ampere_and_hopper_and_use_their_matrix_units(tmp_path):
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILE]
    run = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert run.stdout.splitlines() == ["80 True True", "80 True True", "90 True True"] * 3
