/* A profiler plugin that does nothing but hand out a handle: the baseline of benches/callback.rs. */
#include <stddef.h>

static int init(void **context, unsigned long id, int *mask, const char *name, int nodes, int ranks, int rank,
                void *logger) {
    (void)id, (void)name, (void)nodes, (void)ranks, (void)rank, (void)logger;
    *context = (void *)1;
    *mask = ~0;
    return 0;
}
static int start(void *context, void **handle, void *descr) {
    (void)context, (void)descr;
    *handle = (void *)1;
    return 0;
}
static int stop(void *handle) { (void)handle; return 0; }
static int state(void *handle, int number, void *args) { (void)handle, (void)number, (void)args; return 0; }
static int finalize(void *context) { (void)context; return 0; }

struct table {
    const char *name;
    int (*init)(void **, unsigned long, int *, const char *, int, int, int, void *);
    int (*start)(void *, void **, void *);
    int (*stop)(void *);
    int (*state)(void *, int, void *);
    int (*finalize)(void *);
} const ncclProfiler_v7 = {"empty", init, start, stop, state, finalize};
