"""What a tool has measured, kept in tests/ for the page "How this book is checked"."""

import datetime
import json
import platform
from importlib.metadata import version


def made_with(*packages):
    """The day, and the versions of Python and the packages, as an entry holds them."""
    versions = [f"{name} {version(name)}" for name in packages]
    return {
        "date": datetime.date.today().isoformat(),
        "versions": ", ".join([f"Python {platform.python_version()}", *versions]),
    }


def put(path, name, entry, names):
    """Put an entry into the record, and drop those whose name is no longer among ``names``."""
    record = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    record = {key: x for key, x in (record | {name: entry}).items() if key in names}
    path.write_text(json.dumps(dict(sorted(record.items())), indent=1) + "\n", "utf-8")
