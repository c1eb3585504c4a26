"""What holds for every property: how long an example takes says nothing of the code."""

from __future__ import annotations

from hypothesis import settings

# The same examples on every run: what has passed passes again. `--hypothesis-profile=explore` looks
# for others.
settings.register_profile("pybroker", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("pybroker")
