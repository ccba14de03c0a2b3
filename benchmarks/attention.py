"""Time and memory of MultiHeadAttention beside what one would use instead.

    pip install -r benchmarks/requirements.txt
    python benchmarks/attention.py

All contenders hold the same weights and must give the same numbers before they are timed. They
run in one process, in a new random order each round; the table shows the median of the rounds and
its quartiles. A sample during which other programs kept more than a fifth of a core busy counts
only where too few others are left, and the row is marked then. Masks are made beforehand. Peak
memory is that of a process of its own.

benchmarks/results/attention.json gets all figures after each row, so an interrupt loses none.
"""

import argparse
import datetime
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import nn

from attention_lib import from_torch, padding_mask, to_key_padding_mask

try:
    with warnings.catch_warnings(action="ignore"):  # of what it still uses of PyTorch
        from x_transformers.x_transformers import Attention
except ImportError:
    Attention = None

RESULTS = Path(__file__).parent / "results" / "attention.json"
SIZES = [(8, 128, 512, 8), (4, 512, 512, 8), (1, 2048, 512, 8), (1, 16, 64, 4)]
LENGTHS = {"forward": [1024, 2048, 4096, 8192], "forward+backward": [1024, 2048, 4096]}
OURS = "attention_lib"
SAMPLE_SECONDS = 0.08
QUIET = 0.2  # cores
STATUS = Path("/proc/self/status")
# Else glibc keeps what is freed, and the peak depends on how well the next tensors fit in there.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536"}


class Packed(nn.Module):
    """One product for query, key and value, then PyTorch's kernel or the plain formula."""

    def __init__(self, mha, formula):
        super().__init__()
        self.num_heads, self.formula = mha.num_heads, formula
        self.in_proj = nn.Linear(mha.embed_dim, 3 * mha.embed_dim)
        self.out_proj = nn.Linear(mha.embed_dim, mha.embed_dim)
        self.in_proj.weight.data.copy_(mha.in_proj_weight.data)
        self.out_proj.weight.data.copy_(mha.out_proj.weight.data)
        for linear in (self.in_proj, self.out_proj):
            nn.init.zeros_(linear.bias)

    def forward(self, x, mask=None):
        """The output, and the weights where the formula is written out."""
        b, length, width = x.shape
        heads = self.in_proj(x).view(b, length, 3, self.num_heads, width // self.num_heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        weights = None
        if self.formula:
            scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
            scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
            weights = scores.softmax(dim=-1)
            out = weights @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(out.transpose(1, 2).reshape(b, length, width)), weights


def torch_reference(width, heads):
    """The layer whose weights all contenders copy; its biases are 0, as x-transformers has none."""
    torch.manual_seed(0)
    return nn.MultiheadAttention(width, heads, batch_first=True)


def x_transformers(mha, flash):
    """x-transformers' layer with the weights of ``mha``."""
    layer = Attention(
        mha.embed_dim, heads=mha.num_heads, dim_head=mha.embed_dim // mha.num_heads, flash=flash
    )
    parts = zip("qkv", mha.in_proj_weight.data.chunk(3), strict=True)
    for name, part in [*parts, ("out", mha.out_proj.weight.data)]:
        getattr(layer, f"to_{name}").weight.data.copy_(part)
    return layer


def contenders(size, with_weights, masked, backward):
    """Name to (layer, function of x that returns output and weights)."""
    batch, length, width, heads = size
    mha = torch_reference(width, heads)
    ours, mask, blocked = from_torch(mha), None, None
    if masked:
        mask = padding_mask([length - 3 * i for i in range(batch)], length)
        blocked = to_key_padding_mask(mask)

    def attention_lib(x):
        out = ours(x, mask=mask, return_weights=with_weights)
        return out if with_weights else (out, None)

    def nn_mha(x):
        options = {"need_weights": with_weights, "average_attn_weights": False}
        return mha(x, x, x, key_padding_mask=blocked, **options)

    formula, kernel = Packed(mha, True), Packed(mha, False)
    found = {OURS: (ours, attention_lib), "nn.MultiheadAttention, train": (mha, nn_mha)}
    if not backward:
        found["nn.MultiheadAttention, eval"] = (mha, nn_mha)
    found["packed, plain formula"] = (formula, lambda x: formula(x, mask))
    if not with_weights:
        found["packed, sdpa"] = (kernel, lambda x: kernel(x, mask))
    if Attention is not None:
        plain, flash = x_transformers(mha, flash=False), x_transformers(mha, flash=True)

        def x_plain(x):
            out, inside = plain(x, attn_mask=mask, return_intermediates=True)
            return out, inside.post_softmax_attn

        found["x-transformers"] = (plain, x_plain)
        if not with_weights:
            found["x-transformers, flash"] = (flash, lambda x: (flash(x, attn_mask=mask), None))
    return found


def timed(name, layer, function, x, backward):
    """The call to time, in the right mode."""

    def forward():
        return function(x)

    def forward_backward():
        layer.zero_grad()
        x.grad = None
        function(x)[0].sum().backward()

    def start():
        layer.train(name.endswith("train") or backward)
        x.requires_grad_(backward)
        torch.set_grad_enabled(backward)

    return start, forward_backward if backward else forward


def assert_equal(found, x, backward):
    """Refuse to time contenders whose outputs, weights or gradients differ from ours."""
    expected = None
    for name, (layer, function) in found.items():
        start, call = timed(name, layer, function, x, backward)
        start()
        call()
        output, weights = function(x)
        got = [output.detach(), weights, x.grad]
        expected = got if expected is None else expected
        for mine, theirs in zip(expected, got, strict=True):
            if mine is not None and theirs is not None:
                torch.testing.assert_close(
                    theirs, mine, atol=2e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
                )


def busy_elsewhere():
    """Processor seconds that other programs have used since the machine started."""
    t, own = psutil.cpu_times(), os.times()
    idle = t.idle + getattr(t, "iowait", 0) + getattr(t, "guest", 0) + getattr(t, "guest_nice", 0)
    return sum(t) - idle - own.user - own.system


def sample(call):
    """Seconds of one call, and cores that other programs used meanwhile.

    With one thread, processor seconds of this process, which other programs disturb less.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    call()
    elsewhere, began, calls = busy_elsewhere(), time.perf_counter(), 0
    start, seconds = clock(), 0.0
    while seconds < SAMPLE_SECONDS:
        call()
        calls, seconds = calls + 1, clock() - start
    others = (busy_elsewhere() - elsewhere) / (time.perf_counter() - began)
    return seconds / calls, others


def quartiles(samples):
    """The three quartiles of the quiet samples in ms; of all of them if few are quiet."""
    quiet = [seconds for seconds, others in samples if others < QUIET]
    noisy = len(quiet) < max(2, len(samples) // 3)
    kept = [seconds for seconds, _ in samples] if noisy else quiet
    return [1000 * q for q in statistics.quantiles(kept, n=4)], noisy


def flops(size, backward):
    """Floating-point operations of projections and products."""
    batch, length, width, _ = size
    linear, products = 8 * batch * length * width**2, 4 * batch * length**2 * width
    return 3 * linear + 3.5 * products if backward else linear + products


def large_product():
    """A call of 2 * 2048**3 operations: what this machine reaches at best."""
    a = torch.randn(2048, 2048)
    return lambda: a @ a


def race(size, with_weights, masked, backward, rounds):
    """The rows of the table for one size: dicts with ms, quartiles, ratios and marks."""
    x = torch.randn(*size[:3], generator=torch.Generator().manual_seed(1))
    found = contenders(size, with_weights, masked, backward)
    assert_equal(found, x, backward)
    samples = {name: [] for name in found}
    product = []
    for _ in range(rounds):
        product.append(sample(large_product()))
        for name in random.sample(list(found), len(found)):
            start, call = timed(name, *found[name], x, backward)
            start()
            samples[name].append(sample(call))
    torch.set_grad_enabled(True)
    times = {name: quartiles(s) for name, s in samples.items()}
    best = min(ms[1] for name, (ms, _) in times.items() if name != OURS)
    peak = 2 * 2048**3 / quartiles(product)[0][1] * 1000
    what = {
        "batch, length, width, heads": size,
        "direction": "forward+backward" if backward else "forward",
        "weights": with_weights,
        "padding mask": masked,
    }
    return [
        what
        | {
            "contender": name,
            "ms": round(ms[1], 4),
            "quartiles": [round(ms[0], 4), round(ms[2], 4)],
            "to best peer": round(ms[1] / best, 3),
            "of the machine": round(flops(size, backward) / ms[1] * 1000 / peak, 3),
            "noisy": noisy,
        }
        for name, (ms, noisy) in times.items()
    ]


def peak():
    """The largest resident memory of this process so far, in MiB."""
    if STATUS.exists():  # Linux; there getrusage starts with the peak of the parent
        return int(STATUS.read_text().split("VmHWM:")[1].split()[0]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def peak_of_this_process(name, direction, length):
    """MiB that one call at batch 1 and width 512 adds to the memory of this process."""
    backward = direction == "forward+backward"
    layer, function = contenders((1, length, 512, 8), False, False, backward)[name]
    for inputs in (torch.randn(1, 16, 512), torch.randn(1, length, 512)):
        start, call = timed(name, layer, function, inputs, backward)
        start()
        if STATUS.exists():  # the peak of the imports is over: start again from here
            STATUS.with_name("clear_refs").write_text("5")
        before = peak()
        call()  # the first one, a short one, loads the kernels
    return peak() - before


def memory(direction):
    """The rows of the memory table: MiB for each contender and length."""
    rows = []
    for name in contenders((1, 16, 64, 4), False, False, direction != "forward"):
        row = {"direction": direction, "contender": name}
        for length in LENGTHS[direction]:
            command = [sys.executable, __file__, "--peak", name, direction, str(length)]
            run = subprocess.run(
                command, capture_output=True, text=True, check=True, env=os.environ | GIVE_BACK
            )
            row[f"MiB at {length}"] = round(float(run.stdout))
        rows.append(row)
    return rows


def about():
    """Date, machine and versions."""
    packages = ["torch", "numpy", "x-transformers"]
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {psutil.cpu_count()} cores",
        "threads": torch.get_num_threads(),
        "versions": versions,
    }


def main():
    """Run what the options ask for."""
    parser = argparse.ArgumentParser(description="Time and memory of attention layers.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        print(peak_of_this_process(*options.peak[:2], int(options.peak[2])))
        return
    result = about() | {"time": [], "memory": []}
    options.output.parent.mkdir(parents=True, exist_ok=True)

    def keep(kind, rows):
        print(tabulate(rows, headers="keys", tablefmt="github"), flush=True)
        result[kind] += rows
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    for size in SIZES:
        for backward in (False, True):
            for with_weights, masked in ((False, False), (False, True), (True, False)):
                keep("time", race(size, with_weights, masked, backward, options.rounds))
    for direction in LENGTHS:
        keep("memory", memory(direction))


if __name__ == "__main__":
    main()
