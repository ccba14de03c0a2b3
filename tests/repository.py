"""The working tree as a stranger would have it after a clone: committed, alone, somewhere else."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOBODY = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "Nobody",
    "GIT_AUTHOR_EMAIL": "nobody@example.org",
    "GIT_COMMITTER_NAME": "Nobody",
    "GIT_COMMITTER_EMAIL": "nobody@example.org",
}


def git(*arguments, folder):
    """What git prints, run without the user's settings."""
    command = ["git", *arguments]
    run = subprocess.run(
        command, cwd=folder, env=os.environ | NOBODY, check=True, capture_output=True, text=True
    )
    return run.stdout.strip()


def files():
    """Every file of the working tree that is committed or could be, as paths from the root."""
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", folder=ROOT)
    return [name for name in names.split("\0") if name and (ROOT / name).is_file()]


def commit_all(folder):
    """Commit whatever lies in a repository; the commit's name."""
    git("add", "--all", folder=folder)
    git("commit", "--quiet", "--allow-empty", "--message", "test", folder=folder)
    return git("rev-parse", "HEAD", folder=folder)


def clone_of_working_tree(folder):
    """A new repository in `folder` that holds the working tree in one commit; its name."""
    for name in files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    git("init", "--quiet", "--initial-branch=main", folder=folder)
    return commit_all(folder)
