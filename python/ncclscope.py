"""What a Python program may ask of the ncclscope in its process. Does nothing where ncclscope is not loaded."""

import contextlib
import ctypes
import os


def _library():
    try:
        return ctypes.CDLL("libncclscope.so", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


@contextlib.contextmanager
def cupti_released():
    """Hands CUPTI, which has one owner in a process, to another profiler while in it. Not to be nested."""
    library = _library()
    if library is None:
        yield
        return
    library.ncclscope_release()
    try:
        yield
    finally:
        library.ncclscope_acquire()


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
