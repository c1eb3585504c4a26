"""Tests of `dump-log` and `log-dirs`: error messages, and output that is not compared with Apache's
tools elsewhere."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pybroker.client.admin.log_dirs import BrokerLogDirs, LogDir, ReplicaLog
from pybroker.client.errors import ResponseError
from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.groups.records import (
    OffsetKey,
    RecordedGroup,
    RecordedMember,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from pybroker.coordinator.transactions.records import encode_key, encode_value
from pybroker.coordinator.transactions.states import TransactionState
from pybroker.coordinator.transactions.transaction import ProducerIdAndEpoch, Transaction
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.records.builder import BatchBuilder
from pybroker.tools import dump_log, log_dirs
from pybroker.tools._cli import Failure, run
from pybroker.wire.consumer_protocol import Subscription, encode_subscription

NAME = f"{0:020}"


def dumped(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str], str]:
    exit_code = run(dump_log.command, words, "pybroker dump-log")
    printed = capsys.readouterr()
    return exit_code, printed.out.splitlines(), printed.err


def segment(folder: Path, *pairs: tuple[bytes | None, bytes | None]) -> str:
    builder = BatchBuilder()
    for key, value in pairs:
        builder.append(5, key, value, ())
    path = folder / f"{NAME}.log"
    path.write_bytes(builder.build())
    return str(path)


@pytest.mark.parametrize(
    ("decoder", "printed"),
    [
        ("org.apache.kafka.tools.api.DefaultDecoder", "payload: 0000000000000007"),
        ("org.apache.kafka.tools.api.LongDecoder", "payload: 7"),
        ("LongDecoder", "payload: 7"),
    ],
)
def test_decoders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], decoder: str, printed: str
) -> None:
    path = segment(tmp_path, (b"k", struct.pack(">q", 7)), (None, None))
    exit_code, lines, _ = dumped(
        capsys, "--files", path, "--value-decoder-class", decoder, "--skip-record-metadata"
    )
    assert exit_code == 0
    assert lines[3:] == [f"| key: k {printed}", ""]


ENCODED_MEMBER = RecordedMember(
    "m", "c", "/h", 1, 2, encode_subscription(Subscription(("t",)), 0), b"no assignment", "i"
)
MEMBER_TEXT = (
    '{"memberId":"m","groupInstanceId":"i","clientId":"c","clientHost":"/h","rebalanceTimeout":1,'
    '"sessionTimeout":2,"subscription":{"topics":["t"],"userData":null},'
    '"assignment":"bm8gYXNzaWdubWVudA=="}'
)


@pytest.mark.parametrize(
    ("key", "value", "printed"),
    [
        (
            encode_offset_key(OffsetKey("g", TopicPartition("t", 3))),
            encode_offset_value(CommittedOffset(7, 2, 'a"\xe9', 100)),
            'key: {"type":"1","data":{"group":"g","topic":"t","partition":3}} payload: {"version":'
            '"3","data":{"offset":7,"leaderEpoch":2,"metadata":"a\\"\xe9","commitTimestamp":100}}',
        ),
        (encode_group_key("g"), None, 'key: {"type":"2","data":{"group":"g"}} payload: <DELETE>'),
        (
            encode_group_key("g"),
            encode_group_value(
                RecordedGroup("consumer", 4, "range", "m", 5, (ENCODED_MEMBER,)),
            ),
            'key: {"type":"2","data":{"group":"g"}} payload: {"version":"3","data":{"protocolType":'
            '"consumer","generation":4,"protocol":"range","leader":"m","currentStateTimestamp":5,'
            f'"members":[{MEMBER_TEXT}]}}}}',
        ),
        (b"\0\x09", b"?", "key: Unknown record type 9 at offset 0, skipping."),
        (
            b"\0",
            b"?",
            "key: Error at offset 0, skipping. a key or value has 1 bytes, expected at least 2"
            " bytes for its version",
        ),
    ],
)
def test_offsets_decoder(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    key: bytes,
    value: bytes | None,
    printed: str,
) -> None:
    path = segment(tmp_path, (key, value))
    exit_code, lines, _ = dumped(
        capsys, "--files", path, "--offsets-decoder", "--skip-record-metadata"
    )
    assert exit_code == 0
    assert lines[3:] == [f"| {printed}"]


def test_the_offsets_decoder_names_a_record_of_another_topic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment(tmp_path, (None, b"v"))
    exit_code, _, err = dumped(capsys, "--files", path, "--offsets-decoder")
    assert exit_code == 1
    assert err == (
        "the record at offset 0 has no key: --offsets-decoder is for the segments of"
        " __consumer_offsets\n"
    )


OPEN = Transaction(
    "tx",
    ProducerIdAndEpoch(7, 2),
    60_000,
    TransactionState.ONGOING,
    frozenset({TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 9)}),
    updated_ms=99,
    start_ms=98,
)
TX_KEY = "key: transaction_metadata::transactionalId=tx payload: "


@pytest.mark.parametrize(
    ("key", "value", "printed"),
    [
        (
            encode_key("tx"),
            encode_value(OPEN),
            f"{TX_KEY}producerId:7,producerEpoch:2,state=Ongoing,partitions=[a-9,a-10,b-0],"
            "txnLastUpdateTimestamp=99,txnTimeoutMs=60000",
        ),
        (encode_key("tx"), None, f"{TX_KEY}<DELETE>"),
        (b"\0\x09?", b"?", "key: unknown::version=9"),
        (
            encode_key("tx"),
            b"\0\x09?",
            "key: Error at offset 0, skipping. the value of a transaction has version 9, expected"
            " 0 to 1",
        ),
    ],
)
def test_transaction_log_decoder(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    key: bytes,
    value: bytes | None,
    printed: str,
) -> None:
    path = segment(tmp_path, (key, value))
    exit_code, lines, _ = dumped(
        capsys, "--files", path, "--transaction-log-decoder", "--skip-record-metadata"
    )
    assert exit_code == 0
    assert lines[3:] == [f"| {printed}"]


def test_transaction_log_decoder_names_a_record_of_another_topic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment(tmp_path, (None, b"v"))
    exit_code, _, err = dumped(capsys, "--files", path, "--transaction-log-decoder")
    assert exit_code == 1
    assert "--transaction-log-decoder is for the segments of __transaction_state" in err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), 'Missing required argument "[files]"'),
        (
            ("--files", "x.log", "--cluster-metadata-decoder"),
            "--cluster-metadata-decoder is not supported",
        ),
        (("--files", "x.log", "--value-decoder-class", "my.Own"), "decoder my.Own is unknown"),
        (("--files", f"/nowhere/{NAME}.log"), "No such file"),
        (("--files", "/nowhere/abc.log"), "/nowhere/abc.log: No such file or directory"),
        (("--files", f"/nowhere/{NAME}.index"), f"{NAME}.index: No such file or directory"),
    ],
)
def test_invalid_flags_and_missing_files_are_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], complaint: str
) -> None:
    exit_code, _, err = dumped(capsys, *words)
    assert exit_code == 1
    assert complaint in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("abc.log", "abc.log: the file name does not begin with an offset"),
        (f"{'9' * 200}.log", "the file name does not begin with an offset"),
        (f"{NAME}.index", "the log file of this index is missing"),
    ],
)
def test_invalid_file_names_and_missing_logs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, complaint: str
) -> None:
    (tmp_path / name).write_bytes(b"")
    exit_code, _, err = dumped(capsys, "--files", str(tmp_path / name))
    assert exit_code == 1
    assert complaint in err


def test_too_large_producer_snapshot_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybroker.tools._dump_indexes.SNAPSHOT_BYTES_MAX", 1000)
    path = tmp_path / f"{NAME}.snapshot"
    path.write_bytes(bytes(1001))
    exit_code, _, err = dumped(capsys, "--files", str(path))
    assert exit_code == 1
    assert err == (
        f"{path}: the file is larger than 1000 bytes, the limit for a producer snapshot\n"
    )


def test_value_with_a_wrong_length_for_its_decoder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment(tmp_path, (None, b"text"))
    _, _, err = dumped(capsys, "--files", path, "--value-decoder-class", "LongDecoder")
    assert err == "LongDecoder expects a key or value of 8 bytes, found 4 bytes\n"


def test_records_of_an_old_message_format_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{NAME}.log"
    body = struct.pack(">bbqii", 1, 0, 77, -1, -1)
    path.write_bytes(struct.pack(">qiI", 4, 4 + len(body), 1) + body)
    exit_code, lines, _ = dumped(capsys, "--files", str(path))
    assert exit_code == 0
    assert lines[2] == (
        "offset: 4 position: 0 CreateTime: 77 size: 34 magic: 1 compresscodec: none crc: 1"
        " isvalid: false"
    )
    exit_code, _, err = dumped(capsys, "--files", str(path), "--deep-iteration")
    assert exit_code == 1 and "has the format 1, which cannot be decoded" in err


def test_the_document_of_log_dirs() -> None:
    replicas = {
        TopicPartition("t", 1): ReplicaLog(10, 0, False),
        TopicPartition("t", 0): ReplicaLog(5, 2, True),
        TopicPartition("u", 0): ReplicaLog(1, 0, False),
    }
    offline = ResponseError(ErrorCode.KAFKA_STORAGE_ERROR, "offline")
    answer = BrokerLogDirs(3, (LogDir("/a", replicas), LogDir("/b", error=offline)))
    assert log_dirs.document([answer], {"t"}) == {
        "brokers": [
            {
                "broker": 3,
                "logDirs": [
                    {
                        "partitions": [
                            {"partition": "t-0", "size": 5, "offsetLag": 2, "isFuture": True},
                            {"partition": "t-1", "size": 10, "offsetLag": 0, "isFuture": False},
                        ],
                        "error": None,
                        "logDir": "/a",
                    },
                    {"partitions": [], "error": log_dirs.JAVA_ERROR, "logDir": "/b"},
                ],
            }
        ],
        "version": 1,
    }
    with pytest.raises(Failure, match="expected broker ids"):
        log_dirs.parse_brokers("0,one")
