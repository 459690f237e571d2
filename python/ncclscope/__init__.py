"""Calls into the ncclscope loaded in this process, and the path of its library. The calls do nothing if ncclscope is not loaded."""

import contextlib
import ctypes
import os
import time
import warnings

# Return values of ncclscope_release and ncclscope_acquire, from include/ncclscope.h.
_TAKEN, _UNAVAILABLE, _LATE = 3, 4, 5

_NAME = "libncclscope.so"


def plugin_path():
    """The path of the library installed with this module, for NCCL_PROFILER_PLUGIN; `ncclscope lib` prints the same.

    Raises FileNotFoundError if none was installed with it.
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    # A wheel installs it beside this file; in the archive it is beside the folder "python".
    for place in (folder, os.path.dirname(os.path.dirname(folder))):
        library = os.path.join(place, _NAME)
        if os.path.isfile(library):
            return library
    raise FileNotFoundError(f"there is no {_NAME} in {folder}; the wheel and the archive contain it, and `ncclscope lib` prints where another is")


def _library():
    try:
        return ctypes.CDLL(_NAME, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


@contextlib.contextmanager
def cupti_released():
    """Hands CUPTI, which has one owner in a process, to another profiler inside the `with` block. Must not be nested.

    PyTorch gives CUPTI back only with TEARDOWN_CUPTI=1, which this sets unless the variable is already set. If CUPTI does
    not come back within two seconds, this warns (RuntimeWarning), and the trace has no kernels from there on. It also warns if
    ncclscope cannot give CUPTI up in time.
    """
    library = _library()
    if library is None:
        yield
        return
    os.environ.setdefault("TEARDOWN_CUPTI", "1")
    # Each call waits for seconds by itself.
    if _ask(library.ncclscope_release, (_LATE,), tries=3) == _LATE:
        reason = "it did not return its records in time; synchronise with the GPU first"
        warnings.warn(f"ncclscope has not given CUPTI up, so another profiler may not get it: {reason}", RuntimeWarning, stacklevel=3)
    try:
        yield
    finally:
        _take_again(library)


def _ask(function, again, tries):
    """Calls the function until its answer is not to be asked again, and returns the last answer."""
    for left in reversed(range(tries)):
        answer = function()
        if answer not in again or left == 0:
            return answer
        time.sleep(0.1)


def _take_again(library):
    """Asks for CUPTI until the other profiler has given it up, for two seconds."""
    answer = _ask(library.ncclscope_acquire, (_TAKEN, _LATE), tries=20)
    if answer in (_TAKEN, _UNAVAILABLE, _LATE):
        reason = "another profiler keeps it; PyTorch's does unless TEARDOWN_CUPTI=1 was set before it was first used"
        if answer != _TAKEN:
            reason = "the line on stderr says why"
        warnings.warn(f"ncclscope did not get CUPTI back, so GPU kernels are not recorded: {reason}", RuntimeWarning, stacklevel=4)


@contextlib.contextmanager
def comm_named(name):
    """Names the communicators created inside the `with` block, on any thread. Must not be nested.

    PyTorch creates a group's communicator with the group's first collective. NCCL loads ncclscope with the first communicator,
    which can therefore be named only if CUDA_INJECTION64_PATH loaded ncclscope earlier.
    """
    library = _library()
    if library is None:
        yield
        return
    library.ncclscope_name_comm.argtypes = [ctypes.c_char_p]
    library.ncclscope_name_comm.restype = None
    library.ncclscope_name_comm(name.encode())
    try:
        yield
    finally:
        library.ncclscope_name_comm(None)


def step(number):
    """Begins a step of the program, such as one iteration of its training loop; it ends with the next call.

    The trace shows steps as ranges, `ncclscope diagnose` counts by them, and NCCLSCOPE_STEPS=100..109 records only those.
    """
    library = _library()
    if library is not None:
        library.ncclscope_step.argtypes = [ctypes.c_uint64]
        library.ncclscope_step.restype = None
        library.ncclscope_step(number)


def tables(folder):
    """The tables that `ncclscope export --parquet FOLDER` wrote: a dictionary of pyarrow.dataset.Dataset by name.

    Each has the columns of docs/tables.md, and `job` and `rank`. Needs pyarrow. Raises FileNotFoundError if there is no table
    in the folder.
    """
    import pyarrow
    import pyarrow.dataset

    partitions = pyarrow.dataset.partitioning(pyarrow.schema([("job", pyarrow.string()), ("rank", pyarrow.int32())]), flavor="hive")
    found = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        jobs = [os.path.join(path, job) for job in sorted(os.listdir(path)) if job.startswith("job=")] if os.path.isdir(path) else []
        # A job is exported by one version, and another may have been by a newer one with more columns.
        read = [pyarrow.dataset.dataset(job, format="parquet", partitioning=partitions, partition_base_dir=path).schema for job in jobs]
        if read:
            schema = pyarrow.unify_schemas(read)
            found[name] = pyarrow.dataset.dataset(path, schema=schema, format="parquet", partitioning=partitions)
    if not found:
        raise FileNotFoundError(f"there are no tables in {folder}; `ncclscope export TRACES --parquet {folder}` writes them")
    return found
