"""A Docker engine for one test run, and a Debian base image for machines that cannot pull an image.

This module needs root, `dockerd` and `debootstrap`; `.ci/setup docker` installs them. Both programs
run in namespaces for processes and mounts, so that all their processes and mounts end with them,
even if the test run is killed. The engine has no network: its containers use the machine's network,
or none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from integration_tests.maven import cache_dir
from integration_tests.process import ChildProcess
from unit_tests.patience import WORK_S, WaitFailed, wait_until

_ALONE: Final = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_START: Final = """
for folder in /etc/docker /run/docker /run/containerd; do
  mkdir -p $folder && mount -t tmpfs none $folder || exit
done
exec dockerd "$@"
"""
"""A script that hides folders that every engine shares, whatever its options are. This engine gets
empty folders instead.
"""
_OPTIONS: Final = (
    "--bridge=none",
    "--iptables=false",
    "--ip-forward=false",
    "--exec-opt=native.cgroupdriver=cgroupfs",
)
_PREFIX: Final = "pybroker-docker-"
_MEMORY: Final = Path("/dev/shm")
_MEMORY_BYTES_MIN: Final = 6_000_000_000
"""The required free memory in bytes: four times the size of the image, its layers and its
containers.
"""
_CGROUPS: Final = Path("/sys/fs/cgroup")
_CERTIFICATES: Final = Path("/usr/local/share/ca-certificates")
_DPKG: Final = """force-unsafe-io
path-exclude /usr/share/doc/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
"""
"""Options of dpkg as in Debian's own small images: no syncs during installation, and no
documentation.
"""


class DockerUnavailable(Exception):
    """The error for a machine without a requirement. The message is the reason for the skipped
    test.
    """


@contextlib.contextmanager
def running() -> Iterator[str]:
    """Start an engine, yield its URL, and stop it. Raises DockerUnavailable with the reason if the
    engine cannot be started.
    """
    _need("dockerd", "docker.io")
    _remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_data_parent()))
    url = f"unix://{folder / 'socket'}"
    process = ChildProcess(
        [
            *_ALONE, "sh", "-c", _START, "sh", *_OPTIONS,
            f"--host={url}",
            f"--data-root={folder / 'data'}",
            f"--exec-root={folder / 'exec'}",
            f"--pidfile={folder / 'pid'}",
            f"--cgroup-parent=/{folder.name}",
        ]
    )  # fmt: skip
    try:
        wait_until(
            lambda: "API listen on" in process.output or not process.running,
            what="the Docker engine has started",
        )
        if not process.running:
            raise DockerUnavailable(f"dockerd cannot be started here: {_last_line(process)}")
        yield url
    finally:
        _end(process)
        _remove(folder)


def base_image(codename: str) -> Path:
    """Return a tar file with a small Debian of the release `codename` and with the trusted
    certificates of this machine. The file is cached. Raises DockerUnavailable with the reason if
    it cannot be created.
    """
    _need("debootstrap", "debootstrap")
    release = platform.freedesktop_os_release()
    if release.get("ID") != "debian":
        raise DockerUnavailable("an image by debootstrap needs a machine with Debian")
    arguments = (codename, *_mirror(release["VERSION_CODENAME"]))
    certificates = sorted(_CERTIFICATES.glob("**/*.crt"))
    key = hashlib.sha256(" ".join((*arguments, _DPKG)).encode())
    for path in certificates:
        key.update(path.read_bytes())
    kept = cache_dir() / "docker" / f"{arguments[0]}-{key.hexdigest()[:16]}.tar"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as work:
            root = Path(work) / "root"
            options = root / "etc/dpkg/dpkg.cfg.d/small"
            options.parent.mkdir(parents=True)
            options.write_text(_DPKG)
            _bootstrap(root, *arguments)
            for path in certificates:
                copy = root / path.relative_to("/")
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
            packed = Path(work) / kept.name
            with tarfile.open(packed, "w") as archive:
                archive.add(root, ".")
            packed.rename(kept)  # a cache is whole or absent
    return kept


def _need(program: str, package: str) -> None:
    if os.geteuid() != 0:
        raise DockerUnavailable(f"{program} needs root")
    if shutil.which(program) is None:
        raise DockerUnavailable(f"{program} is missing: apt-get install {package}")


def _bootstrap(root: Path, codename: str, *mirror: str) -> None:
    process = ChildProcess(
        [*_ALONE, "debootstrap", "--variant=minbase", codename, str(root), *mirror]
    )
    try:
        code = process.wait(WORK_S)
    except WaitFailed as error:
        raise DockerUnavailable(f"debootstrap did not finish in {WORK_S} s") from error
    finally:
        _end(process)
    if code != 0:
        raise DockerUnavailable(f"debootstrap could not make an image: {_last_line(process)}")


def _mirror(codename: str) -> list[str]:
    """Return this machine's mirror of the Debian release `codename`; empty if there is none."""
    wanted = ("Created-By: Packages", f"Codename: {codename}", "Component: main")
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.split()[:1]


def _last_line(process: ChildProcess) -> str:
    return process.output.rpartition("\n")[2]


def _end(process: ChildProcess) -> None:
    """Stop the engine and all processes in its namespaces, which end with their first process."""
    with contextlib.suppress(psutil.Error):
        for first in psutil.Process(process.pid).children():
            first.kill()
            wait_until(lambda: not process.running, what="the namespaces are empty")
    process.close()


def _data_parent() -> Path:
    """Return the folder for an engine's data, in memory if there is room, because layers are many
    small, synced files.
    """
    with contextlib.suppress(OSError):
        free = min(shutil.disk_usage(_MEMORY).free, psutil.virtual_memory().available)
        if free > _MEMORY_BYTES_MIN:
            return _MEMORY
    return Path(tempfile.gettempdir())


def _remove(folder: Path) -> None:
    """Remove the data and the control groups of a stopped engine."""
    for group in (*_CGROUPS.glob(folder.name), *_CGROUPS.glob(f"*/{folder.name}")):
        for path, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(FileNotFoundError):  # two names may lead to the same groups
                Path(path).rmdir()
    shutil.rmtree(folder)


def _remove_leftovers() -> None:
    """Remove the folders of engines of killed test runs."""
    for parent in {_MEMORY, Path(tempfile.gettempdir())}:
        for folder in parent.glob(f"{_PREFIX}*"):
            if not psutil.pid_exists(int(folder.name.removeprefix(_PREFIX).partition("-")[0])):
                _remove(folder)
