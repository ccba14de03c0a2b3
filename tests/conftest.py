"""Settings that every test shares."""

from hypothesis import settings

# The same examples on every run, and no time limit: a slow machine is not a fault of the code.
settings.register_profile("course", deadline=None, derandomize=True)
settings.load_profile("course")
