"""The tests of the library catch faults, many of them shipped by real code.

Each fault is planted in a copy of the library, and the module's own tests must fail there.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FAULTS = {
    "lookup": {
        "no maximum subtracted": ("np.exp(x - np.where(np.isneginf(peak), 0, peak))", "np.exp(x)"),
        "sum over everything": ("exponentials.sum(axis=axis, keepdims=True)", "exponentials.sum()"),
        "first of equal keys": ("len(keys) - 1 - equal[..., ::-1]", "equal"),
        "farthest key": ("(query @ keys.T).argmax", "(query @ keys.T).argmin"),
        "temperature upside down": ("keys.T / temperature) @", "keys.T * temperature) @"),
        "temperature 0 accepted": ("not temperature > 0", "temperature < 0"),
    },
    "single_head": {
        "mask upside down": ("~(allowed | empty)", "(allowed | empty)"),
        "attends to the future": (".tril()", ".triu()"),
        "is_causal drops the mask": ("mask & triangle", "triangle"),
        "NaN for a row without keys": ("weights.masked_fill(empty, 0.0)", "weights / ~empty"),
        "mean of all values for a row without keys": ("output.masked_fill(empty, 0.0)", "output"),
        "masked by a large finite number": ("-math.inf).softmax", "-1e4).softmax"),
        "divided by the width, not its root": ("1 / math.sqrt(query", "1 / (query"),
        "scale ignored": ("query * scale", "query / math.sqrt(query.shape[-1])"),
        "softmax over the queries": ("scores.softmax(dim=-1)", "scores.softmax(dim=-2)"),
        "half precision overflows": ("query.float(), key.float()", "query, key"),
        "weights after dropout returned": ("(output, weights.to(", "(output, kept.to("),
        "weights in another dtype": ("(output, weights.to(query.dtype))", "(output, weights)"),
        "query and key projection swapped": ("self.q_proj(query)", "self.k_proj(query)"),
        "input bias left out": ("(0 if in_proj_bias is None else in_proj_bias)", "0"),
        "attends across the batch": ("x.swapaxes(0, 1) for x in np", "x for x in np"),
    },
    "_validate": {
        "error without the shape": ("{name: tuple(tensor.shape)", "{name: ()"),
        "samples broadcast": ("shape[:-2] != query[:-2]", "len(shape) != len(query)"),
        "is_causal with two lengths": ("if is_causal and query", "if False and query"),
        "numbers as mask": ("mask.dtype != torch.bool", "mask.dtype.is_complex"),
    },
    "plots": {
        "numbers at the wrong place": ("ax.text(column, row,", "ax.text(row, column,"),
        "a scale for each line": ("ax.plot(x, y,", "ax.plot(x, y / np.max(y),"),
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "fault"), [(module, fault) for module, faults in FAULTS.items() for fault in faults]
)
def test_planted_fault_is_caught(module, fault, tmp_path):
    for name in ("attention_lib", "pyproject.toml", "tests/conftest.py"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        (tmp_path / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    tests = f"tests/test_{'single_head' if module == '_validate' else module}.py"
    shutil.copyfile(ROOT / tests, tmp_path / tests)
    path = tmp_path / "attention_lib" / f"{module}.py"
    source = path.read_text(encoding="utf-8")
    right, wrong = FAULTS[module][fault]
    assert source.count(right) == 1, f"{right!r} must stand once in {module}.py to plant a fault"
    path.write_text(source.replace(right, wrong), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", tests],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1, f"the tests pass, or do not run, with {fault!r}:\n{run.stdout}"
