"""Converts the environment variables of other Kafka images to Kafka's options:

- Apache, Confluent: `KAFKA_` and the option in capitals, with `_` for `.`, `__` for `_`, `___` for
  `-`
- Bitnami: the same after `KAFKA_CFG_`
- wurstmeister: `KAFKA_CREATE_TOPICS`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.config.broker_config import BROKER_OPTIONS, small_cluster_properties
from pybroker.config.broker_options import CLEANUP_POLICIES
from pybroker.config.declaration import nearest_name
from pybroker.config.kafka_options import NOT_IMPLEMENTED, PLUGIN_PREFIXES, REFUSED
from pybroker.model import topic_name_fault

PREFIX: Final = "KAFKA_"
OWN_PREFIXES: Final = ("KAFKA_CFG_", PREFIX)
"""Prefixes of the variables; the longer prefix is tried first."""
CREATE_TOPICS: Final = "KAFKA_CREATE_TOPICS"
CREATE_TOPICS_SEPARATOR: Final = "KAFKA_CREATE_TOPICS_SEPARATOR"
DATA_DIRECTORY: Final = "/var/lib/kafka/data"
DEFAULT_LISTENERS: Final = "PLAINTEXT://0.0.0.0:9092"
DEFAULT_ADVERTISED: Final = "PLAINTEXT://localhost:9092"
HTTP_OPTION: Final = "pybroker.http.listener"
DEFAULT_HTTP: Final = "0.0.0.0:8090"
"""The default HTTP listener binds to all interfaces, because the network isolates the container."""
PARTITIONS_MAX: Final = 10_000
REPLICAS_MAX: Final = 32_767

_KRAFT: Final = "is an option of KRaft mode, and this broker runs with ZooKeeper"
KRAFT_ONLY: Final[Mapping[str, str]] = {
    "process.roles": f"{_KRAFT}; remove it",
    "node.id": f"{_KRAFT}; set KAFKA_BROKER_ID instead",
    "controller.quorum.voters": (
        f"{_KRAFT}; set KAFKA_ZOOKEEPER_CONNECT, or remove it for the embedded ZooKeeper"
    ),
    "controller.quorum.bootstrap.servers": (
        f"{_KRAFT}; set KAFKA_ZOOKEEPER_CONNECT, or remove it for the embedded ZooKeeper"
    ),
    "controller.listener.names": f"{_KRAFT}; remove it, and its listener from KAFKA_LISTENERS",
}
"""KRaft option -> the error message, which says which option to set instead."""

IGNORED: Final[tuple[tuple[str, str], ...]] = (
    (
        r"KAFKA_(HEAP|JVM_PERFORMANCE|GC_LOG|JMX)_OPTS|KAFKA_OPTS|KAFKA_DEBUG",
        "the broker does not run in a JVM",
    ),
    (r"KAFKA_JMX_\w+|JMX_PORT", "the broker has no JMX; it serves its metrics over HTTP"),
    (r"KAFKA_(TOOLS_)?LOG4J_\w+", "the broker does not use log4j; set KAFKA_PYBROKER_LOG_LEVELS"),
    (r"CLUSTER_ID|KAFKA_KRAFT_CLUSTER_ID", "the broker reads the cluster id from ZooKeeper"),
    (
        r"KAFKA_(SERVICE_(HOST|PORT)\w*|PORT(_\d+_(TCP|UDP)\w*)?)",
        "Kubernetes sets it for a service",
    ),
)
"""Patterns of variables that other images use, with the reason why this image ignores them. Each
ignored variable is logged. KAFKA_PORT is ignored only if its value is a URL, as Kubernetes sets it.
"""

SILENT: Final = frozenset(
    {"KAFKA_HOME", "KAFKA_VERSION", "KAFKA_CREATE_TOPICS", "KAFKA_CREATE_TOPICS_SEPARATOR"}
    | {"ALLOW_PLAINTEXT_LISTENER", "ALLOW_ANONYMOUS_LOGIN"}
)
"""Variables that are no broker options. They are ignored without a log line."""

SECRETS: Final[Mapping[str, tuple[str, bool]]] = {
    "KAFKA_SSL_KEYSTORE_FILENAME": ("ssl.keystore.location", False),
    "KAFKA_SSL_TRUSTSTORE_FILENAME": ("ssl.truststore.location", False),
    "KAFKA_SSL_KEYSTORE_CREDENTIALS": ("ssl.keystore.password", True),
    "KAFKA_SSL_KEY_CREDENTIALS": ("ssl.key.password", True),
    "KAFKA_SSL_TRUSTSTORE_CREDENTIALS": ("ssl.truststore.password", True),
}
"""Variable that names a file -> the option that it sets, and what becomes the option's value: the
content of the file (True) or its path (False)."""

OTHER_NAMES: Final[Mapping[str, str]] = {"KAFKA_LOG4J_ROOT_LOGLEVEL": "pybroker.log.level"}
"""Variable of another image -> the equivalent pybroker option."""

SECRETS_DIRECTORY: Final = "/etc/kafka/secrets"

_LISTENER_HOST: Final = re.compile(r"://(\[[^\]]*\]|[^:,\[\]]*):")
_TOPIC_PARTS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """A topic in KAFKA_CREATE_TOPICS. If `partitions` or `replicas` is -1, the broker's default
    applies."""

    name: str
    partitions: int = -1
    replicas: int = -1
    cleanup_policy: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The options from the environment variables and the mounted file `server.properties`."""

    properties: Mapping[str, str]
    """Option -> value. A variable wins over the file, and the file wins over the defaults."""
    sources: Mapping[str, str]
    """Option -> the variable that set it."""
    topics: tuple[WantedTopic, ...] = ()
    notices: tuple[str, ...] = ()
    """Log lines about ignored variables."""
    faults: tuple[str, ...] = ()
    """The faults that prevent the broker's start; each fault names a variable."""

    def name_source(self, fault: str) -> str:
        """Return the error message `fault`, which begins with an option's name. If an environment
        variable set that option, the result begins with the variable's name."""
        named = re.match(r"[\w.-]+", fault)
        source = self.sources.get(named.group()) if named else None
        return f"{source}: {fault}" if source else fault


@dataclass(slots=True)
class _Reading:
    """The result of converting environment variables so far: options, notices and faults."""

    read_secret: Callable[[str], str]
    properties: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def set(self, option: str, value: str, variable: str) -> None:
        earlier = self.sources.get(option)
        if earlier is not None and self.properties[option] != value:
            self.faults.append(
                f"{variable}: the variable {earlier} sets the option {option}"
                " to another value; remove one of the two"
            )
        self.properties[option] = value
        self.sources[option] = variable

    def take(self, variable: str, value: str) -> None:
        """Convert one variable, and add the result to the options, notices or faults."""
        reason = _reason_to_ignore(variable, value)
        if variable in OTHER_NAMES:
            self.set(OTHER_NAMES[variable], value.upper(), variable)
        elif reason is not None:
            self.notices.append(f"{variable} is ignored: {reason}")
        elif variable in SECRETS:
            self._take_secret(variable, value)
        else:
            self._take_option(variable, value)

    def _take_secret(self, variable: str, file: str) -> None:
        option, inside = SECRETS[variable]
        path = f"{SECRETS_DIRECTORY}/{file}"
        if not inside:
            self.set(option, path, variable)
            return
        try:
            self.set(option, self.read_secret(path).strip(), variable)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            self.faults.append(f"{variable}: {path} cannot be read: {reason}")

    def _take_option(self, variable: str, value: str) -> None:
        option = option_name(variable)
        if option in KRAFT_ONLY:
            self.faults.append(f"{variable} {KRAFT_ONLY[option]}")
        elif option in _known() or option.startswith(PLUGIN_PREFIXES):
            self.set(option, value, variable)
        else:
            meant = nearest_name(option, _known())
            hint = f"; did you mean {variable_name(meant)}?" if meant else ""
            self.notices.append(f"{variable} is ignored: the option {option} does not exist{hint}")


def read_settings(
    environment: Mapping[str, str],
    file: Mapping[str, str] | None,
    read_secret: Callable[[str], str],
) -> Settings:
    """Return the options of the environment and of server.properties (`file`), and a list of the
    faults in both. `read_secret` returns a file's text or raises OSError."""
    reading = _Reading(read_secret)
    for variable in sorted(environment):
        ours = variable.startswith(PREFIX) or variable in ("CLUSTER_ID", "JMX_PORT")
        if ours and variable not in SILENT and environment[variable].strip():
            reading.take(variable, environment[variable])
    topics, faults = parse_topics(
        environment.get(CREATE_TOPICS, ""), environment.get(CREATE_TOPICS_SEPARATOR, "")
    )
    _derive_listeners(reading, file or {})
    return Settings(
        properties={**_defaults(reading.properties, file), **(file or {}), **reading.properties},
        sources=reading.sources,
        topics=tuple(topics),
        notices=tuple(reading.notices),
        faults=tuple(reading.faults + faults),
    )


def option_name(variable: str) -> str:
    """Return the name of the option that a variable sets, spelled as in Kafka. The name of an
    unknown option is returned in lower case."""
    prefix = next(prefix for prefix in OWN_PREFIXES if variable.startswith(prefix))
    marks = {1: ".", 2: "_", 3: "-"}
    name = re.sub(
        "_+",
        lambda run: "-" * (len(run.group()) // 3) + marks.get(len(run.group()) % 3, ""),
        variable.removeprefix(prefix),
    ).lower()
    return next((known for known in _known() if known.lower() == name), name)


def variable_name(option: str) -> str:
    """Return the variable that sets an option."""
    name = option.replace("_", "__").replace("-", "___").replace(".", "_")
    return PREFIX + name.upper()


def with_host(listeners: str, host: str) -> str:
    """Return the listeners with `host` as the host of each."""
    return _LISTENER_HOST.sub(f"://{host}:", listeners)


def parse_topics(text: str, separator: str = "") -> tuple[list[WantedTopic], list[str]]:
    """Return the topics in KAFKA_CREATE_TOPICS, and the faults. Items
    `name[:partitions[:replicas[:cleanup]]]` are separated by `separator`, by default commas and
    line ends."""
    pattern = re.escape(separator) if separator.strip(" \n$'\\n") else r"[,\n]"
    topics: list[WantedTopic] = []
    faults: list[str] = []
    for item in filter(None, (part.strip() for part in re.split(pattern, text))):
        topic = _parse_topic(item)
        if isinstance(topic, str):
            faults.append(f"{CREATE_TOPICS}: {item}: {topic}")
        elif topic.name in (other.name for other in topics):
            faults.append(f"{CREATE_TOPICS}: {item}: the topic is listed twice")
        else:
            topics.append(topic)
    return topics, faults


def _parse_topic(item: str) -> WantedTopic | str:
    """Return the topic, or an error message for a malformed item."""
    parts = [part.strip() for part in item.split(":")]
    if len(parts) > _TOPIC_PARTS_MAX:
        return "expected name:partitions:replicas[:cleanup.policy]"
    name, partitions, replicas, cleanup = parts + [""] * (_TOPIC_PARTS_MAX - len(parts))
    fault = topic_name_fault(name)
    if fault is not None:
        return fault
    numbers = []
    for what, word, most in (
        ("partitions", partitions, PARTITIONS_MAX),
        ("replicas", replicas, REPLICAS_MAX),
    ):
        if word and not (re.fullmatch("[0-9]{1,9}", word) and 1 <= int(word) <= most):
            return f"the number of {what} is {word}, expected 1 to {most}"
        numbers.append(int(word) if word else -1)
    policies = cleanup.split(";") if cleanup else []
    if not set(policies) <= set(CLEANUP_POLICIES):
        return f"cleanup.policy is {cleanup}, expected {' or '.join(CLEANUP_POLICIES)}"
    return WantedTopic(name, numbers[0], numbers[1], ",".join(policies) or None)


def _known() -> Iterable[str]:
    return (*BROKER_OPTIONS, *NOT_IMPLEMENTED, *REFUSED, *KRAFT_ONLY)


def _reason_to_ignore(variable: str, value: str) -> str | None:
    if variable == "KAFKA_PORT" and "://" not in value:
        return None
    reasons = (why for pattern, why in IGNORED if re.fullmatch(pattern, variable))
    return next(reasons, None)


def _derive_listeners(reading: _Reading, file: Mapping[str, str]) -> None:
    """If only advertised.listeners is set, set `listeners` to the advertised ports on all
    interfaces, because the advertised hosts do not exist inside the container."""
    advertised = reading.properties.get("advertised.listeners")
    if advertised is None or "listeners" in reading.properties or "listeners" in file:
        return
    variable = reading.sources["advertised.listeners"]
    reading.set("listeners", with_host(advertised, "0.0.0.0"), variable)


def _defaults(given: Mapping[str, str], file: Mapping[str, str] | None) -> dict[str, str]:
    """Return the container's defaults for the options that neither a variable nor the file sets."""
    named = given.keys() | (file or {}).keys()
    defaults = {}
    if not named & {"log.dir", "log.dirs"}:
        defaults["log.dirs"] = DATA_DIRECTORY
    if "listeners" not in named:
        defaults["listeners"] = DEFAULT_LISTENERS
        defaults["advertised.listeners"] = DEFAULT_ADVERTISED
    if HTTP_OPTION not in named:
        defaults[HTTP_OPTION] = DEFAULT_HTTP
    if file is None and "zookeeper.connect" not in named:
        defaults |= small_cluster_properties(1)
    return defaults
