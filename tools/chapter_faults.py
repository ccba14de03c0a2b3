"""Show that the comparison of the chapters with their stored outputs notices faults.

    python tools/chapter_faults.py [-n WORKERS] [chapter ...]         (make faults CHAPTERS="06 07")

Twice over, each time in a copy of the library and of one chapter:

1. One character is changed in every second stored output. A run of the whole chapter must find
   fault with exactly these cells: with each of them, so the comparison is alive, and with no
   other, so a fault is not noticed by chance.
2. One fault of those that the library's tests must catch is planted, and the chapter is run to the
   first cell that fails, by what it shows or by an error. A fault that no cell notices is kept in
   the record as well.

Writes down what it found in tests/chapter_faults.json, which the page "How this book is checked"
reads; chapters that were not named keep their entries.
"""

import argparse
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it knows its own folder alone
from tools import record

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests" / "chapter_faults.json"
CHAPTERS = sorted(path.stem for path in (ROOT / "chapters").glob("[0-9]*.ipynb"))
# one thread, so that numbers repeat; no progress bar, which is for a person
REPEATABLE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
SECONDS_A_CELL = 600
# What is planted where, by kind; each fault as "module: name" in FAULTS of the library's tests.
PLANTED = {
    "01_lookup": {
        "scale": ["lookup: temperature upside down"],
        "axis": ["lookup: sum over everything"],
        "order": ["lookup: first of equal keys", "lookup: farthest key"],
        "numbers": ["lookup: no maximum subtracted"],
    },
    "02_single_head": {
        "scale": ["single_head: divided by the width, not its root"],
        "axis": ["single_head: softmax over the queries"],
        "transpose": ["single_head: attends across the batch"],
        "bias": ["single_head: input bias left out"],
        "order": ["single_head: query and key projection swapped"],
    },
    "03_scaling": {
        "scale": [
            "scaling: divided by the width",
            "scaling: standard deviation for variance",
            "single_head: divided by the width, not its root",
            "single_head: scale ignored",
        ],
        "axis": ["lookup: sum over everything", "single_head: softmax over the queries"],
        "order": ["scaling: same keys for every query"],
        "numbers": ["scaling: sign turned"],
    },
    "04_multi_head": {
        "scale": ["multi_head: divided by the root of the full width"],
        "transpose": [
            "multi_head: reshape without transpose",
            "multi_head: merge without transpose",
            "multi_head: NumPy attends across the batch",
        ],
        "heads": ["multi_head: heads of one layer taken in another order"],
        "order": ["multi_head: value defaults to the query"],
        "dropout": ["multi_head: dropout in evaluation"],
        "axis": ["single_head: softmax over the queries"],
    },
    "05_parity": {
        "scale": ["single_head: divided by the width, not its root"],
        "transpose": ["multi_head: reshape without transpose", "parity: batch_first ignored"],
        "bias": ["parity: no biases copied"],
        "order": ["parity: key and value in another order", "parity: aliases instead of copies"],
        "dropout": ["parity: checked in training mode"],
        "checks": [
            "parity: a gradient that exists is enough",
            "parity: plain sum of the outputs",
            "parity: every parameter blamed",
        ],
    },
    "06_masks": {
        "mask": [
            "single_head: mask upside down",
            "single_head: is_causal drops the mask",
            "masks: padding upside down",
            "masks: PyTorch's meaning of True forgotten",
            "masks: bias taken for a mask",
        ],
        "axis": ["masks: padding hides queries"],
        "transpose": ["masks: triangle transposed"],
        "causal": [
            "single_head: attends to the future",
            "masks: diagonal blocked",
            "masks: alignment by the longer side",
        ],
        "heads": ["masks: heads first in the folded axis"],
        "numbers": [
            "masks: a large finite number",
            "single_head: NaN for a row without keys",
            "single_head: half precision overflows",
        ],
    },
    "07_block": {
        "scale": ["block: one frequency for each column"],
        "axis": ["block: sine and cosine in halves"],
        "bias": ["block: bias of the wrong sign"],
        "order": ["block: norms in the other order", "block: keys not turned"],
        "dropout": [
            "block: dropout on the whole stream",
            "single_head: weights after dropout returned",
        ],
        "training": ["block: no residual"],
    },
    "08_retrieval": {
        "scale": ["retrieval: scores not scaled"],
        "transpose": ["retrieval: queries in the columns"],
        "causal": ["retrieval: future seen"],
        "order": ["retrieval: answer of another slot"],
        "training": ["training: no step"],
    },
    "09_classifier": {
        "scale": ["classifier: words drown in the sinusoids"],
        "mask": ["masks: padding upside down", "classifier: padding attended to"],
        "checks": ["classifier: weights dealt out to padding"],
    },
    "10_alignment": {
        "mask": ["alignment: attends to the padding"],
        "causal": ["alignment: target not shifted"],
        "order": ["alignment: first position taken in decoding"],
        "checks": ["alignment: weights of the other fields"],
    },
    "11_vision": {
        "axis": ["vision: channels last in a patch"],
        "transpose": [
            "vision: reshape without moving the axes",
            "vision: patches column by column",
            "vision: way back without moving the axes",
        ],
        "dropout": ["vision: tokens are not dropped"],
        "checks": ["vision: rollout without the residual"],
    },
    "12_timing": {
        "scale": ["_work of timing: an addition and a product as one"],
        "checks": ["_work of timing: outputs not compared", "timing: ratio upside down"],
    },
    "13_tiling": {
        "scale": ["tiling: gradient of the query unscaled"],
        "mask": ["tiling: is_causal drops the mask"],
        "causal": ["tiling: end of the diagonal unmasked"],
        "numbers": [
            "tiling: sums keep the old maximum",
            "tiling: NaN for a row without keys",
        ],
    },
    "14_decoding": {
        "scale": ["decoding: temperature upside down"],
        "mask": ["decoding: padding of the cache seen"],
        "causal": ["decoding: window one position too wide"],
        "heads": ["decoding: key heads dealt out in turn"],
        "order": [
            "decoding: each new token at position 0",
            "_cache of decoding: values stored as keys",
        ],
    },
    "15_devices": {
        "causal": ["_ring of devices: a key attends to what comes later"],
        "heads": ["devices: all heads' mask for every rank"],
        "order": [
            "devices: every slice starts at position 0",
            "devices: chunks from the front only",
        ],
        "numbers": [
            "_ring of devices: merged without rescaling",
            "_ring of devices: outputs of the steps averaged",
        ],
        "checks": ["_ranks of devices: the first rank blamed"],
    },
    "16_clinic": {
        "scale": ["block: one frequency for each column"],
        "axis": ["block: sine and cosine in halves"],
        "transpose": ["masks: triangle transposed"],
        "causal": ["masks: diagonal blocked"],
        "training": ["training: no step", "training: steps add up their gradients"],
    },
}


def read_faults():
    """What the library's tests plant: module -> name -> (right, wrong)."""
    return runpy.run_path(str(ROOT / "tests" / "test_planted_faults.py"))["FAULTS"]


def copy_with(folder, chapter, module="", right="", wrong=""):
    """Copy the library, with a change in one module, and a chapter; returns the chapter's copy."""
    shutil.copytree(ROOT / "attention_lib", folder / "attention_lib")
    shutil.copyfile(ROOT / "tests" / "sanitize.cfg", folder / "sanitize.cfg")
    if module:
        path = folder / "attention_lib" / f"{module.partition(' of ')[0]}.py"
        source = path.read_text("utf-8")
        assert source.count(right) == 1, f"{right!r} must stand once in {path.name}"
        path.write_text(source.replace(right, wrong), "utf-8")
    # in a folder of its own, as in the tree: the kernel starts there, and finds the copied library
    (folder / "chapters").mkdir()
    return shutil.copyfile(
        ROOT / "chapters" / f"{chapter}.ipynb", folder / "chapters" / f"{chapter}.ipynb"
    )


def failures(notebook, *options):
    """Run a chapter as the tests do: what failed, by the number that a reader sees at the cell."""
    folder = notebook.parents[1]
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no"]
    command += ["--nbval", "--nbval-sanitize-with", "sanitize.cfg", f"--junitxml={report}"]
    command += [f"--nbval-cell-timeout={SECONDS_A_CELL}", *options, notebook]
    environment = os.environ | REPEATABLE | {"PYTHONPATH": str(folder)}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if run.returncode not in (0, 1):
        sys.exit(f"{notebook.stem}: pytest did not run\n{run.stdout}{run.stderr}")
    return read_report(report)


def read_report(path):
    """How each cell failed, of pytest's report: by its "output", or by the name of an error."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        failure = case.find("failure")
        if failure is not None:
            cell = int(case.get("name").removeprefix("Cell ")) + 1
            said = re.sub(r"(?:\x1b|#x1B)\[[\d;]*m", "", failure.text)
            raised = re.search(r"^(\w+) +Traceback \(|^(\w+Error):", said, re.MULTILINE)
            differs = f"Cell {cell - 1}: Cell outputs differ" in said
            found[cell] = "output" if differs else raised[1] or raised[2] if raised else "no answer"
    return found


def alter(notebook):
    """Change a character in every second output that is compared; returns the cells' numbers."""
    nb = json.loads(notebook.read_text("utf-8"))
    places = []
    for cell in nb["cells"]:
        if "nbval-ignore-output" not in cell["metadata"].get("tags", []):
            holders = [output.get("data", output) for output in cell.get("outputs", [])]
            places += [
                (cell["execution_count"], holder, key)
                for holder in holders
                for key in ("text", "text/plain")
                if key in holder and "image/png" not in holder
            ][:1]
    for _, holder, key in places[::2]:
        holder[key] = changed("".join(holder[key]))
    notebook.write_text(json.dumps(nb), "utf-8")
    return [cell for cell, _, _ in places[::2]]


def changed(text):
    """The text with another last digit, or with its first letter doubled where it has no digit."""
    digits = list(re.finditer(r"\d", text))
    if not digits:
        return re.sub(r"(\w)", r"\1\1", text, count=1)
    at = digits[-1].start()
    return f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}"


def try_outputs(chapter):
    """Alter a chapter's outputs: the cells that were altered, and those that noticed it."""
    with tempfile.TemporaryDirectory() as folder:
        notebook = copy_with(Path(folder), chapter)
        altered = alter(notebook)
        found = failures(notebook)
    noticed = [cell for cell, how in found.items() if how == "output"]
    print(f"{chapter}: {len(noticed)} of {len(altered)} altered outputs noticed", flush=True)
    if noticed != altered or len(found) > len(altered):
        sys.exit(f"{chapter}: the outputs of {altered} were altered, and these cells fail: {found}")
    return {"altered": altered, "noticed": noticed}


def try_fault(chapter, kind, name, faults):
    """Plant a fault: the first cell that noticed it and how, or nothing."""
    module, _, fault = name.partition(": ")
    with tempfile.TemporaryDirectory() as folder:
        notebook = copy_with(Path(folder), chapter, module, *faults[module][fault])
        found = failures(notebook, "-x")
    cell, how = next(iter(found.items()), (None, None))
    print(f"{chapter}: {name}: {f'cell {cell}, {how}' if cell else 'NOT NOTICED'}", flush=True)
    return {"kind": kind, "fault": name, "cell": cell, "how": how}


def examine(chapter, faults, workers):
    """The entry of a chapter in the record."""
    start = time.monotonic()
    outputs = try_outputs(chapter)
    chosen = [(kind, name) for kind, names in PLANTED[chapter].items() for name in names]
    with ThreadPoolExecutor(workers) as pool:
        tried = [pool.submit(try_fault, chapter, *which, faults) for which in chosen]
    seconds = round(time.monotonic() - start)
    return {
        **record.made_with("torch"),
        "seconds": seconds,
        **outputs,
        "faults": [each.result() for each in tried],
    }


def main(chapters, workers):
    """Examine the chapters, and put each into the record as soon as it is done."""
    faults = read_faults()
    for chapter in chapters:
        entry = examine(chapter, faults, workers)
        record.put(RECORD, chapter, entry, CHAPTERS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("chapters", nargs="*", help="such as 06 or 06_masks; every one if none")
    parser.add_argument("-n", "--workers", type=int, default=1)
    arguments = parser.parse_args()
    wanted = tuple(arguments.chapters) or ("",)
    if strange := [name for name in wanted if not any(c.startswith(name) for c in CHAPTERS)]:
        parser.error(f"no chapter begins with {', '.join(strange)}")
    main([name for name in CHAPTERS if name.startswith(wanted)], arguments.workers)
