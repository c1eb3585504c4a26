"""`pybroker TOOL ...`: runs the tool with the name TOOL. The modules of the other tools are not
imported."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence

from pybroker import __version__
from pybroker.host.standard_output import OutputFailed, ended_by_its_reader
from pybroker.tool_list import BROKERS, TOOLS, tool_name


def usage() -> str:
    width = max(len(name) for name in TOOLS)
    rows = "\n".join(f"  {name:{width}}  {tool.summary}" for name, tool in TOOLS.items())
    return (
        "Usage: pybroker TOOL [OPTIONS]\n\n"
        f"Tools:\n{rows}\n\n"
        "pybroker TOOL --help shows the options of a tool; pybroker --version shows the version."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool whose name is the first of `arguments`, and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and tool_name(words[0]) in BROKERS:
        return _run(words)  # a broker continues when nothing reads its standard output
    code = 0
    try:
        with ended_by_its_reader():
            code = _run(words)
    except OutputFailed as error:  # the tool itself does not notice an error of the last flush
        print(error, file=sys.stderr)
        code = 1
    return code


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        print(usage())
        return 0 if words else 1
    if words[0] == "--version":
        print(f"pybroker {__version__}")
        return 0
    name = tool_name(words[0])
    tool = TOOLS.get(name)
    if tool is None:
        print(f"pybroker: there is no tool {words[0]}; see pybroker --help", file=sys.stderr)
        return 1
    # A signal during the imports waits until the broker can end in order.
    held = {signal.SIGTERM, signal.SIGINT} if name in BROKERS else set()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        runner = importlib.import_module("pybroker.tools._cli")
        command = importlib.import_module(tool.module).command
        code: int = runner.run(command, words[1:], f"pybroker {name}")
        return code
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


if __name__ == "__main__":
    sys.exit(main())
