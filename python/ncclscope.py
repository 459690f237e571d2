"""Hands CUPTI, which has one owner in a process, from ncclscope to another profiler for a while."""

import contextlib
import ctypes
import os


@contextlib.contextmanager
def cupti_released():
    """While in it, another profiler can have CUPTI. Does nothing where ncclscope is not loaded. Not to be nested."""
    try:
        library = ctypes.CDLL("libncclscope.so", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        yield
        return
    library.ncclscope_release()
    try:
        yield
    finally:
        library.ncclscope_acquire()
