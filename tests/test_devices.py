"""Chapter 15: real processes give what one gives, send what the formula says, and end cleanly."""

import math
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import warnings
import weakref
from datetime import timedelta
from fractions import Fraction
from functools import cache, partial
from itertools import count
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

from attention_lib import (
    HeadParallelAttention,
    LinearBiasAttention,
    MultiHeadAttention,
    RankError,
    RotaryAttention,
    _ranks,
    count_communication,
    ring_attention,
    run_ranks,
    zigzag_positions,
)
from attention_lib import _ring as ring

# every axis another prime, apart from what processes must divide
B, H, L, D, V = 2, 3, 17, 5, 7
EMBED, HEADS, WORDS, OTHERS, KDIM, VDIM = 24, 8, 11, 13, 5, 7
EIGHT = 8  # bytes of a float64 or int64
FACTS = 9  # numbers that the ranks compare before the ring starts
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-6, torch.float16: 2e-2, torch.bfloat16: 2e-2}
UNEQUAL = {1: (17,), 2: (12, 5), 4: (7, 0, 1, 9)}
SLOW = 60  # seconds that a busy machine may need; nothing waits for it where all goes well
STARTED = []  # numbers of processes that were started; a fresh process has none

RINGS = {
    "full": {},
    "causal": {"is_causal": True},
    "zigzag": {"is_causal": True},
    "unequal": {},
    "unequal causal": {"is_causal": True},
    "other queries": {},
    "scale": {"scale": 0.3, "is_causal": True},
    "many blocks": {"is_causal": True},
    "float32": {"dtype": torch.float32, "is_causal": True},
    "float16": {"dtype": torch.float16},
    "bfloat16": {"dtype": torch.bfloat16, "is_causal": True},
    "three axes": {"is_causal": True},
    "places that do not matter": {},
    "empty": {},
}
ZIGZAG = ("zigzag", "many blocks", "three axes", "places that do not matter")
LAYERS = {
    "plain": {},
    "grouped": {"num_kv_heads": 4},
    "other widths": {"kdim": KDIM, "vdim": VDIM, "bias": False},
}
MASKS = {"none": None, "(L, S)": (), "(b, L, S)": (B,), "per head": (1, HEADS), "all": (B, HEADS)}
real = pytest.mark.parametrize("world", [2, 4, 1])


def ring_inputs(name):
    """The whole query, key, value and gradient of the output, and the options."""
    rng = torch.Generator().manual_seed(list(RINGS).index(name))
    length = {"many blocks": 300, "empty": 0}.get(name, L)
    queries = 2 * length if name == "other queries" else length
    shapes = (queries, D), (length, D), (length, V), (queries, V)
    options = dict(RINGS[name])
    dtype = options.pop("dtype", torch.float64)
    leading = (H,) if name == "three axes" else (B, H)
    made = [torch.randn(*leading, *s, generator=rng, dtype=torch.float64).to(dtype) for s in shapes]
    return *made, options


def places(name, world, rank, length=L):
    """The places in the sequence of a rank's slice."""
    if name in ZIGZAG:
        return zigzag_positions(length, world, rank)
    if name.startswith("unequal"):
        return torch.arange(length).split(UNEQUAL[world])[rank]
    return torch.arange(length).tensor_split(world)[rank]


def in_a_ring(name):
    """Output and gradients of this rank's slice."""
    *whole, options = ring_inputs(name)
    here = [places(name, dist.get_world_size(), dist.get_rank(), x.shape[-2]) for x in whole]
    query, key, value, grad = (x[..., i, :] for x, i in zip(whole, here, strict=True))
    inputs = [x.contiguous().requires_grad_() for x in (query, key, value)]
    if name in ZIGZAG:
        options["positions"] = here[0]
    output = ring_attention(*inputs, **options)
    return output.detach(), *torch.autograd.grad(output, inputs, grad)


def in_a_ring_of_some():
    """Output of this rank's slice where the first rank takes no part; None in the first one."""
    rank, others = dist.get_rank(), dist.get_world_size() - 1
    group = dist.new_group(list(range(1, others + 1))) if others else None
    if rank == 0:
        return None
    *inputs, _, options = ring_inputs("causal")
    mine = [x.tensor_split(others, dim=-2)[rank - 1] for x in inputs]
    return ring_attention(*mine, **options, group=group)


def in_one_process(name):
    *inputs, grad, options = ring_inputs(name)
    inputs = [x.double().requires_grad_() for x in inputs]
    output = F.scaled_dot_product_attention(*inputs, **options)
    return output.detach(), *torch.autograd.grad(output, inputs, grad.double())


def whole_layer(name):
    torch.manual_seed(3)
    layer = MultiHeadAttention(EMBED, HEADS, **LAYERS[name]).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def layer_call(layer, kind):
    """Output and gradients of inputs and parameters, as a dict."""
    rng = torch.Generator().manual_seed(4)

    def normal(*shape):
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    query = normal(B, WORDS, EMBED).requires_grad_()
    key = value = None
    if layer.kdim != EMBED:
        key, value = (normal(B, OTHERS, w).requires_grad_() for w in (KDIM, VDIM))
    shape = MASKS[kind]
    keys = WORDS if key is None else OTHERS
    mask = None if shape is None else torch.rand(*shape, WORDS, keys, generator=rng) < 0.6
    output = layer(query, key, value, mask=mask, is_causal=keys == WORDS)
    output.backward(normal(*output.shape))
    whole = {n: p.grad for n, p in layer.named_parameters()}
    whole = {n: g.full_tensor() if hasattr(g, "full_tensor") else g for n, g in whole.items()}
    inputs = {"query": query, "key": key, "value": value}
    return {"output": output.detach(), **whole} | {
        name: x.grad for name, x in inputs.items() if x is not None
    }


def over_two_processes():
    """How many processes of a mesh of pairs share two heads, and the outputs of the layer."""
    world = dist.get_world_size()
    pairs = dist.init_device_mesh(
        "cpu", (-(-world // 2), min(world, 2)), mesh_dim_names=("", "pair")
    )
    with warnings.catch_warnings(action="error"):
        layer = HeadParallelAttention.from_layer(two_heads(), pairs["pair"])
    return layer.ranks, with_and_without_mask(layer)


def two_heads():
    torch.manual_seed(5)
    return MultiHeadAttention(4, 2).double()


def with_and_without_mask(layer):
    rng = torch.Generator().manual_seed(6)
    x = torch.randn(B, WORDS, 4, generator=rng, dtype=torch.float64)
    mask = torch.rand(1, 2, WORDS, WORDS, generator=rng) < 0.6
    return [layer(x).detach(), layer(x, mask=mask).detach()]


def refusal(function):
    try:
        function()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def refusals():
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.zeros(1, 4, 2)
    other = torch.zeros(1, 4, 3) if rank == world - 1 else x
    of_ring = {
        "no int64": lambda: ring_attention(x, x, x, positions=torch.zeros(4)),
        "positions": lambda: ring_attention(x, x, x, positions=torch.arange(3)),
        "widths": lambda: ring_attention(other, other, other),
        "dtypes": lambda: ring_attention(*[x.double() if rank else x] * 3),
        "causal": lambda: ring_attention(x, x, x, is_causal=rank == 0),
        "scales": lambda: ring_attention(x, x, x, scale=0.5 + rank),
        "gradients": lambda: ring_attention(x.clone().requires_grad_(rank == 0), x, x),
        "lengths": lambda: ring_attention(x, x[:, :3], x[:, :3], is_causal=True),
        "meta": lambda: ring_attention(*[x.to("meta")] * 3),
        "list": lambda: ring_attention(x, x, x, positions=[0, 1, 2, 3]),
        "scale": lambda: ring_attention(x, x, x, scale="1"),
        "leading axes": lambda: ring_attention(*[x[: int(rank == world - 1)]] * 3),
        "own places": lambda: ring_attention(
            x, x, x, is_causal=True, positions=torch.arange(4) if rank == world - 1 else None
        ),
    }
    words = torch.zeros(1, 3, 8)
    of_layer = {
        "heads": lambda: HeadParallelAttention(6, 3),
        "groups": lambda: HeadParallelAttention(24, 12, num_kv_heads=6 // max(2, world)),
        "dropout": lambda: HeadParallelAttention.from_layer(MultiHeadAttention(8, 4, dropout=0.1)),
        "width": lambda: HeadParallelAttention(8, 4)(torch.zeros(1, 3, 7)),
        "mask": lambda: HeadParallelAttention(8, 4)(words, mask=torch.zeros(3, 3)),
        "shorter": lambda: HeadParallelAttention(8, 4)(words, words[:, :2], is_causal=True),
    }
    return {name: refusal(function) for name, function in (of_ring | of_layer).items()}


def written():
    """Bytes that this process has handed to the operating system with ``write`` and the like."""
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("wchar"))


def communication():
    """What is sent for 64 positions to a rank: counted by PyTorch, and by the operating system."""
    x = torch.randn(B, H, 64, D, dtype=torch.float64).requires_grad_()
    value = torch.randn(B, H, 64, V, dtype=torch.float64)
    counted = {}
    for is_causal in (False, True):
        start = written() if sys.platform == "linux" else 0
        with count_communication() as counter:
            output = ring_attention(x, x, value, is_causal=is_causal)
        middle = counter.bytes["send"]
        with counter:
            output.sum().backward()
        total = written() - start if sys.platform == "linux" else counter.bytes["send"]
        counted[is_causal] = middle, counter.bytes["send"] - middle, total, dict(counter.calls)
    layer = HeadParallelAttention.from_layer(whole_layer("plain"))
    with count_communication() as counter:
        output = layer(torch.zeros(B, WORDS, EMBED, dtype=torch.float64, requires_grad=True))
    forward = dict(counter.bytes)
    with counter:
        output.sum().backward()
    return counted, forward, dict(counter.bytes)


def most_keys():
    """The most keys in one call, and the most that are alive at one time, own ones included."""
    in_a_call, at_a_time, alive = [0], [0], weakref.WeakSet()
    forward, exchange = ring.tiling._forward, ring.Ring.exchange

    def watched_forward(query, key, value, mask, **options):
        in_a_call.append(key.shape[-2])
        return forward(query, key, value, mask, **options)

    def watched_exchange(self, outgoing, length):
        coming, works = exchange(self, outgoing, length)
        if coming[0].ndim == 4:  # keys, not the numbers that the ranks compare
            alive.add(coming[0])
            at_a_time.append(16 + sum(x.shape[-2] for x in alive))
        return coming, works

    ring.tiling._forward, ring.Ring.exchange = watched_forward, watched_exchange
    ring_attention(*[torch.zeros(B, H, 16, D)] * 3)
    ring.tiling._forward, ring.Ring.exchange = forward, exchange
    return max(in_a_call), max(at_a_time)


def surroundings():
    """What a rank finds where it runs, and what its sum over all ranks counts as."""
    others = [x for x in threading.enumerate() if x is not threading.main_thread()]
    with count_communication() as counter:
        dist.all_reduce(torch.zeros(3))
    return {
        "started": STARTED,
        "threads of PyTorch": torch.get_num_threads(),
        "interface": os.environ.get("GLOO_SOCKET_IFNAME"),
        "other threads": [x.daemon for x in others],
        "counted": (dict(counter.calls), dict(counter.bytes)),
    }


def everything():
    """All that the tests need from one start of the processes, in each of them."""
    return {
        "rings": {name: in_a_ring(name) for name in RINGS},
        "ring of some": in_a_ring_of_some(),
        "layers": {
            (name, kind): layer_call(HeadParallelAttention.from_layer(whole_layer(name)), kind)
            for name in LAYERS
            for kind in MASKS
        },
        "two heads": over_two_processes(),
        "refusals": refusals(),
        "communication": communication(),
        "most keys": most_keys(),
        "surroundings": surroundings(),
        "names": list(HeadParallelAttention(EMBED, HEADS).state_dict()),
    }


@cache
def ranks(world):
    STARTED.append(world)
    return run_ranks(everything, world, timeout=4 * SLOW)


# What one process gives


@real
@pytest.mark.parametrize("name", RINGS)
def test_ring_is_attention_over_the_whole_sequence_forward_and_backward(name, world):
    found = [result["rings"][name] for result in ranks(world)]
    expected = in_one_process(name)
    dtype = RINGS[name].get("dtype", torch.float64)
    assert found[0][0].dtype == dtype
    for mine, theirs in zip(zip(*found, strict=True), expected, strict=True):
        for rank, piece in enumerate(mine):
            want = theirs[..., places(name, world, rank, theirs.shape[-2]), :]
            tolerance = TOLERANCE[dtype]
            torch.testing.assert_close(piece.double(), want, rtol=tolerance, atol=tolerance)


def test_parts_of_the_keys_are_merged_by_their_log_sum_exp():
    rng = torch.Generator().manual_seed(0)
    scores = 5 * torch.randn(L, L, generator=rng, dtype=torch.float64)
    value = torch.randn(L, V, generator=rng, dtype=torch.float64)
    output, lse = torch.zeros_like(value), torch.full((L,), -torch.inf, dtype=torch.float64)
    for part in slice(0, 0), slice(0, 5), slice(5, 5), slice(5, L):
        weights = scores[:, part].softmax(-1)
        ring._merge_partial(output, lse, weights @ value[part], scores[:, part].logsumexp(-1))
    torch.testing.assert_close(output, scores.softmax(-1) @ value)
    torch.testing.assert_close(lse, scores.logsumexp(-1))


@real
def test_ring_of_some_of_the_processes_is_attention_over_their_slices(world):
    first, *others = [result["ring of some"] for result in ranks(world)]
    assert first is None
    if others:
        expected = in_one_process("causal")[0]
        torch.testing.assert_close(torch.cat(others, dim=-2), expected, rtol=0, atol=1e-10)


@real
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("name", LAYERS)
def test_heads_dealt_out_are_the_whole_layer_forward_and_backward(name, kind, world):
    expected = layer_call(whole_layer(name), kind)
    for result in ranks(world):
        found = result["layers"][name, kind]
        assert set(found) == set(expected)
        assert type(found["output"]) is torch.Tensor  # whole, and not still being summed
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-10, atol=1e-10, msg=key)


@real
def test_heads_are_dealt_out_to_the_processes_of_a_mesh(world):
    expected = with_and_without_mask(two_heads())
    for number, found in (result["two heads"] for result in ranks(world)):
        assert number == min(world, 2)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_group_without_the_name_of_a_back_end_runs_on_the_cpu():
    def outputs():
        import torch
        import torch.distributed as dist

        from attention_lib import HeadParallelAttention, MultiHeadAttention, ring_attention

        dist.destroy_process_group()
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
        assert dist.get_backend() not in ("gloo", "nccl")
        layer, x = MultiHeadAttention(4, 2), torch.randn(2, 3, 4)
        torch.testing.assert_close(HeadParallelAttention.from_layer(layer)(x), layer(x))
        right = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        torch.testing.assert_close(ring_attention(x, x, x), right)
        return "equal"

    assert run_ranks(outputs, 1) == ["equal"]


@real
def test_parameters_have_the_names_of_the_whole_layer(world):
    expected = list(MultiHeadAttention(EMBED, HEADS).state_dict())
    assert all(result["names"] == expected for result in ranks(world))


# What is sent


@real
def test_bytes_that_a_rank_sends_around_the_ring_are_the_formulas(world):
    for result in ranks(world):
        for is_causal, (forward, backward, system, calls) in result["communication"][0].items():
            slice_of_both = B * H * 64 * (D + V) * EIGHT
            places_of_keys = 64 * EIGHT if is_causal else 0
            steps = world - 1
            assert forward == steps * (slice_of_both + places_of_keys + FACTS * EIGHT)
            home = world if world > 1 else 0  # the gradients travel one step more, back home
            assert backward == steps * (slice_of_both + places_of_keys) + home * slice_of_both
            # facts, keys, values and places; keys, values, places again, and their two gradients
            messages = steps * (3 + is_causal) + steps * (2 + is_causal) + home * 2
            # no all-gather, nor anything else that collects
            assert calls == (dict.fromkeys(("send", "recv"), messages) if messages else {})
            assert forward + backward <= system <= 1.05 * (forward + backward) + 4096


@real
def test_heads_cost_one_all_reduce_forward_and_one_backward(world):
    size = B * WORDS * EMBED * EIGHT if world > 1 else 0
    for result in ranks(world):
        _, forward, both = result["communication"]
        assert forward == ({"all_reduce": size} if size else {})
        assert both == ({"all_reduce": 2 * size} if size else {})


@real
def test_no_process_holds_more_than_three_slices_of_the_keys(world):
    for result in ranks(world):
        in_a_call, at_a_time = result["most keys"]
        assert in_a_call == 16
        assert at_a_time == 16 * min(world - 1, 2) + 16 * (world > 1)


# Zig-zag


@pytest.mark.parametrize(("length", "world"), [(16, 2), (24, 3), (17, 4), (3, 4), (0, 2)])
def test_zigzag_deals_out_every_position_once_and_the_causal_pairs_evenly(length, world):
    dealt = [zigzag_positions(length, world, rank) for rank in range(world)]
    assert torch.equal(torch.cat(dealt).sort().values, torch.arange(length))
    assert all(torch.equal(places, places.sort().values) for places in dealt)
    pairs = [int((places + 1).sum()) for places in dealt]
    assert max(pairs) - min(pairs) <= (0 if length % (2 * world) == 0 else 2 * length)


@pytest.mark.refusal
def test_zigzag_refuses_a_rank_that_is_not_there():
    with pytest.raises(ValueError, match=r"rank must be one of 0 to 1; got 2"):
        zigzag_positions(8, 2, 2)
    with pytest.raises(ValueError, match=r"rank must be at least 0; got -1"):
        zigzag_positions(8, 2, -1)
    with pytest.raises(ValueError, match=r"length must be at least 0; got -1"):
        zigzag_positions(-1, 2, 0)
    with pytest.raises(ValueError, match=r"world_size must be at least 1; got 0"):
        zigzag_positions(8, 0, 0)


# Refusals


@pytest.mark.refusal
def test_both_refuse_to_run_without_a_process_group():
    message = (
        "there is no process group. Start the code with torchrun and call "
        "torch.distributed.init_process_group() first, or start it with run_ranks"
    )
    for call in (
        lambda: HeadParallelAttention(8, 4),
        lambda: ring_attention(*[torch.zeros(3, 2)] * 3),
    ):
        assert refusal(call) == f"ValueError: {message}"


@pytest.mark.refusal
def test_tensors_must_be_where_the_back_end_of_their_group_is(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", {None: "gloo", "GPUs": "nccl"}.get)
    said = "ValueError: the back end nccl takes tensors on cuda; got one on cpu"
    assert refusal(lambda: ring_attention(*[torch.zeros(3, 2)] * 3, group="GPUs")) == said


SAID = {
    "no int64": "TypeError: positions must be a tensor of dtype torch.int64; got torch.float32",
    "positions": "ValueError: positions must be one number for each query, (4,) on cpu; got (3,)",
    "lengths": "ValueError: is_causal needs as many queries as keys; got L = 4, S = 3",
    "meta": "ValueError: the back end gloo takes tensors on cpu; got one on meta",
    "dropout": "ValueError: a layer dealt out has no dropout; got dropout = 0.1",
    "width": "ValueError: query must have shape (batch, position, embed_dim = 8); got (1, 3, 7)",
    "list": "TypeError: positions must be a tensor of dtype torch.int64; got list",
    "scale": "ValueError: scale must be a finite number or None; got '1'",
    "mask": "TypeError: mask must ",
    "shorter": "ValueError: is_causal needs as many queries as keys; got L = 3, S = 2",
}
SAID_BY_SEVERAL = {
    "widths": "ValueError: all ranks must call ring_attention alike, only the lengths may differ",
    "dtypes": "got dtype ",
    "causal": "got is_causal ",
    "scales": "got scale ",
    "gradients": "got gradients ",
    "heads": "a head is not cut; got {} processes, num_heads = 3, num_kv_heads = 3",
    "groups": "got {} processes, num_heads = 12, num_kv_heads = ",
    "leading axes": "got leading_axes {last} on rank {rank} and {not_last} on rank {other}",
    "own places": "got own_positions {last} on rank {rank} and {not_last} on rank {other}",
}


@pytest.mark.refusal
@real
def test_wrong_inputs_are_refused_in_every_rank_and_the_ring_goes_on(world):
    expected = SAID | (SAID_BY_SEVERAL if world > 1 else {})
    for rank, result in enumerate(ranks(world)):
        last = rank == world - 1
        other = world - 2 if last else world - 1  # each looks back to the ranks before it
        here = {"rank": rank, "other": other, "last": int(last), "not_last": int(not last)}
        for name, words in expected.items():
            assert words.format(world, **here) in result["refusals"][name], name


def reports_rank():
    return dist.get_rank()


@pytest.mark.refusal
@pytest.mark.parametrize(
    "layer", [RotaryAttention(8, 2), LinearBiasAttention(8, 2), torch.nn.MultiheadAttention(8, 2)]
)
def test_only_a_layer_without_positions_is_dealt_out(layer):
    said = (
        "TypeError: layer must be a MultiHeadAttention of attention_lib, and no subclass, which "
        f"may attend in another way; got {type(layer).__module__}.{type(layer).__name__}"
    )
    assert refusal(lambda: HeadParallelAttention.from_layer(layer)) == said


@pytest.mark.refusal
def test_run_ranks_refuses_what_it_cannot_start():
    with pytest.raises(ValueError, match=r"world_size must be at least 1; got 0"):
        run_ranks(reports_rank, 0)
    for timeout in ("60", None, math.nan, 0, 1_000_001, Fraction(1, 2)):
        said = f"timeout must be a number of seconds above 0, at most a million; got {timeout!r}"
        with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
            run_ranks(reports_rank, 2, timeout=timeout)
    with pytest.raises(ValueError, match=r"backend must be one of gloo, nccl; got 'mpi'"):
        run_ranks(reports_rank, 2, backend="mpi")
    with pytest.raises(ValueError, match=r"nccl needs a GPU for each process; got \d+ GPUs for 99"):
        run_ranks(reports_rank, 99, backend="nccl")
    with pytest.raises(ValueError, match=r"sent as its text, which begins with def; got .*lambda"):
        run_ranks(lambda: 0, 2)


@pytest.mark.refusal
def test_nccl_takes_as_many_processes_as_there_are_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    said = (
        "ValueError: nccl needs a GPU for each process; got 2 GPUs for 3 processes. "
        "gloo runs on CPUs"
    )
    for timeout in (0.5, 1_000_000):
        assert refusal(lambda: _ranks._startable(2, "nccl", timeout)) == "accepted"  # noqa: B023
    assert refusal(lambda: run_ranks(reports_rank, 3, backend="nccl")) == said


# How processes start and end


def test_function_of_a_notebook_travels_as_its_text_and_results_come_back_in_order(capfd):
    def add(number, text):
        import torch.distributed as dist

        print(text, dist.get_rank())
        return number + dist.get_rank()

    assert run_ranks(add, 2, 5, "rank") == [5, 6]
    assert capfd.readouterr().out == "rank 0\nrank 1\n"


@real
def test_ranks_are_fresh_have_one_thread_and_end_with_the_process_that_started_them(world):
    for result in ranks(world):
        assert result["surroundings"] == {
            "started": [],
            "threads of PyTorch": 1,
            "interface": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
            "other threads": [True],  # the one that waits for that end
            "counted": ({"allreduce": 1}, {"allreduce": 3 * 4}),
        }


def test_rank_joins_on_the_gpu_of_its_number_or_waits_until_all_are_there(monkeypatch, tmp_path):
    done = []
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "chosen")
    monkeypatch.setattr(torch, "set_num_threads", lambda n: done.append(f"{n} thread"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda n: done.append(f"GPU {n}"))
    monkeypatch.setattr(dist, "barrier", lambda: done.append("all are there"))
    monkeypatch.setattr(dist, "init_process_group", lambda *x, **options: done.append((x, options)))
    for backend in _ranks.DEVICES:
        _ranks._join(1, 2, tmp_path, backend, timeout=7.0)
    joined = [x for x in done if isinstance(x, tuple)]
    assert [Path(options.pop("store").path).parent for _, options in joined] == [tmp_path] * 2
    options = {"rank": 1, "world_size": 2, "timeout": timedelta(seconds=7)}
    assert joined == [((name,), options) for name in _ranks.DEVICES]
    assert done == ["1 thread", joined[0], "all are there", "1 thread", "GPU 1", joined[1]]
    assert os.environ["GLOO_SOCKET_IFNAME"] == "chosen"


def raises():
    if dist.get_rank() == 1:
        raise KeyError("lost")
    dist.recv(torch.zeros(1), 1)  # for ever, but for the end of the other


def is_killed():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    dist.recv(torch.zeros(1), 1)


def leaves():
    if dist.get_rank() == 1:
        os.write(2, b"last words")
        os._exit(3)
    dist.recv(torch.zeros(1), 1)


def returns_what_cannot_be_copied():
    return lambda: 0 if dist.get_rank() else 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (raises, "rank 1 raised KeyError: 'lost'"),
        (is_killed, "rank 1 was ended by SIGKILL"),
        (leaves, "rank 1 left with code 3"),
    ],
)
def test_rank_that_fails_is_named_with_the_cause_long_before_the_timeout(function, words):
    start = time.monotonic()
    with pytest.raises(RankError) as error:
        run_ranks(function, 2, timeout=10 * SLOW)
    assert time.monotonic() - start < SLOW
    assert str(error.value) == words
    assert error.value.rank == 1
    if function is raises:
        assert 'raise KeyError("lost")' in error.value.__notes__[0]
    if function is leaves:
        assert error.value.__notes__ == ["last words"]
    assert no_rank_is_left()


def late():
    time.sleep(dist.get_rank())
    return dist.get_rank()


def test_a_rank_that_is_done_waits_for_the_others_a_minute_at_most(monkeypatch):
    limits, watch = [], _ranks._watch
    monkeypatch.setattr(_ranks, "_watch", lambda *x: (limits.append(x[-1]), watch(*x)))
    assert run_ranks(late, 2) == [0, 1]
    assert limits == [60]


def decorated(function):
    return function


@decorated
def of_a_notebook():
    return "its text is sent"


class Callable:
    def __call__(self):
        pass

    def __repr__(self):
        return "Callable()"


def test_what_another_process_cannot_import_is_sent_as_text_or_refused(monkeypatch):
    assert _ranks._sendable(of_a_notebook) is of_a_notebook
    bound = partial(of_a_notebook)
    assert _ranks._sendable(bound) is bound  # has no name
    monkeypatch.setattr(of_a_notebook, "__module__", "__main__")
    name, text = _ranks._sendable(of_a_notebook)
    assert (name, text.splitlines()[0]) == ("of_a_notebook", "@decorated")
    monkeypatch.setattr(Callable, "__module__", "__main__")
    said = (
        "a function of a notebook is sent as its text, which begins with def; got Callable(). "
        "Write it with def, in a cell of its own or a module"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        _ranks._sendable(Callable())


class Process:
    """One of which is known how it ended only when it was asked for that several times."""

    def __init__(self, *codes):
        self.codes = iter(codes)

    @property
    def exitcode(self):
        return next(self.codes)


def test_error_of_a_rank_that_lost_another_waits_for_what_became_of_that_one(tmp_path):
    lost = pickle.dumps((0.0, "RuntimeError: connection closed", "trace"))
    (tmp_path / "0.error").write_bytes(lost)
    (tmp_path / "1.err").write_bytes("café ".encode() + b"\xff")
    error = _ranks._failure([Process(1, 1, 1), Process(None, None, -9)], tmp_path)
    assert (str(error), error.rank) == ("rank 1 was ended by SIGKILL", 1)
    assert error.__notes__ == ["café \ufffd"]
    (tmp_path / "2.error").write_bytes(pickle.dumps((-1.0, "KeyError: 1", "of rank 2")))
    error = _ranks._failure([Process(1), Process(0), Process(1)], tmp_path)
    assert (str(error), error.rank) == ("rank 2 raised KeyError: 1", 2)  # which came first
    assert error.__notes__ == ["Traceback of rank 2:\nof rank 2"]


def test_error_of_a_rank_does_not_wait_longer_than_a_second(tmp_path, monkeypatch):
    lost = pickle.dumps((0.0, "RuntimeError: connection closed", "trace"))
    (tmp_path / "0.error").write_bytes(lost)
    quarters, waited = count(), []
    monkeypatch.setattr(time, "monotonic", lambda: next(quarters) / 4)
    monkeypatch.setattr(time, "sleep", waited.append)
    error = _ranks._failure([Process(*[1] * 9), Process(*[None] * 9)], tmp_path)
    assert error.rank == 0
    assert waited == [0.02] * 3


def test_result_that_cannot_be_copied_is_the_ranks_error():
    with pytest.raises(RankError, match=r"rank \d raised \w+: Can't (pickle|get) "):
        run_ranks(returns_what_cannot_be_copied, 2)


def hangs(folder):
    path = Path(folder, str(os.getpid()))
    path.touch()
    time.sleep(20)
    path.with_suffix(".slept").touch()


def alive(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def no_rank_is_left():
    import multiprocessing

    return not [p for p in multiprocessing.active_children() if "_work" in repr(p)]


def wait_for(condition):
    end = time.monotonic() + SLOW
    while time.monotonic() < end and not condition():
        time.sleep(0.05)
    return condition()


def test_timeout_ends_all_processes(tmp_path):
    with pytest.raises(TimeoutError, match=r"after 3 s these ranks were not done: \[0, 1\]"):
        run_ranks(hangs, 2, str(tmp_path), timeout=3)
    assert not any(path.suffix or alive(path.name) for path in tmp_path.iterdir())


SCRIPT = """
import sys, torch, torch.distributed as dist
from attention_lib import HeadParallelAttention, MultiHeadAttention, ring_attention, run_ranks

def hangs(folder):
    import os, time
    from pathlib import Path
    Path(folder, str(os.getpid())).touch()
    time.sleep(120)

if __name__ == "__main__" and len(sys.argv) > 1:
    run_ranks(hangs, 2, sys.argv[1], timeout=600)
elif __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(8, 2), torch.randn(1, 6, 8)
    parallel = HeadParallelAttention.from_layer(layer)
    torch.testing.assert_close(parallel(x), layer(x))
    mine = x.tensor_split(2, dim=1)[dist.get_rank()]
    right = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    torch.testing.assert_close(
        ring_attention(mine, mine, mine, is_causal=True),
        right.tensor_split(2, dim=1)[dist.get_rank()],
    )
    dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def test_ranks_end_when_the_process_that_started_them_is_killed(script, tmp_path):
    pids = tmp_path / "pids"
    pids.mkdir()
    starter = subprocess.Popen([sys.executable, script, pids])
    assert wait_for(lambda: len(list(pids.iterdir())) == 2)
    starter.kill()
    starter.wait()
    assert wait_for(lambda: not any(alive(path.name) for path in pids.iterdir()))


def test_both_run_under_torchrun(script):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command = [*torchrun, "--standalone", "--local-addr=127.0.0.1", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * SLOW)
    assert done.returncode == 0, done.stderr


SPEAKS = """
from attention_lib import RankError, run_ranks

def speaks():
    import os
    import torch.distributed as dist
    print("café", __name__)
    dist.barrier()
    if dist.get_rank() == 1:
        os.write(2, "thé".encode())
        os.kill(os.getpid(), 9)

if __name__ == "__main__":
    try:
        run_ranks(speaks, 2)
    except RankError as error:
        print(error, *error.__notes__, sep="; ")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no locale C")
def test_what_a_rank_said_before_its_end_is_shown_whatever_the_locale(tmp_path):
    path = tmp_path / "speaks.py"
    path.write_text(SPEAKS, encoding="utf-8")
    # ASCII for files, Latin-1 and a buffer for what is printed, if nothing else is asked for
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONUNBUFFERED": ""}
    environment = os.environ | plain | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, path], capture_output=True, env=environment)
    said = "café speaks\ncafé speaks\nrank 1 was ended by SIGKILL; thé\n"
    assert done.stdout.decode("latin-1") == said, done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_world_of_one_on_a_gpu():
    def on_gpu():
        import torch

        from attention_lib import ring_attention

        x = torch.randn(2, 64, 8, device="cuda")
        right = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return (ring_attention(x, x, x, is_causal=True) - right).abs().max().item()

    assert run_ranks(on_gpu, 1, backend="nccl", timeout=4 * SLOW)[0] < 1e-4
