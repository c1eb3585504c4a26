"""The page `/config`: every option with the value in force and where that comes from."""

from __future__ import annotations

from typing import Final

from pybroker import __version__
from pybroker.admin.view import BrokerView
from pybroker.broker_config import BROKER_OPTIONS
from pybroker.config import Option, OptionType

HIDDEN: Final = "[hidden]"


def config_page(view: BrokerView) -> dict[str, object]:
    """The document of the page, passwords hidden. `source` is `dynamic` (changed while running),
    `given` (file, flags, overrides) or `default`."""
    rooms = view.rooms
    return {
        "version": __version__,
        "broker_id": None if rooms is None else rooms.broker_id,
        "cluster_id": None if rooms is None else rooms.cluster_id,
        "options": [_entry(view, option) for option in BROKER_OPTIONS.values()],
    }


def _entry(view: BrokerView, option: Option) -> dict[str, object]:
    config = view.config
    value = option.format(getattr(config, option.attribute))
    dynamic = view.dynamic()
    source = "given" if option.name in config.given else "default"
    if option.name in dynamic:
        source, value = "dynamic", dynamic[option.name]
    if option.type is OptionType.PASSWORD and value is not None:
        value = HIDDEN
    return {
        "name": option.name,
        "value": value,
        "source": source,
        "default": HIDDEN
        if option.type is OptionType.PASSWORD and option.default is not None
        else option.format(option.default),
        "type": option.type.value,
        "update": option.update.value,
    }
