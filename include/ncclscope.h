/* What a program may ask of the ncclscope in its process.
 *
 * CUPTI, which records GPU kernels, has one owner in a process. ncclscope takes it when the
 * recording starts and keeps it; these functions lend it to another profiler for a while. Do not
 * link against the library, which may not be there: look for the copy that NCCL or CUDA has loaded.
 *
 *     void *library = dlopen("libncclscope.so", RTLD_LAZY | RTLD_NOLOAD);
 *     int (*release)(void) = library ? (int (*)(void))dlsym(library, "ncclscope_release") : NULL;
 *     if (release) release();
 *
 * All functions may be called on any thread, on several at once, and before, during and after the
 * recording, but never from a callback of CUPTI's. In a forked child they do nothing. Giving CUPTI
 * up takes a few seconds at most; taking it takes as long as CUPTI's own functions do.
 */
#ifndef NCCLSCOPE_H
#define NCCLSCOPE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The results of ncclscope_release and ncclscope_acquire. */
enum {
  NCCLSCOPE_SUCCESS = 0,        /* done, or it was already so */
  NCCLSCOPE_NOT_RECORDING = 1,  /* acquire: this process is not recording, not yet or no longer */
  NCCLSCOPE_SWITCHED_OFF = 2,   /* acquire: NCCLSCOPE_CUPTI=0 says to leave CUPTI alone */
  NCCLSCOPE_TAKEN = 3,          /* acquire: another tool has CUPTI; stderr names it if known */
  NCCLSCOPE_UNAVAILABLE = 4,    /* acquire: CUPTI cannot be had for another reason; see stderr */
  NCCLSCOPE_LATE = 5            /* CUPTI did not return its records in time; giving it up goes on.
                                   Call again */
};

/* Gives CUPTI up: its pending records are taken in, its settings are restored, and another tool
 * can subscribe once this returns NCCLSCOPE_SUCCESS. It also returns that if ncclscope did not have
 * CUPTI; ncclscope then does not take it until ncclscope_acquire. A kernel that is still running
 * has no end and is lost, so synchronise with the GPU first. The trace shows the moment. */
int ncclscope_release(void);

/* Takes CUPTI again, or for the first time if another tool had it when the recording started. Also
 * takes back what another tool took of it without subscribing, as torch.profiler does since August
 * 2026: call it when that profile has ended, otherwise it ends here. ncclscope does not retry by
 * itself. The trace shows the moment, or why CUPTI could not be had. */
int ncclscope_acquire(void);

/* Names the communicators created from now on, on any thread, until the next call. After a call
 * with NULL they have NCCL's own names again, if the program gave NCCL any. The string is copied,
 * up to 255 bytes of it. NCCL loads the library with the first communicator, so that one can be
 * named only if CUDA_INJECTION64_PATH has loaded the library before. */
void ncclscope_name_comm(const char *name);

/* Begins a step of the program, such as one iteration of its training loop; it ends with the next
 * call, whichever thread makes it. The trace shows steps as NVTX ranges, ncclscope diagnose counts
 * by them, and NCCLSCOPE_STEPS selects some of them. Costs about as much as one event of NCCL's. */
void ncclscope_step(uint64_t number);

/* The version of the library, such as "0.1.0". */
const char *ncclscope_version(void);

#ifdef __cplusplus
}
#endif

#endif
