"""The operating system's services for a real process: threads for blocking work, the kernel's boot
id, the limit of open files, and the readiness message (sd_notify).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import secrets
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from pybroker.host.scheduling import become_batch

T = TypeVar("T")
log = logging.getLogger(__name__)

READY_VARIABLE: Final = "NOTIFY_SOCKET"
_READY: Final = b"READY=1"
_NEW_OBJECTS_MAX: Final = 20_000
"""The number of new objects after which Python's garbage collector runs. Python's own default is
700."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class SystemProc:
    """The boot id of the machine's kernel, and the process id (see `Proc`)."""

    def boot_id(self) -> str:
        return _BOOT_ID.read_text(encoding="ascii").strip()

    def pid(self) -> int:
        return os.getpid()


class ThreadedBlocking:
    """Runs blocking work (see `Blocking`) in a fixed number of threads."""

    def __init__(self, threads: int) -> None:
        self._executor = _executor(threads)
        self._earlier: list[ThreadPoolExecutor] = []

    def run(self, function: Callable[..., T], *args: object) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, function, *args)

    def resize(self, threads: int) -> None:
        """Run new work in `threads` new threads. The old threads finish their queued work and
        end."""
        self._executor.shutdown(wait=False)
        self._earlier.append(self._executor)
        self._executor = _executor(threads)

    def close(self) -> None:
        """Wait for the work that is running. Work that has not begun is discarded."""
        for executor in (*self._earlier, self._executor):
            executor.shutdown(wait=True, cancel_futures=True)


class BackgroundThread:
    """One thread for long work that no client waits for. With SCHED_BATCH (Linux), the thread does
    not preempt the event loop's thread. The thread keeps its priority: at low priority the thread
    could hold the GIL for long."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(
            1, thread_name_prefix="pybroker-background", initializer=become_batch
        )

    def run(self, function: Callable[..., T], *args: object) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, function, *args)

    def give_way(self) -> None:
        if hasattr(os, "sched_yield"):
            os.sched_yield()

    def close(self) -> None:
        """Wait for the work that is running, and end the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def _executor(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="pybroker-blocking")


def spare_the_collector(*, collects: bool = True) -> None:
    """Exclude all present objects from garbage collection, and make collections rarer: full
    collections would delay all requests by 40 ms. If `collects` is True, collect first."""
    if collects:
        gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS_MAX, *gc.get_threshold()[1:])


def raise_open_files_limit() -> int:
    """Raise this process's limit of open files as far as the system allows, and return the new
    limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return soft


def send_ready() -> None:
    """Send READY=1 to the socket that the environment variable NOTIFY_SOCKET names (sd_notify). Do
    nothing if the variable is not set."""
    address = os.environ.get(READY_VARIABLE)
    if not address:
        return
    name = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(_READY, name)
    except OSError as error:
        text = "readiness not sent, the parent process waits on %s=%s error=%r"
        log.warning(text, READY_VARIABLE, address, error)


class ReadySocket:
    """The socket on which a parent process receives the readiness message of one child. The owner
    waits until the socket is readable, then calls `received_ready`."""

    def __init__(self) -> None:
        self.address = f"@pybroker-{secrets.token_hex(8)}"
        """The value of NOTIFY_SOCKET for the child: a name in Linux' abstract namespace of sockets,
        so that there is no file."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind("\0" + self.address[1:])

    def fileno(self) -> int:
        return self._socket.fileno()

    def received_ready(self) -> bool:
        """Return whether a message READY=1 has arrived."""
        try:
            return _READY in self._socket.recv(4096).splitlines()
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._socket.close()
