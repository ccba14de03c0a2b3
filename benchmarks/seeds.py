"""Train the models of chapters 7 to 11 and 14 with three seeds each and store what they reach.

    python benchmarks/seeds.py [block retrieval classifier alignment vision decoding]

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
    """Chapter 7: who bites, 250 steps with one block and 150 with two, three and eight."""
    from functools import partial

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
    fit("causal mask", plain(), 1, (12, 48, 192), is_causal=True)
    linear = lambda: TransformerBlock(32, 2, attention=LinearBiasAttention(32, 2))  # noqa: E731
    fit("linear bias", linear, 1, (12, 48, 192), is_causal=True)
    no_residual = lambda: Replacing(32, 2)  # noqa: E731
    fit("no residual", no_residual, 2, (12,), waves=True)
    fit("no residual", no_residual, 8, (12,), waves=True)
    fit("norm first", plain(), 8, (12,), waves=True)
    fit("norm last", plain(norm_first=False), 8, (12,), waves=True)
    for place, norm_first, depth in (("first", True, 8), ("first", True, 3), ("last", False, 3)):
        added = plain(dropout=0.1, norm_first=norm_first)
        stream = partial(DropsStream, 32, 2, norm_first=norm_first)
        fit(f"{place}, added", added, depth, (12,), waves=True)
        fit(f"{place}, stream", stream, depth, (12,), waves=True)
    return figures


def retrieval(seed):
    """Chapter 8: tables, 1200 and 300 steps, and texts, 400, with one and two layers."""
    from torch.nn.functional import cross_entropy

    from attention_lib import retrieval as lib

    task, repeat = lib.RecallTask(64, 32), lib.RepeatTask(32)
    torch.manual_seed(seed)
    model, rng = lib.RetrievalModel(64, 32, 64), torch.Generator().manual_seed(seed)

    def table_loss():
        *inputs, answer = task.draw(256, 16, rng)
        return cross_entropy(model(*inputs), answer)

    for steps, rate in (1200, 0.01), (300, 0.001):
        train(model, table_loss, steps, rate, weight_decay=0.05)
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


def classifier(seed):
    """Chapter 9: whose sentence, with five poolings; praise or complaint; 300 steps each."""
    from functools import partial

    from attention_lib import classifier as lib

    data = lib.library_sentences(2400)
    texts = [text for own in data.values() for text in own[:2000]]
    tests = [text for own in data.values() for text in own[2000:]]
    y, test_y = torch.arange(4).repeat_interleave(2000), torch.arange(4).repeat_interleave(400)
    vocabulary = lib.Vocabulary.of_texts(texts, 4000)

    def fit(ids, labels, words, change=None, **options):
        torch.manual_seed(seed)
        model = lib.AttentionClassifier(words, 32, 2, int(labels.max()) + 1, 1, **options)
        model = lib.with_changed_weights(model, change) if change else model
        rng = torch.Generator().manual_seed(seed)

        def loss():
            rows = torch.randint(len(ids), (64,), generator=rng)
            batch = ids[rows][:, : int((ids[rows] != 0).sum(dim=1).max())]
            return torch.nn.functional.cross_entropy(model(batch), labels[rows])

        train(model, loss, 300, 1e-2, weight_decay=0.05)
        return model

    @torch.no_grad()
    def right(model, ids, labels):
        return round((model(ids).argmax(dim=1) == labels).double().mean().item(), 3)

    def same(answers, others):
        return round((answers == others).double().mean().item(), 3)

    @torch.no_grad()
    def same_with_shuffled_shares(model):
        logits, _, share = model(test, return_weights=True)
        x, real, _ = model.read(test)
        share = lib.shuffled_weights(share, real, torch.Generator().manual_seed(1))
        answers = model.head((share[:, None] @ x)[:, 0]).argmax(dim=1)
        return same(answers, logits.argmax(dim=1))

    def alone(weights, mask):  # each word attends to itself
        return torch.eye(weights.shape[-1]).expand_as(weights)

    figures = {}
    for name, options in {
        "mean": {},
        "max": {"pooling": "max"},
        "class token": {"pooling": "first"},
        "first word, no positions": {"pooling": "first", "positions": False},
        "attention": {"pooling": "attention"},
    }.items():
        ids, test = (vocabulary.encode(x, name == "class token") for x in (texts, tests))
        model = fit(ids, y, len(vocabulary), dropout=0.3, **options)
        figures[name] = right(model, test, test_y)
    uniform = lib.with_changed_weights(model, lib.uniform_weights)
    figures["library, uniform heads"] = right(uniform, test, test_y)
    figures["shares shuffled, same"] = same_with_shuffled_shares(model)
    unmixed = fit(ids, y, len(vocabulary), alone, dropout=0.3, pooling="attention")
    figures["unmixed"] = right(unmixed, test, test_y)
    figures["unmixed, shares shuffled, same"] = same_with_shuffled_shares(unmixed)

    words = []
    hook = model.embed.register_forward_hook(lambda module, inputs, output: words.append(output))
    logits, weights, share = model(test, return_weights=True)
    hook.remove()
    (gradient,) = torch.autograd.grad(logits.amax(dim=1).sum(), words[0])
    said = logits.argmax(dim=1)
    counts = torch.stack([ids[y == k].flatten().bincount(minlength=4000) for k in range(4)])
    ratio = (counts + 1).log() - (counts + 1).log().mean(dim=0)
    with torch.no_grad():
        for name, claim in {
            "random word": torch.rand(test.shape, generator=torch.Generator().manual_seed(1)),
            "counts": ratio[said].gather(1, test),
            "pooling word": share,
            "heads": (weights[:, 0].mean(dim=1) * (test != 0)[..., None]).sum(dim=1),
            "gradient × word": (gradient * words[0]).sum(dim=2),
        }.items():
            top = claim.masked_fill(test == 0, -torch.inf).topk(1).indices
            answers = model(test.scatter(1, top, lib.UNKNOWN)).argmax(dim=1)
            figures[f"answers changed, {name}"] = round(1 - same(answers, said), 3)

    praise, labels = lib.opinions(2000, torch.Generator().manual_seed(0))
    more, test_labels = lib.opinions(300, torch.Generator().manual_seed(1))
    few = lib.Vocabulary.of_texts(praise, 100)
    ids, test = few.encode(praise), few.encode(more)
    labels, test_labels = torch.tensor(labels), torch.tensor(test_labels)
    for name, options in {
        "opinions, no positions": {"positions": False},
        "opinions, trained with uniform heads": {"change": lib.uniform_weights},
        "opinions": {},
    }.items():
        model = fit(ids, labels, len(few), **options)
        figures[name] = right(model, test, test_labels)
    moved = few.encode(["and " * 3 + text for text in more])
    figures["opinions, 3 words in front"] = right(model, moved, test_labels)
    for name, change in {
        "uniform": lib.uniform_weights,
        "shuffled": partial(lib.shuffled_weights, generator=torch.Generator().manual_seed(1)),
    }.items():
        changed = lib.with_changed_weights(model, change)
        figures[f"opinions, {name} heads"] = right(changed, test, test_labels)
    with torch.no_grad():
        weights = model(test, return_weights=True)[1][:, 0]
    chosen = torch.isin(test, few.encode([" ".join(["not", *lib.GOOD, *lib.BAD])]))
    first = chosen & (chosen.cumsum(dim=1) == 1)
    for name, words in {"weight on deciding words": chosen, "weight on the first": first}.items():
        on_words = (weights * words[:, None, None]).sum(dim=-1).movedim(1, -1)[test != 0]
        figures[name] = round(on_words.mean(dim=0).max().item(), 2)
    return figures


def alignment(seed):
    """Chapter 10: dates to ISO dates, 450 steps."""
    from attention_lib.alignment import (
        Characters,
        Transducer,
        date_pairs,
        greedy_decode,
        shift_right,
        weight_on_field,
    )

    pairs, test = date_pairs()
    letters, digits = Characters(p.text for p in pairs), Characters(p.iso for p in pairs)
    source = letters.encode([p.text for p in pairs])
    target = digits.encode([p.iso for p in pairs], end=True)
    torch.manual_seed(seed)
    model, rng = Transducer(len(letters), len(digits)), torch.Generator().manual_seed(seed)

    def loss():
        i = torch.randint(len(pairs), (128,), generator=rng)
        scores = model(source[i], shift_right(target[i]))
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), target[i].flatten())

    losses = train(model, loss, 450, 5e-3)
    unseen = letters.encode([p.text for p in test])
    target_unseen = digits.encode([p.iso for p in test], end=True)
    read = digits.decode(greedy_decode(model, unseen, 11))
    with torch.no_grad():
        _, weights = model(unseen, shift_right(target_unseen), return_weights=True)
    named = torch.tensor([p.fields.count("M") > 2 for p in test])
    fields = [p.fields for p in test]
    month = weight_on_field(weights, fields, "M")[named].mean(dim=0)
    day = weight_on_field(weights, fields, "d").mean(dim=0)
    return {
        "loss": float(f"{sum(losses[-20:]) / 20:.3g}"),
        "exact_match": sum(a == p.iso for a, p in zip(read, test, strict=True)) / len(test),
        "month_tens": round(month[5].item(), 2),
        "month_ones": round(month[6].item(), 2),
        "day_ones": round(day[9].item(), 2),
    }


def vision(seed):
    """Chapter 11: digits in patches, 700 steps, with positions and without."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    from attention_lib.vision import PatchClassifier, patchify, replace_patches, rollout

    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, random_state=0, stratify=labels)
    x, test_x = (torch.tensor(part).float().view(-1, 1, 8, 8) for part in parts[:2])
    y, test_y = map(torch.tensor, parts[2:])

    def accuracy(model, images):
        with torch.no_grad():
            return (model(images).argmax(dim=1) == test_y).double().mean().item()

    figures = {}
    for name in ("without positions", "with"):
        torch.manual_seed(seed)
        model, rng = (
            PatchClassifier((8, 8), 2, 10, dropout=0.1),
            torch.Generator().manual_seed(seed),
        )
        if name != "with":
            with torch.no_grad():
                model.positions.zero_().requires_grad_(False)

        def loss(model=model, rng=rng):
            batch = torch.randint(len(x), (64,), generator=rng)
            return torch.nn.functional.cross_entropy(model(x[batch]), y[batch])

        losses = train(model, loss, 700, 3e-3, weight_decay=0.05)
        figures[name] = round(accuracy(model, test_x), 3)
    with torch.no_grad():
        _, weights = model(test_x, return_weights=True)
    rolled, n = rollout(weights)[:, 0, 1:], len(test_x)
    random = torch.rand(n, 16, generator=rng)
    donors = [test_x[torch.randperm(n, generator=rng)] for _ in range(5)]
    ink, place = patchify(test_x, 2).mean(dim=2), patchify(x, 2).var(dim=0).mean(dim=1)
    blank = [torch.zeros_like(test_x)]

    def left(claim, donors=donors):
        top = claim.expand(n, 16).topk(4).indices
        mixed = [replace_patches(test_x, donor, top, 2) for donor in donors]
        return round(sum(accuracy(model, images) for images in mixed) / len(mixed), 2)

    sharpest = weights[:, 0, :, 0, 1:].amax(dim=-1).mean(dim=0).min().item()
    return {
        "loss": float(f"{sum(losses[-50:]) / 50:.3g}"),
        "accuracy": figures["with"],
        "accuracy without positions": figures["without positions"],
        "least sharp head of the first layer": round(sharpest, 2),
        "right answers left: random": left(random),
        "right answers left: rollout": left(rolled),
        "right answers left: another's rollout": left(rolled.roll(1, dims=0)),
        "right answers left: mean rollout": left(rolled.mean(dim=0)),
        "right answers left: place": left(place),
        "right answers left: rollout, white": left(rolled, blank),
        "right answers left: ink, white": left(ink, blank),
    }


def decoding(seed):
    """Chapter 14: shared key/value heads, 150 steps each, and heads joined by their mean."""
    import copy
    import re
    from pydoc_data.topics import topics

    from torch.nn.functional import cross_entropy

    from attention_lib.alignment import Characters
    from attention_lib.decoding import LanguageModel, group_heads

    paragraphs = [p for text in topics.values() for p in text.split("\n\n")]
    lines = [" ".join(re.findall("[a-z]+", p.lower())) for p in paragraphs]
    lines = [line for line in dict.fromkeys(lines) if len(line) > 40]
    letters = Characters(lines)
    order = torch.randperm(len(lines), generator=torch.Generator().manual_seed(0)).tolist()
    ids = [letters.encode([lines[i]], end=True)[0] for i in order]
    test, text = (torch.cat(x).unfold(0, 65, 1) for x in (ids[:150], ids[150:]))

    def fit(model, steps, rate):
        rng = torch.Generator().manual_seed(seed)

        def loss():
            x = text[torch.randint(len(text), (16,), generator=rng)]
            return cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

        train(model, loss, steps, rate)
        return model

    @torch.no_grad()
    def reached(model):
        x = test[::64][:300]
        return round(cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).item(), 3)

    figures, models = {}, {}
    for name, heads, hidden in (("8", 8, 256), ("2", 2, 256), ("1", 1, 256), ("1, wider", 1, 312)):
        torch.manual_seed(seed)
        model = LanguageModel(len(letters), 64, 8, 2, heads, feedforward_dim=hidden)
        models[name] = fit(model, 150, 1e-2)
        figures[name] = reached(model)
    joined = copy.deepcopy(models["8"])
    for block in joined.blocks:
        block.attention = group_heads(block.attention, 2)
    figures["8 joined to 2"] = reached(joined)
    figures["joined, 30 steps on"] = reached(fit(joined, 30, 5e-3))
    figures["8, 30 steps on"] = reached(fit(models["8"], 30, 5e-3))
    return figures


RECIPES = {
    "block": block,
    "retrieval": retrieval,
    "classifier": classifier,
    "alignment": alignment,
    "vision": vision,
    "decoding": decoding,
}


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
