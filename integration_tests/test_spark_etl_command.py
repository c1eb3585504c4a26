"""Tests of the output, the report and the remaining files of `pybroker etl`."""

from __future__ import annotations

import json
import signal
from typing import Final

import pytest

from integration_tests.etl_numbers import (
    Numbers,
    command,
)
from pybroker.spark.etl import output_files

pytestmark = pytest.mark.ours
BROKER_OVERRIDES: Final = {"log.retention.ms": "-1"}


def test_the_command_runs_a_job_reports_it_and_cleans_up(
    numbers: Numbers, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers.job()
    file, report = str(numbers.file), numbers.folder / "report.json"
    assert command("status", file) == 0
    assert "0 runs committed" in capsys.readouterr().out
    numbers.send(12)
    assert command("run", file, "--dry-run") == 0
    assert f"{numbers.topic}-1: 0 to 6" in capsys.readouterr().out
    assert not numbers.output.exists()
    assert command("run", file, "--report", str(report)) == 0
    assert f"{numbers.topic} seq=0: 12 rows in" in capsys.readouterr().out
    [run] = json.loads(report.read_text())["runs"]
    assert (run["state"], run["rows"], run["dlq_rows"], run["lost"]) == ("committed", 12, 0, [])
    assert sum(each["end"] - each["start"] for each in run["ranges"]) == 12
    assert command("replay", file, "0", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["revision"] == 1
    capsys.readouterr()
    assert command("run", file) == 0
    assert capsys.readouterr().out == f"{numbers.topic}: nothing new\n"
    assert command("replay", file, "7") == 1
    assert "run 7 is not committed, so it cannot be replayed" in capsys.readouterr().err
    numbers.send(1)
    assert command("status", file, "--format", "json") == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["runs"], status["new_offsets"], status["last"][0]["rows"]) == (1, 1, 12)
    assert command("gc", file, "--superseded", "--older-than", "0s", "--dry-run") == 0
    assert "was replaced by a later commit: would be removed" in capsys.readouterr().out
    assert command("gc", file, "--superseded", "--older-than", "0s") == 0
    assert sorted(output_files(numbers.output)) == numbers.files()
    assert numbers.numbers() == list(range(12))


def test_a_failed_command_has_its_reason_in_the_report(
    numbers: Numbers, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers.job()
    numbers.send_values([b"x"])
    report = numbers.folder / "report.json"
    assert command("run", str(numbers.file), "--report", str(report)) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("1 of 1 records cannot be decoded")
    assert json.loads(report.read_text()) == {"runs": [], "error": last}
    for place in (numbers.folder, numbers.folder / "nowhere" / "report.json"):
        assert command("run", str(numbers.file), "--report", str(place)) == 1
        assert f"the report {place} cannot be written" in capsys.readouterr().err
    numbers.output.rename(numbers.folder / "away")
    numbers.output.touch()
    assert command("run", str(numbers.file)) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"{numbers.output} is not a folder"
    numbers.file.write_text(numbers.file.read_text().replace(str(numbers.output), "/proc/no"))
    assert command("run", str(numbers.file)) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "/proc/no: No such file or directory"
    numbers.file.write_text("name: x\nsource: {topics: [t]}\n")
    assert command("run", str(numbers.file)) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{numbers.file}:1: sink: is missing",
        f"{numbers.file}:2: source.bootstrap.servers: is missing; expected HOST:PORT[,HOST:PORT]",
    ]


def test_a_signal_ends_the_command_and_removes_its_attempt(numbers: Numbers) -> None:
    (numbers.folder / "ending.py").write_text(
        "import os, signal\n"
        "def transform(records):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return records\n"
    )
    numbers.send(5)
    numbers.job("transform: ending:transform")
    report = numbers.folder / "report.json"
    with pytest.raises(SystemExit) as caught:
        command("run", str(numbers.file), "--report", str(report))
    assert caught.value.code == 128 + signal.SIGTERM
    told = "the run was stopped by SIGTERM: the next run reads the uncommitted records again"
    assert json.loads(report.read_text()) == {"runs": [], "error": told}
    assert numbers.files() == []
    assert numbers.job().store.attempts() == []


def test_the_output_of_another_job_is_neither_shown_nor_cleaned_up(
    numbers: Numbers, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers.job()
    numbers.send(2)
    assert command("run", str(numbers.file)) == 0
    numbers.file.write_text(numbers.file.read_text().replace("name: ", "name: other-"))
    for words in (["run"], ["run", "--dry-run"], ["status"], ["gc"]):
        assert command(words[0], str(numbers.file), *words[1:]) == 1
        error = capsys.readouterr().err
        assert f"is the output of the job {numbers.topic}, not of other-" in error, words
