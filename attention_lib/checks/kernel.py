"""Runs cells in a fresh kernel, with limits, and leaves no process behind. The board uses this."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
from nbformat.v4 import new_code_cell, new_notebook

START_SECONDS = 120  # for the kernel itself, before the first of the reader's cells
_LOOK = 0.1  # seconds between two looks at a running kernel
_SILENT = logging.getLogger(f"{__name__}.silent")
_SILENT.setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True)
class Limits:
    """What the cells of one exercise may take: seconds, and gigabytes of memory."""

    seconds: float = 60
    memory: float = 4


@dataclass
class Run:
    """What happened: how it ended, the errors by cell, and what `check` said.

    `end` is "done", "died", "timed out", "out of memory" or "stopped"; `last` is the index of the
    cell that ran last.
    """

    end: str = "done"
    last: int = 0
    errors: dict = field(default_factory=dict)
    reports: list = field(default_factory=list)
    seconds: float = 0.0


class _ThisPython(KernelSpecManager):
    """Kernels of the Python that runs the board, whatever kernels are installed."""

    def get_kernel_spec(self, kernel_name):
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python", language="python")


class _Client(NotebookClient):
    """Runs all cells, whatever fails, and forgets what they display."""

    def output(self, outs, msg, display_id, cell_index):
        return None


class _Kernel:
    """One kernel, from its start to the end of all its processes."""

    def __init__(self, sources, folder, limits):
        self.cells = [new_code_cell(source) for source in sources]
        self.folder, self.limits, self.run = Path(folder), limits, Run()
        self.family, self.began, self.born = {}, None, time.monotonic()

    def watch(self, stop):
        """Run the cells and wait for their end, or bring it about."""
        # in a thread of its own, since nbclient handles Ctrl-C in another way in the main one
        worker = threading.Thread(target=lambda: asyncio.run(self._execute()), daemon=True)
        worker.start()
        try:
            while worker.is_alive() and self.run.end == "done":
                worker.join(_LOOK)
                self._look(stop)
        finally:
            self._kill()
            worker.join(30)
        return self.run

    async def _execute(self):
        manager = AsyncKernelManager(
            kernel_spec_manager=_ThisPython(), connection_file=str(self.folder / "kernel.json")
        )
        client = None
        null = subprocess.DEVNULL
        try:
            await manager.start_kernel(
                cwd=str(self.folder), env=self._environment(), stdout=null, stderr=null
            )
            self._found(psutil.Process(manager.provisioner.pid))
            client = _Client(
                new_notebook(cells=self.cells),
                km=manager,
                allow_errors=True,
                log=_SILENT,
                startup_timeout=START_SECONDS,
                on_cell_start=self._starts,
                on_cell_executed=self._ends,
            )
            await client.async_execute()
        except (DeadKernelError, RuntimeError, psutil.NoSuchProcess):
            if self.run.end == "done":
                self.run.end = "died"
        finally:
            self.run.seconds = time.monotonic() - self.began if self.began else 0.0
            self._kill()
            if client is not None and client.kc is not None:
                client.kc.stop_channels()
            with suppress(Exception):  # it is dead already
                await manager.shutdown_kernel(now=True)

    def _environment(self):
        own = {
            "IPYTHONDIR": str(self.folder),  # no start-up files, no history of the user's
            "MPLBACKEND": "agg",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TQDM_DISABLE": "1",
        }
        return os.environ | own

    def _starts(self, cell, cell_index):
        self.run.last = cell_index
        if cell_index == 1:
            self.began = time.monotonic()

    def _ends(self, cell, cell_index, execute_reply):
        content = execute_reply["content"]
        if content["status"] == "error":
            text = " ".join(content["evalue"][:2000].split())[:200]
            name = content["ename"]
            self.run.errors[cell_index] = f"{name}: {text}" if text else name

    def _look(self, stop):
        """Is a limit passed? Then say which; the kernel is killed next."""
        memory = 0
        for process in list(self.family.values()):
            with suppress(psutil.Error):
                memory += process.memory_info().rss
                for child in process.children(recursive=True):
                    self._found(child)
        late = time.monotonic() - (self.began or self.born)
        if stop.is_set():
            self.run.end = "stopped"
        elif memory > self.limits.memory * 1e9:
            self.run.end = "out of memory"
        elif late > (self.limits.seconds if self.began else START_SECONDS):
            self.run.end = "timed out"

    def _found(self, process):
        self.family.setdefault((process.pid, process.create_time()), process)

    def _kill(self):
        """End every process that was ever seen below the kernel, and all of its group."""
        for process in list(self.family.values()):
            with suppress(psutil.Error, OSError, AttributeError):  # Windows has no groups
                # a kernel leads a group of its own; never a group that is not one of these
                if process.is_running() and os.getpgid(process.pid) == process.pid:
                    os.killpg(process.pid, signal.SIGKILL)
            with suppress(psutil.Error):
                process.kill()


def run(exercise, sources, home, limits, stop):
    """Run cells in a fresh kernel, in an empty folder, and return the `Run`.

    Args:
        exercise: The name of the exercise whose checks are recorded.
        sources: The cells. The indices in the `Run` count from 1 for the first of them.
        home: The folder of the notebook: modules in it can be imported.
        limits: The `Limits`.
        stop: A `threading.Event` that ends the run when it is set.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        reports = Path(folder) / "reports.jsonl"
        memory = int(limits.memory * 1e9)
        first = (
            "from attention_lib.checks import recorder as _recorder\n"
            f"_recorder.start({exercise!r}, {str(reports)!r}, {str(home)!r}, {memory})\n"
            "del _recorder"
        )
        result = _Kernel([first, *sources], folder, limits).watch(stop)
        if reports.is_file():
            lines = reports.read_text("utf-8").splitlines()
            result.reports = [json.loads(line) for line in lines]
    return result
