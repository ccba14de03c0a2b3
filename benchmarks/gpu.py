"""flash_attention beside PyTorch's kernels on a GPU: first whether it is right, then how fast.

    make kernels
    .venv/bin/python benchmarks/gpu.py     # a PyTorch with CUDA; capability 8.0 or more

Every run draws new data and writes down their seed. An output or gradient passes if it is at most
twice as far from the formula in float64 as PyTorch's own formula is in the same dtype, and a few
roundings. Then come the times: medians and quartiles, each call with a cold cache. The first call
with a dtype, a width or a class of lengths tunes the kernels and is not timed.

benchmarks/results/gpu.json gets all figures after each row, so an interrupt loses none.

    TRITON_INTERPRET=1 .venv/bin/python benchmarks/gpu.py --interpreter

needs no GPU. It checks smaller cases in Triton's interpreter on the CPU, with the data of a fixed
seed, and writes how near they come to float64 into attention_lib/recorded/tiling.json, which
chapter 13 shows. That says whether the kernels are right, and nothing about their speed.
"""

import argparse
import datetime
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention_lib import flash_attention

RESULTS = Path(__file__).parent / "results" / "gpu.json"
RECORDED = Path(__file__).parents[1] / "attention_lib" / "recorded" / "tiling.json"
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
TOKENS, WIDTH_OF_ALL_HEADS = 16384, 2048
OURS = "flash_attention"
BACKENDS = {
    "sdpa, flash": SDPBackend.FLASH_ATTENTION,
    "sdpa, cuDNN": SDPBackend.CUDNN_ATTENTION,
    "sdpa, memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
# batch, query heads, key heads, queries, keys, width, causal: ragged, over several blocks
CASES = [
    (2, 3, 3, 1000, 1537, 64, False),
    (2, 3, 3, 1021, 1021, 64, True),
    (1, 8, 2, 777, 777, 128, True),
    (1, 4, 1, 300, 513, 80, False),
    (1, 2, 2, 129, 129, 16, True),
    (1, 2, 2, 1, 4099, 128, False),
]
# The same for the interpreter, whose blocks have 32 queries and 16 keys.
SMALL_CASES = [
    (1, 2, 2, 150, 231, 64, False),
    (1, 2, 2, 201, 201, 64, True),
    (1, 2, 2, 129, 129, 16, True),
    (1, 4, 2, 101, 101, 128, True),
    (1, 4, 1, 90, 167, 80, False),
    (1, 1, 1, 1, 333, 32, False),
]
CASE = "batch", "heads", "key heads", "queries", "keys", "width", "causal"


def draw(device, dtype, case):
    """Query, key and value that ask for gradients, and a gradient of the output."""
    batch, heads, key_heads, length, keys, width, _ = case
    shapes = [(batch, heads, length, width), *[(batch, key_heads, keys, width)] * 2]
    inputs = [torch.randn(s, device=device).to(dtype).requires_grad_() for s in shapes]
    return inputs, torch.randn(shapes[0], device=device).to(dtype)


def formula(query, key, value, is_causal):
    """All scores, in the dtype of the inputs."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def distances(function, inputs, grad, exact):
    """The largest differences of the output and the three gradients from the exact ones."""
    output = function(*inputs)
    results = output, *torch.autograd.grad(output, inputs, grad)
    return [float((x.detach() - y).abs().max()) for x, y in zip(results, exact, strict=True)]


def check(device, dtype, case):
    """A row with the differences from float64, ours and PyTorch's; an error if ours are larger."""
    inputs, grad = draw(device, dtype, case)
    doubles, is_causal = [x.detach().double().requires_grad_() for x in inputs], case[-1]
    output = formula(*doubles, is_causal)
    exact = output.detach(), *torch.autograd.grad(output, doubles, grad.double())
    ours = distances(lambda *x: flash_attention(*x, is_causal=is_causal), inputs, grad, exact)
    theirs = distances(lambda *x: formula(*x, is_causal), inputs, grad, exact)
    row = {"case": case, "dtype": str(dtype), OURS: ours, "PyTorch's formula": theirs}
    rounding = [4 * torch.finfo(dtype).eps * float(y.abs().max()) for y in exact]
    if any(a > 2 * b + c for a, b, c in zip(ours, theirs, rounding, strict=True)):
        raise AssertionError(f"too far from float64: {row}")
    return row


def contenders(is_causal):
    """Name to function of query, key and value."""

    def with_backend(backend):
        def function(query, key, value):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)

        return function

    ours = {OURS: lambda *x: flash_attention(*x, is_causal=is_causal)}
    return ours | {name: with_backend(backend) for name, backend in BACKENDS.items()}


def flops(case, backward):
    """Two products forward; backward five, since the scores are computed again."""
    batch, heads, _, length, keys, width, is_causal = case
    forward = 4 * batch * heads * length * keys * width * (0.5 if is_causal else 1)
    return 2.5 * forward if backward else forward


def milliseconds(call):
    """Median and quartiles; the cache is emptied before each call."""
    from triton.testing import do_bench

    return do_bench(call, warmup=100, rep=500, quantiles=[0.5, 0.25, 0.75])


def race(device, dtype, case):
    """Rows of times, forward and backward, for all contenders that take the case."""
    inputs, grad = draw(device, dtype, case)
    expected, rows = None, []
    for name, function in contenders(case[-1]).items():
        for backward in (False, True):
            row = {"contender": name, "backward": backward, "dtype": str(dtype), "case": case}
            rows.append(row)
            try:
                output = function(*inputs)
                expected = output.detach() if expected is None else expected
                torch.testing.assert_close(output.detach(), expected, atol=3e-2, rtol=3e-2)
                call = timed(function, inputs, output, grad, backward)
                call()
            except RuntimeError as error:  # this GPU or this PyTorch has no such kernel
                row["refused"] = str(error).splitlines()[0]
                continue
            median, *quartiles = milliseconds(call)
            row |= {"ms": median, "quartiles": quartiles}
            row["TFLOP/s"] = flops(case, backward) / median / 1e9
    for row in rows:
        peers = [
            other["ms"]
            for other in rows
            if other["contender"] != OURS and other["backward"] == row["backward"] and "ms" in other
        ]
        if "ms" in row and peers:
            row["speed to best sdpa"] = min(peers) / row["ms"]
    return rows


def timed(function, inputs, output, grad, backward):
    """The call to time."""
    if backward:
        return lambda: torch.autograd.grad(output, inputs, grad, retain_graph=True)
    detached = [x.detach() for x in inputs]
    return lambda: function(*detached)


def about(device):
    """Date, device and versions."""
    return {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(device),
        "capability": torch.cuda.get_device_capability(device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "triton": version("triton"),
        },
    }


def interpreted(dtype, case):
    """A row of chapter 13: the differences from float64 in the interpreter, with fixed data."""
    torch.manual_seed(0)
    row = check(torch.device("cpu"), dtype, case)
    results = "output", "query", "key", "value"  # the last three: gradients
    figures = {
        name: {r: float(f"{x:.2g}") for r, x in zip(results, row[contender], strict=True)}
        for name, contender in {"kernels": OURS, "formula": "PyTorch's formula"}.items()
    }
    return {"dtype": str(dtype)[6:], **dict(zip(CASE, case, strict=True)), **figures}


def record_interpreter():
    """Write the rows of all small cases, in the dtypes that the interpreter has."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        sys.exit("the interpreter needs TRITON_INTERPRET=1 in the environment")
    dtypes = torch.float32, torch.float16
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, Triton's interpreter on a CPU",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": version("triton"),
        },
        "runs": [interpreted(dtype, case) for dtype in dtypes for case in SMALL_CASES],
    }
    RECORDED.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main():
    """Check, then measure, and write every row."""
    parser = argparse.ArgumentParser(description="flash_attention beside PyTorch's kernels.")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--seed", type=int, help="repeat the data of an earlier run")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--interpreter", action="store_true", help="check without a GPU")
    options = parser.parse_args()
    if options.interpreter:
        record_interpreter()
        return
    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py needs a GPU that PyTorch can use; got none")
    device = torch.device("cuda")
    seed = torch.seed() if options.seed is None else options.seed
    torch.manual_seed(seed)
    result = about(device) | {"seed": seed, "checks": [], "times": []}
    options.output.parent.mkdir(parents=True, exist_ok=True)

    def keep(kind, rows):
        for row in rows:
            print(json.dumps(row), flush=True)
        result[kind] += rows
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for case in CASES:
            keep("checks", [check(device, dtype, case)])
    for width in (128, 64):
        for is_causal in (False, True):
            for length in options.lengths:
                heads = WIDTH_OF_ALL_HEADS // width
                case = max(TOKENS // length, 1), heads, heads, length, length, width, is_causal
                keep("times", race(device, torch.bfloat16, case))


if __name__ == "__main__":
    main()
