"""Pack the course into one zip that needs no network: `python tools/download.py`.

The built book in `_build/html`, which `book.html` opens without a server, and beside it what git
tracks: the chapters, the library and all that tests them.
"""

import subprocess
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "attention-course"
FRONT = '<!doctype html><meta http-equiv="refresh" content="0; url=book/chapters/index.html">\n'


def write_zip(tree, book, target):
    """Write the zip `target` with the files of the repository `tree` and the site `book`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True).stdout
    files = {name: Path(tree, name) for name in listed.split("\0") if name}
    files |= {f"book/{p.relative_to(book).as_posix()}": p for p in sorted(book.rglob("*"))}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{NAME}/book.html", FRONT)
        for name, path in files.items():
            if path.is_file() and path != target:
                archive.write(path, f"{NAME}/{name}")


if __name__ == "__main__":
    target = ROOT / "_build" / f"{NAME}.zip"
    write_zip(ROOT, ROOT / "_build" / "html", target)
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB. Unpack it and open book.html.")
