"""Finish a chapter: format it, run it in a clean kernel, clean its metadata, compare a second run.

    python tools/notebook.py chapters/01_lookup.ipynb [more chapters]

A cell that raises leaves the stored notebook as it was, formatting aside.
"""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

# one thread, so that numbers repeat; no progress bar, which is for a person
REPEATABLE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
KEPT = {"tags", "mystnb", "cellView"}


def clean(nb):
    """The same notebook with no metadata but what the book, JupyterLab and Colab read."""
    nb = nbformat.from_dict(nb)
    nb.metadata = nbformat.from_dict(NOTEBOOK_METADATA)
    for cell in nb.cells:
        hidden = cell.metadata.get("jupyter", {}).get("source_hidden")
        cell.metadata = nbformat.from_dict({k: v for k, v in cell.metadata.items() if k in KEPT})
        if hidden:
            cell.metadata.jupyter = nbformat.from_dict({"source_hidden": True})
        cell.pop("attachments", None)
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
    return nb


def run(path):
    """Execute the notebook in its own folder and store outputs, counts and clean metadata."""
    nb = nbformat.read(path, as_version=4)
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    client = NotebookClient(
        nb,
        kernel_name="python3",
        resources={"metadata": {"path": str(Path(path).parent)}},
        record_timing=False,
        coalesce_streams=True,
    )
    nbformat.write(clean(client.execute()), path)


def main(paths):
    """Run all steps on the notebooks at `paths`; the first step that fails ends the program."""
    os.environ.update(REPEATABLE)
    sanitize = Path(__file__).parents[1] / "tests" / "sanitize.cfg"
    python = [sys.executable, "-m"]
    subprocess.run([*python, "ruff", "check", "--fix", *paths], check=True)
    subprocess.run([*python, "ruff", "format", *paths], check=True)
    for path in paths:
        run(path)
    nbval = ["pytest", "-q", "--nbval", "--nbval-sanitize-with", str(sanitize)]
    subprocess.run([*python, *nbval, *paths], check=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        main(sys.argv[1:])
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
