"""Coverage-guided fuzzing of the codec and of the parsers of records, where atheris is installed:

    pip install atheris
    python -m unit_tests.fuzzing.coverage_guided requests --seconds 300

The targets are those of `targets.py`. What breaks a promise, or takes longer than five seconds, is
left in `crash-...` or `timeout-...` in the present directory; put it into `found/` beside this file
as TARGET-WHAT.bin, where a test runs it for ever after.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pybroker.wire.api import APIS
from pybroker.wire.decoder import decoder
from pybroker.wire.encoder import encoder
from unit_tests.fuzzing.seeds import seeds
from unit_tests.fuzzing.targets import TARGETS

ATHERIS: Any = None
with contextlib.suppress(ImportError):
    ATHERIS = importlib.import_module("atheris")

ONE_INPUT_SECONDS_MAX = 5
INPUT_BYTES_MAX = 4096


def main() -> int:
    parser = argparse.ArgumentParser(prog="coverage_guided", description="Fuzz one target.")
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=300, help="how long, in all")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations; 0 for any")
    arguments = parser.parse_args()
    if ATHERIS is None:
        print("skipped: atheris is not installed (pip install atheris)")
        return 0
    for function in {*_functions_of_package(), *_functions_of_codec()}:
        ATHERIS.instrument_func(function)
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(seeds(arguments.target)):
            Path(folder, f"seed-{number}").write_bytes(data)
        options = [
            f"-max_total_time={arguments.seconds}",
            f"-timeout={ONE_INPUT_SECONDS_MAX}",
            f"-max_len={INPUT_BYTES_MAX}",
            f"-seed={arguments.seed}",
        ]
        ATHERIS.Setup([sys.argv[0], *options, folder], TARGETS[arguments.target])
        ATHERIS.Fuzz()  # ends the process
    return 0


def _functions_of_package() -> Iterator[Any]:
    """Yield all functions and methods of pybroker's loaded modules."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("pybroker."):
            continue
        for item in vars(module).values():
            members = vars(item).values() if inspect.isclass(item) else [item]
            for member in members:
                if inspect.isfunction(member) and member.__module__.startswith("pybroker."):
                    yield member


def _functions_of_codec() -> Iterator[Any]:
    """Yield the decoders and encoders of all APIs and versions. The codec makes each at its first
    use."""
    for api in APIS.values():
        for version in range(api.min_version, api.max_version + 1):
            yield decoder(api.request, version, api.is_flexible(version))
            yield encoder(api.request, version, api.is_flexible(version))


if __name__ == "__main__":
    sys.exit(main())
