"""The command `pybroker dump-log`, equivalent to Kafka's kafka-dump-log (DumpLogSegments). It
writes no file, so a broker may run at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from pybroker.records.record import Record
from pybroker.tools._cli import Failure, Tool
from pybroker.tools._dump_indexes import (
    IndexView,
    dump_index,
    dump_snapshot,
    dump_time_index,
    dump_transactions,
)
from pybroker.tools._dump_segments import (
    WHOLE,
    Complaints,
    Decoder,
    LogView,
    RecordText,
    dump_log,
)
from pybroker.tools._offset_records import offset_record_text
from pybroker.tools._transaction_records import transaction_record_text

STRING: Final = "org.apache.kafka.tools.api.StringDecoder"
_PACKAGE: Final = "org.apache.kafka.tools.api."
_OLD_PACKAGE: Final = "kafka.serializer."


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _bytes(data: bytes) -> str:
    return data.hex()


def _number(size: int, name: str) -> Decoder:
    def decode(data: bytes) -> str:
        if len(data) != size:
            raise Failure(f"{name} expects a key or value of {size} bytes, found {len(data)} bytes")
        return str(int.from_bytes(data, "big", signed=True))

    return decode


DECODERS: Final[Mapping[str, Decoder]] = {
    "StringDecoder": _text,
    "DefaultDecoder": _bytes,
    "LongDecoder": _number(8, "LongDecoder"),
    "IntegerDecoder": _number(4, "IntegerDecoder"),
}


def _decoder_option(name: str, what: str) -> click.Option:
    return click.Option(
        [name],
        is_flag=False,
        flag_value=STRING,
        metavar="CLASS",
        help=f"The decoder of {what}: StringDecoder (the default), LongDecoder,"
        " IntegerDecoder, or DefaultDecoder for hexadecimal digits. Implies"
        " --print-data-log.",
    )


def _flag(name: str, meaning: str) -> click.Option:
    return click.Option([name], is_flag=True, help=meaning)


def _unsupported(name: str, what: str) -> click.Option:
    def refuse(_: click.Context, __: click.Parameter, value: bool) -> None:
        if value:
            raise Failure(
                f"{name} is not supported; use --print-data-log, which prints {what} undecoded"
            )

    return click.Option([name], is_flag=True, expose_value=False, callback=refuse, hidden=True)


def run(
    files: str,
    print_data_log: bool,
    deep_iteration: bool,
    verify_index_only: bool,
    index_sanity_check: bool,
    max_message_size: int,
    max_bytes: int,
    key_decoder_class: str | None,
    value_decoder_class: str | None,
    skip_record_metadata: bool,
    offsets_decoder: bool,
    transaction_log_decoder: bool,
) -> int:
    """Print the content of segments (.log), indexes (.index, .timeindex, .txnindex) and producer
    snapshots (.snapshot)."""
    decoded = key_decoder_class is not None or value_decoder_class is not None
    contents = print_data_log or decoded or offsets_decoder or transaction_log_decoder
    text = text_by(decoder(key_decoder_class or STRING), decoder(value_decoder_class or STRING))
    if offsets_decoder:
        text = offset_record_text
    elif transaction_log_decoder:
        text = transaction_record_text
    log_view = LogView(
        deep=deep_iteration or contents,
        contents=contents,
        skip_metadata=skip_record_metadata,
        max_bytes=max_bytes,
        text=text,
        notices=tuple(outdated(value_decoder_class, key_decoder_class)),
    )
    index_view = IndexView(index_sanity_check, verify_index_only, max_message_size)
    complaints = Complaints()
    for name in files.split(","):
        dump(Path(name), log_view, index_view, complaints)
    for line in complaints.lines():
        click.echo(line, err=True)
    return 0


def text_by(key_decoder: Decoder, value_decoder: Decoder) -> RecordText:
    """Return a function that decodes a record's key and value."""

    def text(record: Record) -> tuple[str | None, str | None]:
        return (
            None if record.key is None else key_decoder(record.key),
            None if record.value is None else value_decoder(record.value),
        )

    return text


def decoder(name: str) -> Decoder:
    """Return the decoder for a decoder class of Kafka. Raises Failure for an unknown name."""
    short = name.removeprefix(_PACKAGE).removeprefix(_OLD_PACKAGE)
    found = DECODERS.get(short)
    if found is None:
        raise Failure(f"the decoder {name} is unknown, expected one of {', '.join(DECODERS)}")
    return found


def outdated(*names: str | None) -> list[str]:
    """Return Kafka's deprecation notices for decoder classes with old names."""
    return [
        f"{name} is deprecated. Please use {_PACKAGE}{name.removeprefix(_OLD_PACKAGE)} instead"
        for name in names
        if name is not None and name.startswith(_OLD_PACKAGE)
    ]


def dump(path: Path, log_view: LogView, index_view: IndexView, complaints: Complaints) -> None:
    """Print one file in the form that its suffix requires. Raises Failure."""
    click.echo(f"Dumping {path}")
    try:
        match path.suffix:
            case ".log":
                dump_log(path, log_view, complaints)
            case ".index":
                dump_index(path, index_view, complaints)
            case ".timeindex":
                dump_time_index(path, index_view, complaints)
            case ".snapshot":
                dump_snapshot(path)
            case ".txnindex":
                dump_transactions(path)
            case _:
                click.echo(f"Ignoring unknown file {path}", err=True)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror or error}") from error


command = Tool(
    "dump-log",
    callback=run,
    help=run.__doc__,
    params=[
        click.Option(
            ["--files"],
            required=True,
            metavar="FILE,FILE,...",
            help="The files to print, separated by commas.",
        ),
        _flag(
            "--print-data-log", "Print the keys and values of records. Implies --deep-iteration."
        ),
        _flag("--deep-iteration", "Print each record in addition to each batch."),
        _flag(
            "--verify-index-only",
            "Compare the entries of indexes with the log, but do not print them.",
        ),
        _flag(
            "--index-sanity-check", "Only run the check of indexes that a broker runs at startup."
        ),
        click.Option(
            ["--max-message-size"],
            type=click.IntRange(1),
            default=5 * 1024 * 1024,
            metavar="BYTES",
            help="The most bytes of the log to read for one index entry. Default: 5242880.",
        ),
        click.Option(
            ["--max-bytes"],
            type=click.IntRange(0, WHOLE),
            default=WHOLE,
            metavar="BYTES",
            help="Read at most this number of bytes of each log file. Default: the whole file.",
        ),
        _decoder_option("--key-decoder-class", "keys"),
        _decoder_option("--value-decoder-class", "values"),
        _flag(
            "--skip-record-metadata",
            "Print only the keys and values of records, without offsets and sizes.",
        ),
        _flag(
            "--offsets-decoder",
            "Print the records of __consumer_offsets (groups and committed offsets) as JSON.",
        ),
        _flag(
            "--transaction-log-decoder",
            "Print the records of __transaction_state (the states of transactional ids).",
        ),
        _unsupported("--cluster-metadata-decoder", "metadata records"),
        _unsupported("--remote-log-metadata-decoder", "metadata records"),
    ],
)
