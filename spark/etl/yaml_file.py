"""Parses a YAML file into plain values with their line numbers. ${NAME} and ${NAME:-default} in
strings are replaced with environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import yaml

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

Scalar: TypeAlias = str | int | float | bool | None
Key: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class Fault:
    """A fault in the file, with its line and key."""

    line: int
    key: Key
    text: str


@dataclass
class Tree:
    """A parsed file. A key is the path of names to a value, such as ("sink", "path"). The value of
    a mapping is {}: its entries have keys of their own."""

    values: dict[Key, object]
    lines: dict[Key, int]
    faults: list[Fault]

    def line(self, key: Key) -> int:
        """Return the line of a key, or of its parent if the key is missing."""
        while key not in self.lines and key:
            key = key[:-1]
        return self.lines.get(key, 1)


def parse(text: str, environment: Mapping[str, str]) -> Tree:
    """Return the parsed text of a YAML file. The faults of the text are in `Tree.faults`."""
    tree = Tree({}, {}, [])
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError:
        tree.faults.append(Fault(1, (), "nested too deeply"))
        return tree
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it cannot be read"
        tree.faults.append(Fault(mark.line + 1 if mark else 1, (), f"not YAML: {problem}"))
        return tree
    if not isinstance(root, yaml.MappingNode):
        tree.faults.append(Fault(1, (), "expected keys and values, as in `name: orders`"))
        return tree
    try:
        _Walk(tree, environment).mapping(root, ())
    except RecursionError:
        tree.faults.append(Fault(1, (), "nested too deeply"))
    return tree


class _Walk:
    def __init__(self, tree: Tree, environment: Mapping[str, str]) -> None:
        self._tree = tree
        self._environment = environment
        self._open: set[int] = set()

    def mapping(self, node: yaml.MappingNode, above: Key) -> None:
        self._tree.values[above] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value == "<<":
                self._fault(line, above, "expected a plain name as the key")
                continue
            key = (*above, key_node.value)
            if key in self._tree.lines:
                self._fault(line, key, f"given twice, first in line {self._tree.lines[key]}")
                continue
            self._tree.lines[key] = line
            self.node(value_node, key)

    def node(self, node: yaml.Node, key: Key) -> None:
        if id(node) in self._open:
            self._fault(node.start_mark.line + 1, key, "contains itself")
            return
        self._open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            self.mapping(node, key)
        elif isinstance(node, yaml.SequenceNode):
            self._tree.values[key] = [self._scalar(item, key) for item in node.value]
        else:
            self._tree.values[key] = self._scalar(node, key)
        self._open.discard(id(node))

    def _scalar(self, node: yaml.Node, key: Key) -> Scalar:
        if not isinstance(node, yaml.ScalarNode):
            self._fault(node.start_mark.line + 1, key, "expected plain values in the list")
            return None
        kind = node.tag.rpartition(":")[2]
        try:
            match kind:
                case "null":
                    return None
                case "bool":
                    return node.value.lower() in ("true", "yes", "on")
                case "int":
                    return int(node.value.replace("_", ""))
                case "float":
                    return float(node.value.replace("_", ""))
        except ValueError:
            pass  # values such as 0x1F and 1:30 stay text
        return self._filled(node.value, node.start_mark.line + 1, key)

    def _filled(self, text: str, line: int, key: Key) -> str:
        def replace(found: re.Match[str]) -> str:
            name, otherwise = found[1], found[2]
            value = self._environment.get(name, otherwise)
            if value is None:
                self._fault(
                    line,
                    key,
                    f"the environment variable {name} is not set: set it, or "
                    f"write a default, ${{{name}:-...}}",
                )
                return ""
            return value

        return _VARIABLE.sub(replace, text)

    def _fault(self, line: int, key: Key, text: str) -> None:
        self._tree.faults.append(Fault(line, key, text))
