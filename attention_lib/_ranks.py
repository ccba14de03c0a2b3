"""The processes of chapter 15: started, watched, ended, and what they communicate counted."""

import inspect
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import textwrap
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from attention_lib import _arguments

DEVICES = {"gloo": "cpu", "nccl": "cuda"}
# On Linux all ranks are forked from one process that has imported what they need, and has done
# nothing else: the first start takes seconds, the next ones do not.
_METHOD = "forkserver" if sys.platform == "linux" else "spawn"
_PRELOADED = ["attention_lib.devices", "torch._dynamo"]


class count_communication(TorchDispatchMode):
    """A context that counts what a process hands to PyTorch's communication.

    It sees every operation of ``torch.distributed`` that the code inside calls, in this process,
    whoever calls it: sends and receives, and the collectives that a DTensor starts.

    Attributes:
        calls: Number of calls by name of the operation, such as ``"send"`` or ``"all_reduce"``.
        bytes: Bytes of the tensors given to them, by name.

    Example:
        >>> with count_communication() as counted:
        ...     _ = torch.ones(2) + 1
        >>> counted.bytes["send"]
        0
    """

    def __init__(self):
        super().__init__()
        self.calls, self.bytes = Counter(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Count one operation and let it run."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # a DTensor: what it does inside comes by as well
        space, _, name = func.name().partition("::")
        if space in ("c10d", "_c10d_functional") and not name.startswith(("wait", "_wrap")):
            name = name.rstrip("_")
            self.calls[name] += 1
            self.bytes[name] += sum(map(_nbytes, args))
        return func(*args, **(kwargs or {}))


class RankError(RuntimeError):
    """A process raised, or ended without a result.

    Attributes:
        rank: The rank of the process.
    """

    def __init__(self, message, rank):
        super().__init__(message)
        self.rank = rank


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    backend: str = "gloo",
    timeout: float | int = 60.0,
) -> list[Any]:
    """What the function returns in each of ``world_size`` new processes on this machine, by rank.

    The processes form a process group before the function starts. They are fresh: nothing of this
    process is in them but the arguments, which are copied. A function of a module is imported
    there. A function of a notebook, of a script, or inside another function is sent as its text:
    it must import what it uses itself. What the ranks print appears at the end, in their order.

    Args:
        function: Called in every process with the arguments.
        world_size: Number of processes, each with one thread.
        arguments: Anything that pickle can copy.
        backend: ``"gloo"`` on CPUs, or ``"nccl"`` with a GPU for each process.
        timeout: Seconds for everything, the start of the processes (seconds) included; at most
            a million.

    Returns:
        A list of the results, copied from the processes.

    Raises:
        ValueError: A number of processes below 1; a timeout out of range; a backend of another
            name, or one that this machine has no devices for; a function that cannot be sent.
        RankError: A process raised or ended; the message names its rank and the cause. The others
            are ended at once.
        TimeoutError: The time is over. All processes are ended.
    """
    _startable(world_size, backend, timeout)
    job = pickle.dumps((_sendable(function), arguments))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        context = multiprocessing.get_context(_METHOD)
        context.set_forkserver_preload(_PRELOADED)
        processes = [
            context.Process(target=_work, args=(rank, world_size, folder, job, backend, timeout))
            for rank in range(world_size)
        ]
        try:
            for process in processes:
                process.start()
            _watch(processes, Path(folder), timeout)
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()
            for path in sorted(Path(folder).glob("*.out")):
                print(path.read_text("utf-8"), end="")
        return [
            pickle.loads(_file(folder, rank, "result").read_bytes()) for rank in range(world_size)
        ]


def _nbytes(argument):
    """Bytes of a tensor, or of all tensors in a list of them or of such lists."""
    if isinstance(argument, Tensor):
        return argument.nbytes
    return sum(map(_nbytes, argument)) if isinstance(argument, list | tuple) else 0


def _startable(world_size, backend, timeout):
    """Refuse processes that this machine cannot start, or cannot wait for."""
    _arguments.positive(world_size=world_size)
    # more than some 24 days does not fit into a poll()
    if not (isinstance(timeout, float | int) and 0 < timeout <= 1e6):
        raise ValueError(
            f"timeout must be a number of seconds above 0, at most a million; got {timeout!r:.60}"
        )
    if backend not in DEVICES:
        raise ValueError(f"backend must be one of {', '.join(DEVICES)}; got {backend!r}")
    if backend == "nccl" and torch.cuda.device_count() < world_size:
        raise ValueError(
            f"nccl needs a GPU for each process; got {torch.cuda.device_count()} GPUs for "
            f"{world_size} processes. gloo runs on CPUs"
        )


def _sendable(function):
    """The function, if another process can import it, else its name and text."""
    name = getattr(function, "__qualname__", "")
    if function.__module__ != "__main__" and "<" not in name:
        return function
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        text = ""
    if not text.startswith(("def ", "@")):
        raise ValueError(
            "a function of a notebook is sent as its text, which begins with def; got "
            f"{name or function!r}. Write it with def, in a cell of its own or a module"
        )
    return function.__name__, text


def _work(rank, world_size, folder, job, backend, timeout):
    """What a new process does: join the group, call the function, leave its result in a file."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for stream, name in (1, "out"), (2, "err"):
        os.dup2(os.open(_file(folder, rank, name), os.O_WRONLY | os.O_CREAT), stream)
    sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)
    try:
        _join(rank, world_size, folder, backend, timeout)
        function, arguments = pickle.loads(job)
        if isinstance(function, tuple):
            name, text = function
            scope = {"__name__": name}
            exec(compile(text, f"<{name}>", "exec"), scope)
            function = scope[name]
        result = pickle.dumps(function(*arguments))
        _file(folder, rank, "result").write_bytes(result)
    except BaseException as error:
        # Written before the others can see that this one is gone: the earliest is the cause.
        said = traceback.format_exception_only(error)[-1].strip()
        text = pickle.dumps((time.time(), said, traceback.format_exc()))
        _file(folder, rank, "error").write_bytes(text)
        os._exit(1)
    dist.destroy_process_group()


def _join(rank, world_size, folder, backend, timeout):
    """Become a rank of the process group, over the loopback interface."""
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend, store=dist.FileStore(str(Path(folder, "store")), world_size), rank=rank,
        world_size=world_size, timeout=timedelta(seconds=timeout),
    )  # fmt: skip
    if backend == "gloo":
        dist.barrier()  # a rank that is done and gone breaks those that are not yet connected


def _end_with_parent():
    """Nobody waits for this process any more once the one that started it is gone."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _watch(processes, folder, timeout):
    """Return when all processes are done; raise as soon as one has failed, or at the timeout."""
    end = time.monotonic() + timeout
    running = list(processes)
    while running:
        if not wait([process.sentinel for process in running], end - time.monotonic()):
            ranks = [rank for rank, process in enumerate(processes) if process in running]
            raise TimeoutError(f"after {timeout:g} s these ranks were not done: {ranks}")
        running = [process for process in running if process.exitcode is None]
        if any(process.exitcode for process in processes):
            raise _failure(processes, folder)


def _failure(processes, folder):
    """The error of the rank that failed first: others fail because they lose it."""
    end = time.monotonic() + 1
    codes = [process.exitcode for process in processes]
    while not _silent(codes, folder) and None in codes and time.monotonic() < end:
        time.sleep(0.02)  # a rank may notice the end of another before we are told of it
        codes = [process.exitcode for process in processes]
    for rank in _silent(codes, folder):
        code = codes[rank]
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"left with code {code}"
        error = RankError(f"rank {rank} {how}", rank)
        error.add_note(_file(folder, rank, "err").read_text("utf-8", errors="replace"))
        return error
    found = [(*pickle.loads(path.read_bytes()), path.stem) for path in folder.glob("*.error")]
    _, said, trace, rank = min(found)
    error = RankError(f"rank {rank} raised {said}", int(rank))
    error.add_note(f"Traceback of rank {rank}:\n{trace}")
    return error


def _silent(codes, folder):
    """The ranks that ended with a code that is not 0, and have left no error."""
    return [r for r, code in enumerate(codes) if code and not _file(folder, r, "error").exists()]


def _file(folder, rank, kind):
    return Path(folder, f"{rank}.{kind}")
