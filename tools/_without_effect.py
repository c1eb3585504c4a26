"""Warns about topic options that the brokers accept and that have no effect."""

from __future__ import annotations

from collections.abc import Mapping

import click

from pybroker.config.without_effect import options_without_effect, sentence


def warn(topic: str, config: Mapping[str, str]) -> None:
    """Print a warning on standard error for each option of `config` that has no effect."""
    for option in options_without_effect(config):
        click.echo(f"WARN {sentence(topic, option)}", err=True)
