"""Common options, error handling and JSON output of all tools. A tool exits with code 1 after wrong
usage or a failure, as Kafka's tools do."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from pybroker import __version__
from pybroker.config.properties import parse_overrides, read_properties
from pybroker.errors import ConfigError, PybrokerError

T = TypeVar("T")
FunctionT = TypeVar("FunctionT", bound=Callable[..., object])

LEADERLESS_MS = 3_000
"""A tool reports a partition without a leader after this time. An election takes less time. Kafka's
tools wait one minute."""
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


class Failure(PybrokerError):
    """The tool cannot carry out the command. The message is printed for the user."""


class Tool(click.Command):
    """A click command with the options --debug (stack traces) and --version. `error_prefix` is
    printed before each error message."""

    def __init__(self, *args: Any, error_prefix: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.error_prefix = error_prefix
        self.params.append(
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_version,
                help="Print the version and exit.",
            )
        )
        self.params.append(
            click.Option(
                ["--debug"],
                is_flag=True,
                expose_value=False,
                callback=_debug,
                help="Print all log lines, and a stack trace after an error.",
            )
        )


def _debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta["debug"] = value
    logging.basicConfig(
        level=logging.DEBUG if value else logging.WARNING,
        format="%(levelname)s %(message)s",
        stream=sys.stderr,
    )


def _version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"pybroker {__version__}")
        context.exit()


def run(command: click.Command, words: Sequence[str], program: str) -> int:
    """Run a command with these arguments and return the exit code."""
    prefix = getattr(command, "error_prefix", "")
    debug = "--debug" in words
    try:
        # Not `command.main`, which prints errors and exits on its own.
        with command.make_context(program, list(words)) as context:
            result = command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.UsageError as error:
        _print_error_line(_usage_text(error))
        _print_error_line(f"Try {program} --help.")
        return EXIT_FAILED
    except click.ClickException as error:
        _print_error_line(error.format_message())
        return EXIT_FAILED
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except UnicodeEncodeError as error:
        # An argument may hold bytes that are not UTF-8, and JSON may name any code point.
        if debug:
            traceback.print_exc()
        shown = ascii(error.object[error.start : error.end])
        _print_error_line(
            f"{prefix}an argument contains {shown}, which is not valid Unicode and cannot be sent"
        )
        return EXIT_FAILED
    except PybrokerError as error:
        if debug:
            traceback.print_exc()
        for line in _error_lines(error):
            _print_error_line(prefix + line)
        return EXIT_FAILED
    except Exception as error:  # the last boundary: a stack trace is printed only with --debug
        if not isinstance(command, Tool | click.Group):
            raise  # a broker has no --debug; the stack trace belongs in its log
        if debug:
            traceback.print_exc()
        _print_error_line(f"{prefix}{type(error).__name__}: {error}".removesuffix(": "))
        _print_error_line(
            f"{program} failed with an unexpected error; --debug prints the stack trace."
        )
        return EXIT_FAILED
    return result if isinstance(result, int) else 0


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new event loop and return its result."""
    return asyncio.run(work)


def write_json(value: object) -> None:
    """Print one document of --format json on standard output."""
    click.echo(json.dumps(value, ensure_ascii=False))


# Options


def bootstrap_option(*aliases: str) -> Callable[[FunctionT], FunctionT]:
    return click.option(
        "--bootstrap-server",
        *aliases,
        "bootstrap_server",
        required=True,
        metavar="HOST:PORT[,HOST:PORT]",
        help="Brokers to contact first; they return the addresses of all brokers.",
    )


def config_file_option(*names: str) -> Callable[[FunctionT], FunctionT]:
    return click.option(
        *names,
        "config_file",
        metavar="FILE",
        help="A properties file with options of the client.",
    )


def property_option(name: str, target: str, meaning: str) -> Callable[[FunctionT], FunctionT]:
    return click.option(name, target, multiple=True, metavar="KEY=VALUE", help=meaning)


def format_option() -> Callable[[FunctionT], FunctionT]:
    return click.option(
        "--format",
        "output_format",
        type=click.Choice(["text", "json"]),
        default="text",
        help="The output: text as Kafka's tool prints it, or json with one document per"
        " line. Default: text.",
    )


def client_options(
    bootstrap_server: str,
    config_file: str | None = None,
    overrides: Iterable[str] = (),
    **given: object,
) -> dict[str, Any]:
    """Return a client's options. `overrides` (key=value) win over the file `config_file`, and the
    file over the flags in `given`. By default, a partition without a leader is an error after
    LEADERLESS_MS. Raises ConfigError."""
    options: dict[str, Any] = {"leaderless_timeout_ms": LEADERLESS_MS}
    options |= {name: value for name, value in given.items() if value is not None}
    layers: list[Mapping[str, object]] = [
        read_properties(config_file) if config_file else {},
        parse_overrides(overrides),
    ]
    for layer in layers:
        for name, value in layer.items():
            options[name.replace(".", "_")] = value
    options["bootstrap_servers"] = bootstrap_server
    return options


# Errors


def _usage_text(error: click.UsageError) -> str:
    if isinstance(error, click.MissingParameter) and error.param is not None:
        option = error.param.opts[0].lstrip("-")
        return f'Missing required argument "[{option}]"'
    return error.format_message()


def sentence_of(error: PybrokerError) -> str:
    """Return what Kafka's tools print for an error: the error message in the broker's response. If
    the response has no message, return the text of `error`."""
    # By attribute, not by class: `pybroker start` loads this module too, and must not have to load
    # the client.
    return getattr(error, "broker_sentence", "") or str(error)


def _error_lines(error: PybrokerError) -> list[str]:
    return error.faults if isinstance(error, ConfigError) else [sentence_of(error)]


def _print_error_line(line: str) -> None:
    click.echo(line, err=True)
