"""Hostile frames against a broker of its own, started for the run.

    python -m integration_tests.fuzzing [--frames N] [--seed TEXT] [--rss-mib N]

prints the result in one line. With exit code 1 it prints the faults and the last lines of the
broker's log. The same seed sends the same frames again.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from integration_tests.broker import PybrokerProcess
from integration_tests.fuzzing.attack import OVERRIDES, attack

PROBE_COMPUTED_S_MAX = 5.0
LOG_LINES_SHOWN = 40


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzzing", description="Hostile frames against a broker.")
    parser.add_argument("--frames", type=int, default=200_000, help="how many frames are sent")
    parser.add_argument("--seed", default="", help="what the frames are made from; else by chance")
    parser.add_argument(
        "--rss-mib", type=int, default=512, help="the memory that the broker may take, in MiB"
    )
    arguments = parser.parse_args()
    seed = arguments.seed or secrets.token_hex(4)
    print(f"seed={seed} frames={arguments.frames}", flush=True)
    with tempfile.TemporaryDirectory(prefix="pybroker-fuzz-") as folder:
        broker = PybrokerProcess(Path(folder, "data"), overrides=OVERRIDES)
        try:
            broker.start()
            outcome = attack(
                broker,
                seed=seed,
                frames=arguments.frames,
                rss_bytes_max=arguments.rss_mib << 20,
                probe_computed_s_max=PROBE_COMPUTED_S_MAX,
            )
            log_text = broker.log_text
        finally:
            broker.close()
    print(outcome)
    for fault in outcome.faults:
        print(f"WRONG: {fault}")
    if outcome.faults:
        print("\n".join(log_text.splitlines()[-LOG_LINES_SHOWN:]))
        print(f"again: make fuzz SEED={seed}")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
