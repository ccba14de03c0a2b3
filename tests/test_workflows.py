"""Workflows and citation fit the schemas that GitHub reads them with; the last run is read."""

import shutil
import subprocess
import sys
from importlib import import_module

import pytest
import yaml
from repository import ROOT
from test_layout import PROJECT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def complaints(schema, path):
    """What check-jsonschema, which brings its schemas along, says about a file."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, path]
    run = subprocess.run(command, capture_output=True, text=True)
    return run.stdout + run.stderr if run.returncode else ""


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_is_one_that_github_accepts(path):
    assert complaints("vendor.github-workflows", path) == ""


def test_citation_is_valid_and_of_this_version():
    assert complaints("vendor.citation-file-format", ROOT / "CITATION.cff") == ""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]


@pytest.mark.parametrize(
    ("name", "schema", "old"),
    [
        (".github/workflows/ci.yml", "vendor.github-workflows", "runs-on:"),
        ("CITATION.cff", "vendor.citation-file-format", "authors:"),
    ],
)
def test_misspelt_key_is_found(name, schema, old, tmp_path):
    copy = shutil.copy(ROOT / name, tmp_path)
    text = (ROOT / name).read_text(encoding="utf-8")
    (tmp_path / copy).write_text(text.replace(old, f"x{old}", 1), encoding="utf-8")
    assert complaints(schema, copy) != ""


def test_page_on_checking_takes_its_seconds_from_the_last_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "_ext")
    checked = import_module("checked")
    report = tmp_path / "chapters.xml"
    assert checked.last_run(report) == ({}, None)
    case = '<testcase classname="chapters.01_lookup.ipynb" name="Cell {}" time="{}"/>'
    cases = case.format(0, 1.5) + case.format(1, 2.25)
    report.write_text(f'<a><testsuite timestamp="2026-11-30T01:02:03">{cases}</testsuite></a>')
    assert checked.last_run(report) == ({"01_lookup": 3.75}, "2026-11-30")
