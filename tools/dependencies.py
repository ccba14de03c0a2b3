"""Bring licences and dates of DEPENDENCIES.md up to date, from the package index.

    python tools/dependencies.py ADDRESS

ADDRESS is that of the index's JSON interface: ADDRESS/name/json tells of a package. What a package
is for and what would replace it is written by hand, a line for each package of every requirements
file; the rest of the line is written here.
"""

import json
import re
import sys
import urllib.request
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "DEPENDENCIES.md"
FILES = sorted([*ROOT.glob("requirements*.txt"), *ROOT.glob("benchmarks/requirements*.txt")])
ROW = re.compile(
    r"^\| (?P<name>[\w.-]+) \| (?P<use>[^|]+) \| (?P<instead>[^|]+) \|"
    r"(?P<licence>[^|]*)\|(?P<release>[^|]*)\|$",
    re.MULTILINE,
)


def pinned():
    """The names of all packages that a requirements file pins."""
    lines = [line for file in FILES for line in file.read_text("utf-8").splitlines()]
    named = [line.partition("#")[0].strip() for line in lines if line[:1] not in ("", "#", "-")]
    return {Requirement(line).name for line in named}


def looked_up(row):
    """The row with the licence and the newest release that the index knows."""
    if row["name"] not in pinned():
        return row[0]
    with urllib.request.urlopen(f"{sys.argv[1]}/{row['name']}/json", timeout=60) as answer:
        package = json.load(answer)
    info = package["info"]
    classified = [c for c in info["classifiers"] if c.startswith("License ::")]
    names = [c.rpartition(" :: ")[2].removesuffix(" License") for c in classified]
    licence = info["license_expression"] or ", ".join(names) or info["license"]
    licence = (licence or installed_licence(row["name"])).split("\n")[0].strip()
    stable = [v for v in map(Version, package["releases"]) if not v.is_prerelease]
    newest = str(max(v for v in stable if package["releases"].get(str(v))))
    day = package["releases"][newest][0]["upload_time"][:10]
    return f"| {row['name']} | {row['use']} | {row['instead']} | {licence} | {newest}, {day} |"


def installed_licence(name):
    """The text in the package, which must be installed, where the index says nothing."""
    files = [file for file in metadata.files(name) if "LICENSE" in file.name.upper()]
    return files[0].read_text(encoding="utf-8") if files else "not said"


if __name__ == "__main__":
    TABLE.write_text(ROW.sub(looked_up, TABLE.read_text("utf-8")), encoding="utf-8")
