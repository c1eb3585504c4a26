"""Finds code that makes a test depend on the speed of the machine, for the rule in `test_tidy`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from unit_tests.sources import dotted

LIMITED = {"asyncio.timeout": 0, "asyncio.wait_for": 1, "wait_for": 1}
"""Function name -> index of its argument that is a time limit."""
STOPWATCHES = frozenset(
    f"time.{name}{unit}"
    for name in ("monotonic", "perf_counter", "thread_time", "time")
    for unit in ("", "_ns")
)


def dependences(text: str) -> list[str]:
    """Return the lines of a test file that depend on the speed of the machine, each with the
    remedy.
    """
    if "asyncio" not in text and "time." not in text:
        return []
    found = []
    for node in ast.walk(ast.parse(text)):
        if any(_counts_turns(block) for block in _blocks(node)):
            found.append((_line(node), "counts turns: await idle() of unit_tests/idle_loop.py"))
        if isinstance(node, ast.Call) and _has_limit_of_its_own(node):
            found.append((node.lineno, "a limit of its own: take one of unit_tests/patience.py"))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found += [
                (line, "asserts how long something took: assert what happened, and in which order")
                for line in _assertions_on_time(node)
            ]
    return [f"line {line}: {what}" for line, what in sorted(set(found))]


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 1)


def _blocks(node: ast.AST) -> Iterator[tuple[ast.AST, list[ast.stmt]]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield node, block


def _counts_turns(block: tuple[ast.AST, list[ast.stmt]]) -> bool:
    """Return whether the statements only yield to the event loop several times: in a loop, or twice
    in a row.
    """
    node, statements = block
    yields = [_is_yield(statement) for statement in statements]
    is_loop = isinstance(node, (ast.For, ast.While))
    return (is_loop and yields == [True]) or any(map(all, pairwise(yields)))


def _is_yield(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Await)
        and ast.unparse(statement.value.value) == "asyncio.sleep(0)"
    )


def _has_limit_of_its_own(call: ast.Call) -> bool:
    place = LIMITED.get(dotted(call.func))
    if place is None:
        return False
    limits = [*call.args[place : place + 1], *(each.value for each in call.keywords)]
    return any(
        isinstance(each, ast.Constant) and isinstance(each.value, (int, float)) for each in limits
    )


def _assertions_on_time(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    measured = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and _is_elapsed(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            names = {each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)}
            if _is_elapsed(node.test) or names & measured:
                yield node.lineno


def _is_elapsed(expression: ast.expr) -> bool:
    """Return whether the expression is a difference of two times."""
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and any(
            isinstance(each, ast.Call) and dotted(each.func) in STOPWATCHES
            for each in ast.walk(node)
        )
        for node in ast.walk(expression)
    )
