"""Jars from Maven Central, downloaded once by `mvn` into a cache outside the repository.

This module alone obtains the Java programs of the tests: the Java client, Apache Kafka (broker,
ZooKeeper, command line tools) as the reference, and Apache Spark's connector for Kafka. It starts
no processes other than `mvn` and `java -version`.

`python -m integration_tests.maven` fills the cache and prints where it is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from unit_tests.patience import WORK_S

KAFKA_VERSION: Final = "3.9.1"

KAFKA: Final = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
)
"""Broker, client and command line tools. The client depends on snappy-java, lz4-java and zstd-jni.

The version of slf4j-simple (prints to stderr) is that of the slf4j-api which Kafka brings."""

STREAMS: Final = (
    f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
)
"""Kafka Streams, with RocksDB for its state."""

CONNECT: Final = (
    f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
    f"org.apache.kafka:connect-file:{KAFKA_VERSION}",
    f"org.apache.kafka:connect-json:{KAFKA_VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
)
"""A worker of Kafka Connect, with the connectors that read and write files."""

OLD_KAFKA: Final[Mapping[str, Sequence[str]]] = {
    "2.8.2": ("org.apache.kafka:kafka_2.13:2.8.2", "org.slf4j:slf4j-simple:1.7.36"),
    "1.1.1": ("org.apache.kafka:kafka_2.12:1.1.1", "org.slf4j:slf4j-simple:1.7.25"),
    "0.9.0.1": ("org.apache.kafka:kafka_2.11:0.9.0.1", "org.slf4j:slf4j-simple:1.7.6"),
}
"""The releases whose tools connect to ZooKeeper."""

SPARK_CONNECTOR_VERSION: Final = "4.2.0"
"""The newest connector in Maven Central. No connector was published for Spark 4.3, but this release
runs in 4.3.
"""

SPARK_CONNECTOR: Final = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_CONNECTOR_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
)
"""The connector, and its dependency for delegation tokens, which has no newer release."""

IN_PYSPARK: Final = (
    "at.yawk.lz4:*",
    "org.apache.hadoop:*",
    "org.apache.spark:*",
    "org.scala-lang:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)
"""Dependencies of the connector that PySpark contains."""

_POM: Final = """<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>pybroker.tests</groupId>
  <artifactId>jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY: Final = """    <dependency>
      <groupId>{0}</groupId>
      <artifactId>{1}</artifactId>
      <version>{2}</version>
      <exclusions>
        <exclusion><groupId>org.slf4j</groupId><artifactId>slf4j-reload4j</artifactId></exclusion>
        <exclusion><groupId>ch.qos.logback</groupId><artifactId>*</artifactId></exclusion>
{3}      </exclusions>
    </dependency>"""
_EXCLUSION: Final = """        <exclusion>
          <groupId>{}</groupId>
          <artifactId>{}</artifactId>
        </exclusion>
"""


class MavenUnavailable(Exception):
    """The error for jars that are not available on this machine. The message is the reason for the
    skipped test.
    """


def cache_dir() -> Path:
    """Return the folder for all downloads of the tests: `$PYBROKER_TEST_CACHE`, else
    `~/.cache/pybroker-tests`.
    """
    configured = os.environ.get("PYBROKER_TEST_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "pybroker-tests"


def java() -> str:
    """Return the path of a `java` program.

    Raises MavenUnavailable if there is no `java`.
    """
    found = shutil.which("java")
    if found is None:
        raise MavenUnavailable("no java on PATH (install openjdk-17-jre-headless)")
    return found


def class_path(artifacts: Sequence[str] = KAFKA, without: Sequence[str] = ()) -> str:
    """Return the class path of `artifacts` ("group:artifact:version") and all their dependencies,
    except `without` ("group:artifact", or "group:*").

    The jars are cached. Raises MavenUnavailable with the reason if `mvn` is missing or the
    repository does not answer.
    """
    pom = _pom(artifacts, without)
    folder = cache_dir() / "jars" / hashlib.sha256(pom.encode()).hexdigest()[:16]
    if not folder.is_dir():
        _fetch(pom, folder)
    return os.pathsep.join(str(jar) for jar in sorted(folder.glob("*.jar")))


def spark_connector() -> str:
    """Return the class path of Apache Spark's connector, without the jars that PySpark contains.

    Raises MavenUnavailable like `class_path`.
    """
    return class_path(SPARK_CONNECTOR, IN_PYSPARK)


def _pom(artifacts: Sequence[str], without: Sequence[str]) -> str:
    exclusions = "".join(_EXCLUSION.format(*name.split(":")) for name in without)
    dependencies = "\n".join(
        _DEPENDENCY.format(*artifact.split(":"), exclusions) for artifact in artifacts
    )
    return _POM.format(dependencies=dependencies)


def _fetch(pom: str, folder: Path) -> None:
    """Let mvn copy the jars into a temporary folder, then rename it, so that a cache is complete or
    absent.
    """
    mvn = shutil.which("mvn")
    if mvn is None:
        raise MavenUnavailable("no mvn on PATH (install maven)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        pom_file = Path(work) / "pom.xml"
        pom_file.write_text(pom)
        jars = Path(work) / "jars"
        command = [
            mvn,
            "--batch-mode",
            "--quiet",
            f"--file={pom_file}",
            "dependency:copy-dependencies",
            f"-DoutputDirectory={jars}",
            "-DincludeScope=runtime",
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=WORK_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise MavenUnavailable(
                f"mvn did not finish in {WORK_S} s; the repository does not answer"
            ) from error
        if done.returncode != 0 or not jars.is_dir():
            reason = next(
                (line for line in done.stdout.splitlines() if "ERROR" in line), "no message"
            )
            raise MavenUnavailable(f"mvn could not fetch the jars: {reason}")
        try:
            jars.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another run was quicker; its copy is equal
                raise


def main() -> int:
    """Fill the cache. Exit with code 1 and the reason if that is not possible."""
    wanted = [(artifacts, ()) for artifacts in (KAFKA, STREAMS, CONNECT, *OLD_KAFKA.values())]
    for artifacts, without in (*wanted, (SPARK_CONNECTOR, IN_PYSPARK)):
        try:
            jars = class_path(artifacts, without).split(os.pathsep)
        except MavenUnavailable as error:
            print(f"maven: {error}", file=sys.stderr)
            return 1
        print(f"maven: {len(jars)} jars in {Path(jars[0]).parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
