"""What a tool says of a topic's options that this version takes and does not carry out."""

from __future__ import annotations

from collections.abc import Mapping

import click

from pybroker.config.without_effect import sentence, topic_options_without_effect


def warn(topic: str, config: Mapping[str, str]) -> None:
    """A line on standard error for each of the options that were set and have no effect. They are
    stored all the same, as Apache's tools and brokers store them."""
    for option in topic_options_without_effect(topic, config):
        click.echo(f"WARN {sentence(topic, option)}", err=True)
