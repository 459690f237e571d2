// The functions of a library that the emulator takes for libnccl, with a CUDA runtime inside whose
// functions are static. Each returns its own number, which shows which one answered.
//
// -DINCOMPLETE leaves out one of NCCL's functions, -DNO_RUNTIME the CUDA runtime.

const char release[] = "NCCL version information\0NCCL version 2.99.1+cuda99.0\n";

int ncclGetVersion(int *version) {
  *version = 29901;
  return 0;
}

#define STUB(name) \
  int name(void) { return 0; }
STUB(ncclGetUniqueId) STUB(ncclGetErrorString) STUB(ncclGetLastError)
STUB(ncclCommInitRankConfig) STUB(ncclCommSplit) STUB(ncclCommFinalize) STUB(ncclCommDestroy) STUB(ncclCommAbort)
STUB(ncclCommGetAsyncError) STUB(ncclAllReduce) STUB(ncclAllGather)
STUB(ncclReduceScatter) STUB(ncclBroadcast) STUB(ncclReduce) STUB(ncclSend) STUB(ncclRecv) STUB(ncclGroupStart)
STUB(ncclMemAlloc) STUB(ncclMemFree) STUB(ncclGather)
#ifndef INCOMPLETE
STUB(ncclGroupEnd)
#endif

#ifndef NO_RUNTIME
// As in the real runtime, callers cannot see into the functions, and the functions are longer than
// a jump.
#define STATIC(name, number) \
  static __attribute__((noipa)) int name(int argument) { \
    volatile int sum = argument, rounds = 3; \
    while (rounds--) sum += number; \
    return sum; \
  } \
  int call_##name(int argument) { return name(argument); }
STATIC(cudaMalloc, 1)
STATIC(cudaFree, 2)
STATIC(cudaGraphLaunch, 3)
STATIC(cudaStreamQuery, 4)
STATIC(cudaGetErrorString, 5)
STATIC(cudaPfnFuncLoader, 6)
STATIC(cudart, 7)
STATIC(__cudaLaunchKernel, 8)
static int cudaMallocByAnotherName(int) __attribute__((used, alias("cudaMalloc")));
static int cudaFreeByAnotherName(int) __attribute__((used, alias("cudaFree")));

// Shorter than a jump: one followed by padding, and one followed by another function.
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".type cudaShort, @function\n"
    "cudaShort: movl $41, %eax\n"
    "ret\n"
    ".size cudaShort, .-cudaShort\n"
    ".p2align 4\n"
    ".type cudaCrowded, @function\n"
    "cudaCrowded: movl $42, %eax\n"
    "ret\n"
    ".size cudaCrowded, .-cudaCrowded\n"
    ".type neighbour, @function\n"
    "neighbour: movl $43, %eax\n"
    "ret\n"
    ".size neighbour, .-neighbour\n"
    ".p2align 4\n");
int cudaShort(int) __attribute__((visibility("hidden")));
int cudaCrowded(int) __attribute__((visibility("hidden")));
int neighbour(int) __attribute__((visibility("hidden")));
int call_cudaShort(int argument) { return cudaShort(argument); }
int call_cudaCrowded(int argument) { return cudaCrowded(argument); }
int call_neighbour(int argument) { return neighbour(argument); }
#endif
