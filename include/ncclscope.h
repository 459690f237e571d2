/* What a program may ask of the ncclscope in its process.
 *
 * CUPTI, through which GPU kernels are recorded, has one owner in a process. ncclscope takes it when the recording starts and
 * keeps it; these functions hand it to another profiler for a while. Do not link against the library, which may not be there:
 * find the one that NCCL or CUDA has loaded, if they have.
 *
 *     void *library = dlopen("libncclscope.so", RTLD_LAZY | RTLD_NOLOAD);
 *     int (*release)(void) = library ? (int (*)(void))dlsym(library, "ncclscope_release") : NULL;
 *     if (release) release();
 *
 * All functions may be called on any thread, several at once, before the recording, while it runs and after it, but never from a
 * callback of CUPTI's. In a forked child they do nothing. Giving CUPTI up waits a few seconds at most; taking it takes as long as
 * CUPTI's own functions do.
 */
#ifndef NCCLSCOPE_H
#define NCCLSCOPE_H

#ifdef __cplusplus
extern "C" {
#endif

/* What ncclscope_release and ncclscope_acquire answer. */
enum {
  NCCLSCOPE_SUCCESS = 0,        /* it is as it was asked for */
  NCCLSCOPE_NOT_RECORDING = 1,  /* acquire: nothing is recorded here, not yet or no longer */
  NCCLSCOPE_SWITCHED_OFF = 2,   /* acquire: NCCLSCOPE_CUPTI=0 says to leave CUPTI alone */
  NCCLSCOPE_TAKEN = 3,          /* acquire: another tool has CUPTI; a line on stderr names it where it is known */
  NCCLSCOPE_UNAVAILABLE = 4,    /* acquire: CUPTI cannot be had for another reason, which a line on stderr tells */
  NCCLSCOPE_LATE = 5            /* CUPTI does not return its records in time; giving it up goes on. Ask again */
};

/* Gives CUPTI up: what it holds is taken in, its settings are put back, and another tool can subscribe when this returns
 * NCCLSCOPE_SUCCESS. That is also the answer where ncclscope did not have it; it is not taken then until ncclscope_acquire. A
 * kernel that is still running has no end and is lost, so synchronise with the GPU first. The trace shows the moment. */
int ncclscope_release(void);

/* Takes CUPTI again, or for the first time where another tool had it when the recording started; and what another tool took of it
 * without subscribing, as torch.profiler does since August 2026: call it when that has ended, else its profile ends here. Nothing is
 * tried again by itself. The trace shows the moment, or why CUPTI could not be had. */
int ncclscope_acquire(void);

/* Names the communicators that are made from now on, on any thread, until it is called again; a null pointer leaves them to
 * NCCL again, which has names where the program gave it some. The string is copied, at most 255 bytes of it. NCCL loads the library
 * with the first communicator, which can therefore be named only where CUDA_INJECTION64_PATH loaded it before. */
void ncclscope_name_comm(const char *name);

/* The version of the library, such as "0.1.0". */
const char *ncclscope_version(void);

#ifdef __cplusplus
}
#endif

#endif
