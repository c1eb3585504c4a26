"""The page `/config`: each option with its current value and the source of the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pybroker import __version__
from pybroker.admin.view import BrokerView
from pybroker.config.broker_config import BROKER_OPTIONS
from pybroker.config.declaration import Option, Value
from pybroker.config.layered_config import LayeredConfig, Source, is_secret

HIDDEN: Final = "[hidden]"
SOURCES: Final[Mapping[Source, str]] = {
    Source.BROKER: "dynamic for this broker",
    Source.ALL_BROKERS: "dynamic for all brokers",
    Source.FILE: "given at the start",
    Source.DEFAULT: "default",
}


def config_page(view: BrokerView) -> dict[str, object]:
    """Return the page `/config` as a JSON document: each option with its value, the source of the
    value, and its default. Passwords are hidden."""
    rooms = view.rooms
    layers = LayeredConfig(view.config) if rooms is None else rooms.layers()
    return {
        "version": __version__,
        "broker_id": None if rooms is None else rooms.broker_id,
        "cluster_id": None if rooms is None else rooms.cluster_id,
        "options": [_entry(layers, option) for option in BROKER_OPTIONS.values()],
    }


def _entry(layers: LayeredConfig, option: Option) -> dict[str, object]:
    places = (
        (layers.for_this, Source.BROKER),
        (layers.for_all, Source.ALL_BROKERS),
        (layers.static.given, Source.FILE),
    )
    source = next((source for given, source in places if option.name in given), Source.DEFAULT)
    return {
        "name": option.name,
        "value": _shown(option, getattr(layers.current, option.attribute)),
        "source": SOURCES[source],
        "default": _shown(option, option.default),
        "type": option.type.value,
        "update": option.update.value,
    }


def _shown(option: Option, value: Value) -> str | None:
    text = option.format(value)
    return HIDDEN if text is not None and is_secret(option) else text
