"""What the README and its neighbours promise: links, commands, and the map of chapters."""

import re
import subprocess
from urllib.parse import urlsplit

import pytest
from repository import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMENT = re.compile(r"^# (make \w+)$", re.MULTILINE)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_are_relative_and_lead_to_files(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if urlsplit(link).scheme or not (ROOT / link).is_file()] == []


def dry_run(target):
    """The commands behind a make target, without those that make the environment."""
    command = ["make", "--dry-run", "--no-print-directory", target]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lines = re.sub(r"\s*\\\n\s*", " ", output).replace("'", '"').splitlines()
    programs = (".venv/bin/jupyter", ".venv/bin/python -m pytest")
    return [line for line in lines if line.startswith(programs)]


@pytest.mark.parametrize("system", ["bash", "powershell"])
@pytest.mark.parametrize("target", ["book", "test", "lab"])
def test_commands_without_make_are_those_of_make(target, system):
    blocks = re.findall(rf"```{system}\n(.*?)```", README, re.DOTALL)
    block = next(block for block in blocks if "-m venv .venv" in block)
    parts = COMMENT.split(block)
    commands = dict(zip(parts[1::2], parts[2::2], strict=True))[f"make {target}"]
    commands = commands.replace("\\Scripts\\", "/bin/").splitlines()
    found = [line for line in commands if line.startswith(".venv")]
    assert found == dry_run(target) != []


@pytest.mark.parametrize("path", sorted((ROOT / "chapters").glob("*.ipynb")), ids=lambda p: p.name)
def test_map_names_the_chapter_and_its_module(path):
    row = next(line for line in README.splitlines() if f"](chapters/{path.name})" in line)
    module = f"attention_lib/{path.stem[3:]}.py"
    assert f"({module})" in row or not (ROOT / module).exists()
