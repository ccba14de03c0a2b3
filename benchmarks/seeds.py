"""Train the models of chapters 7 to 11 with three seeds each and store what they reach.

    python benchmarks/seeds.py [block retrieval classifier alignment vision]

Each recipe is the chapter's own. The figures go to attention_lib/recorded/, with date, machine and
versions, and the chapter shows them.
"""

import datetime
import json
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch

from attention_lib.training import train

RECORDED = Path(__file__).parents[1] / "attention_lib" / "recorded"
SEEDS = (0, 1, 2)


# One function for each chapter: takes a seed, returns a flat dict of rounded figures.


def block(seed):
    """Chapter 7: who bites, 250 steps with one block and 150 with eight."""
    from torch import nn
    from torch.nn.functional import dropout

    from attention_lib.block import (
        LinearBiasAttention,
        RotaryAttention,
        TransformerBlock,
        sinusoidal_positional_encoding,
    )

    def draw(count, length, rng):
        x = torch.randint(10, 30, (count, length), generator=rng)
        places = torch.rand(count, length, generator=rng).argsort(dim=1)
        biter, verb, bitten = places[:, :3].sort(dim=1).values.T
        who = torch.rand(count, 10, generator=rng).argsort(dim=1)
        rows = torch.arange(count)
        x[rows, biter], x[rows, bitten], x[rows, verb] = who[:, 0], who[:, 1], torch.tensor(30)
        return x, verb, who[:, 0]

    class Biter(nn.Module):
        def __init__(self, make_block, depth=1, positions=False):
            super().__init__()
            self.words, self.positions = nn.Embedding(31, 32), positions
            self.blocks = nn.ModuleList(make_block() for _ in range(depth))
            self.norm, self.out = nn.LayerNorm(32), nn.Linear(32, 10)

        def forward(self, x, verb, is_causal=False):
            h = self.words(x)
            if self.positions:
                h = h + sinusoidal_positional_encoding(x.shape[1], 32)
            for layer in self.blocks:
                h = layer(h, is_causal=is_causal)
            return self.out(self.norm(h[torch.arange(len(x)), verb]))

    class DropsStream(TransformerBlock):
        def forward(self, x, is_causal=False):
            for norm, f in ((self.norm1, self.attention), (self.norm2, self.feedforward)):
                x = x + f(norm(x)) if self.norm_first else norm(x + f(x))
                x = dropout(x, 0.1, self.training)
            return x

    class Replacing(TransformerBlock):
        def forward(self, x, is_causal=False):
            return self.feedforward(self.norm2(self.attention(self.norm1(x))))

    figures = {}

    def fit(name, make, depth, lengths, waves=False, is_causal=False):
        torch.manual_seed(seed)
        rng, model = torch.Generator().manual_seed(seed), Biter(make, depth, waves)
        steps, batch, rate = (250, 64, 1e-2) if depth == 1 else (150, 32, 3e-3)

        def loss():
            x, verb, who = draw(batch, 12, rng)
            return nn.functional.cross_entropy(model(x, verb, is_causal), who)

        train(model, loss, steps, rate)
        for length in lengths:
            x, verb, who = draw(1000, length, torch.Generator().manual_seed(99))
            with torch.no_grad():
                right = model(x, verb, is_causal).argmax(dim=1) == who
            where = f"{length} words" if depth == 1 else f"{depth} blocks"
            figures[f"{name}, {where}"] = round(right.float().mean().item(), 2)

    def plain(**options):
        return lambda: TransformerBlock(32, 2, **options)

    fit("none", plain(), 1, (12, 48))
    fit("waves", plain(), 1, (12, 48), waves=True)
    rotary = lambda: TransformerBlock(32, 2, attention=RotaryAttention(32, 2))  # noqa: E731
    fit("rotary", rotary, 1, (12, 48))
    fit("causal mask", plain(), 1, (12, 48), is_causal=True)
    linear = lambda: TransformerBlock(32, 2, attention=LinearBiasAttention(32, 2))  # noqa: E731
    fit("linear bias", linear, 1, (12, 48), is_causal=True)
    for name, make in {
        "norm first": plain(),
        "norm last": plain(norm_first=False),
        "no residual": lambda: Replacing(32, 2),
        "norm first, added dropped": plain(dropout=0.1),
        "norm first, stream dropped": lambda: DropsStream(32, 2),
    }.items():
        fit(name, make, 8, (12,), waves=True)
    fit("norm last, added dropped", plain(dropout=0.1, norm_first=False), 3, (12,), waves=True)
    stream = lambda: DropsStream(32, 2, norm_first=False)  # noqa: E731
    fit("norm last, stream dropped", stream, 3, (12,), waves=True)
    return figures


def retrieval(seed):
    """Chapter 8: tables, 1200 steps, and texts, 400 steps, with one and two layers."""
    from torch.nn.functional import cross_entropy

    from attention_lib import retrieval as lib

    task, repeat = lib.RecallTask(64, 32), lib.RepeatTask(32)
    torch.manual_seed(seed)
    model, rng = lib.RetrievalModel(64, 32, 64), torch.Generator().manual_seed(seed)

    def table_loss():
        *inputs, answer = task.draw(256, 16, rng)
        return cross_entropy(model(*inputs), answer)

    train(model, table_loss, 1200, 0.01, weight_decay=0.05)
    keys, values, query, answer = task.draw(1000, 16, torch.Generator().manual_seed(99))
    with torch.no_grad():
        logits, weights = model(keys, values, query, return_weights=True)
    of_keys, of_values = model.scores_of_keys(), model.scores_of_values()
    right = of_keys.diagonal() + of_values.amin(dim=1)
    margins = right[:, None] - of_keys - of_values.amax(dim=1)[:, None]
    figures = {
        "table_right": round((logits.argmax(dim=1) == answer).double().mean().item(), 4),
        "table_weight": round(weights[keys == query[:, None]].mean().item(), 4),
        "table_margin": round(margins[~torch.eye(64).bool()].min().item(), 2),
    }

    def known(net, text):
        where = lib.after_earlier_copies(text[:, :-1])
        logits, weights = net(text[:, :-1], return_weights=True)
        seen = where.any(dim=2)
        return logits[seen], text[:, 1:][seen], weights, where

    def trained(heads, layers):
        torch.manual_seed(seed)
        net, rng = lib.InductionModel(32, 64, heads, layers), torch.Generator().manual_seed(seed)
        train(net, lambda: cross_entropy(*known(net, repeat.draw(32, 24, rng))[:2]), 400, 0.01)
        with torch.no_grad():
            return known(net, repeat.draw(500, 24, torch.Generator().manual_seed(99)))

    for name, heads, layers in (("one_layer", 2, 1), ("two_layers", 1, 2)):
        said, right, weights, where = trained(heads, layers)
        figures[name] = round((said.argmax(dim=1) == right).double().mean().item(), 4)
    previous = torch.diag(torch.ones(22), -1).bool()[None]
    figures["previous"] = round(lib.weight_on(weights[:, 0], previous).item(), 4)
    figures["induction"] = round(lib.weight_on(weights[:, 1], where).item(), 4)
    return figures


RECIPES = {"block": block, "retrieval": retrieval}


def main(names):
    """Run the recipes of these names, all by default, and store each when it is done."""
    for name in names or RECIPES:
        runs = []
        for seed in SEEDS:
            start = time.perf_counter()
            figures = RECIPES[name](seed)
            seconds = round(time.perf_counter() - start, 1)
            runs.append({"seed": seed, "seconds": seconds, **figures})
            print(name, runs[-1], flush=True)
        result = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
            "versions": {"python": platform.python_version(), "torch": version("torch")},
            "runs": runs,
        }
        text = json.dumps(result, indent=2) + "\n"
        (RECORDED / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
