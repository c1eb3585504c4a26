"""Tests of the example jobs on real data, and of the ways to start a job."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from integration_tests.broker import Broker
from pybroker.spark import examples
from pybroker.spark.etl.job import Job
from pybroker.spark.etl.output import output_commits, read_dead_letters, read_output
from pybroker.spark.examples.load import load
from unit_tests.patience import WORK_S

pytestmark = pytest.mark.ours
BROKER_OVERRIDES: Final = {"log.retention.ms": "-1"}
EXAMPLES: Final = Path(examples.__file__).parent
ROOT: Final = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def loaded(shared_broker: Broker, datasets: Path) -> Mapping[str, int]:
    """Fill the topics of the examples."""
    return asyncio.run(load(shared_broker.bootstrap, datasets))


def example(name: str, broker: Broker, output: Path) -> Job:
    environment = {"BOOTSTRAP": broker.bootstrap, "OUTPUT": str(output)}
    return Job.from_file(EXAMPLES / f"{name}.yaml", environment)


def strikes(datasets: Path) -> list[dict[str, str]]:
    with (datasets / "birdstrikes.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_flights_are_files_by_day(
    spark: SparkSession,
    broker: Broker,
    loaded: Mapping[str, int],
    datasets: Path,
    tmp_path: Path,
) -> None:
    result = example("flights", broker, tmp_path).run_once(spark)
    assert result.rows == loaded["flights"] == 20_000
    given = json.loads((datasets / "flights-20k.json").read_text())
    table = read_output(spark, tmp_path / "flights")
    days = {str(row["day"]): row["count"] for row in table.groupBy("day").count().collect()}
    assert days == Counter(row["date"][:10].replace("/", "-") for row in given)
    rows = Counter(
        (f"{row['date']:%Y/%m/%d %H:%M}", row["delay"], row["origin"], row["destination"])
        for row in table.collect()
    )
    assert rows == Counter(
        (row["date"], row["delay"], row["origin"], row["destination"]) for row in given
    )
    [commit] = output_commits(tmp_path / "flights")
    assert len(commit.files) == len(days) == 90
    assert all("/day=2001-" in file.path for file in commit.files)


def test_stocks_are_a_table_of_the_latest_prices(
    spark: SparkSession, broker: Broker, loaded: Mapping[str, int], tmp_path: Path
) -> None:
    result = example("stocks", broker, tmp_path).run_once(spark)
    assert result.rows == 5 < loaded["stocks"]
    prices = {row["symbol"]: row for row in read_output(spark, tmp_path / "stocks").collect()}
    assert {symbol: row["price"] for symbol, row in prices.items()} == {
        "AAPL": 223.02,
        "AMZN": 128.82,
        "GOOG": 560.19,
        "IBM": 125.55,
        "MSFT": 28.8,
    }
    assert {str(row["date"]) for row in prices.values()} == {"2010-03-01"}


def test_strikes_without_a_speed_are_dead_letters(
    spark: SparkSession,
    broker: Broker,
    loaded: Mapping[str, int],
    datasets: Path,
    tmp_path: Path,
) -> None:
    result = example("birdstrikes", broker, tmp_path).run_once(spark)
    given = strikes(datasets)
    with_speed = [row for row in given if row["Speed IAS in knots"]]
    assert (result.rows, result.dlq_rows) == (len(with_speed), len(given) - len(with_speed))
    assert result.rows + result.dlq_rows == loaded["birdstrikes"]
    table = read_output(spark, tmp_path / "birdstrikes")
    assert Counter(row["speed_knots"] for row in table.collect()) == Counter(
        int(row["Speed IAS in knots"]) for row in with_speed
    )
    letters = read_dead_letters(spark, tmp_path / "birdstrikes").collect()
    assert {row["error"] for row in letters} == {"value: Speed IAS in knots is missing or null"}
    places = Counter(json.loads(bytes(row["value"]))["Airport Name"] for row in letters)
    assert places == Counter(row["Airport Name"] for row in given if not row["Speed IAS in knots"])


def ways_to_start() -> Mapping[str, list[str]]:
    python = str(Path(sys.executable))
    submit = shutil.which("spark-submit", path=f"{Path(python).parent}:{os.environ['PATH']}")
    script = str(EXAMPLES.parent / "job.py")
    return {
        "pybroker etl": [python, "-m", "pybroker", "etl", "run"],
        "spark-submit": [submit or "spark-submit", "--master", "local[1]", script],
    }


@pytest.mark.parametrize("way", ways_to_start())
def test_a_job_is_started_by(
    way: str, broker: Broker, loaded: Mapping[str, int], tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "BOOTSTRAP": broker.bootstrap,
        "OUTPUT": str(tmp_path),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }
    words = [*ways_to_start()[way], str(EXAMPLES / "stocks.yaml"), "--report", str(tmp_path / "r")]
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=WORK_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "stocks-latest seq=0: 5 rows in 1 file " in done.stdout
    [run] = json.loads((tmp_path / "r").read_text())["runs"]
    assert (run["state"], run["rows"]) == ("committed", 5)
    [commit] = output_commits(tmp_path / "stocks")
    assert commit.rows == 5
