"""Programs in processes of their own, each with another order of everything that is hashed: what
such an order decides differs between them."""

from __future__ import annotations

import subprocess
import sys


def output_of(program: str, *words: str, hash_seed: str) -> str:
    """What the program prints, given these arguments. Raises CalledProcessError."""
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def outputs_of(program: str) -> set[str]:
    """What it prints under two orders."""
    return {output_of(program, hash_seed=seed) for seed in ("1", "2")}
