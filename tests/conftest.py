"""Settings that every test shares."""

import os

from hypothesis import settings

# The same examples on every run, and no time limit: a slow machine is not a fault of the code.
settings.register_profile("course", deadline=None, derandomize=True)
settings.load_profile("course")

# The kernels run on the CPU. Triton reads this when it is imported, which other libraries do too;
# on a machine with a GPU, TRITON_INTERPRET=0 runs them there.
os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_terminal_summary(terminalreporter):
    """Print what tests recorded: the table of the pages, the seconds to a first output."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name} {value}")
