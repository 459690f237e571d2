"""What a Python program may ask of the ncclscope in its process, and where its library is. Does nothing where ncclscope is not loaded."""

import contextlib
import ctypes
import os
import time
import warnings

# Answers of ncclscope_acquire, as in include/ncclscope.h.
_TAKEN, _UNAVAILABLE, _LATE = 3, 4, 5

_NAME = "libncclscope.so"


def plugin_path():
    """Where the library is that came with this module, for NCCL_PROFILER_PLUGIN; as `ncclscope lib` prints it.

    Raises FileNotFoundError where none came with it.
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    # A wheel installs it beside this file; in the archive it lies beside the folder "python".
    for place in (folder, os.path.dirname(os.path.dirname(folder))):
        library = os.path.join(place, _NAME)
        if os.path.isfile(library):
            return library
    raise FileNotFoundError(f"there is no {_NAME} in {folder}; the wheel and the archive have it, `ncclscope lib` prints where another is")


def _library():
    try:
        return ctypes.CDLL(_NAME, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


@contextlib.contextmanager
def cupti_released():
    """Hands CUPTI, which has one owner in a process, to another profiler while in it. Not to be nested.

    PyTorch gives CUPTI back only with TEARDOWN_CUPTI=1, which is set here unless the variable says otherwise. Where CUPTI does
    not come back, a RuntimeWarning says so, and the trace has no kernels from there on.
    """
    library = _library()
    if library is None:
        yield
        return
    os.environ.setdefault("TEARDOWN_CUPTI", "1")
    library.ncclscope_release()
    try:
        yield
    finally:
        _take_again(library)


def _take_again(library, tries=20, pause=0.1):
    """Whoever had CUPTI may take a moment to give it up."""
    for left in reversed(range(tries)):
        answer = library.ncclscope_acquire()
        if answer not in (_TAKEN, _LATE) or left == 0:
            break
        time.sleep(pause)
    if answer in (_TAKEN, _UNAVAILABLE, _LATE):
        reason = "another profiler keeps it; PyTorch's does unless TEARDOWN_CUPTI=1 was set before it was first used"
        if answer != _TAKEN:
            reason = "the line on stderr says why"
        warnings.warn(f"ncclscope did not get CUPTI again, so GPU kernels are not recorded: {reason}", RuntimeWarning, stacklevel=4)


@contextlib.contextmanager
def comm_named(name):
    """Names the communicators made while in it, on any thread. Not to be nested.

    PyTorch makes a group's communicator with its first collective. NCCL loads ncclscope with the first communicator, which can
    therefore be named only where CUDA_INJECTION64_PATH loaded it before.
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
