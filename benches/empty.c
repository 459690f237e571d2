/* A profiler plugin that does nothing but hand out a handle: the baseline of benches/callback.rs.
 * The versions 5 to 7 of the interface have the same functions; that of 4 is initialised otherwise. */
#include <stddef.h>

static int init(void **context, unsigned long id, int *mask, const char *name, int nodes, int ranks, int rank,
                void *logger) {
    (void)id, (void)name, (void)nodes, (void)ranks, (void)rank, (void)logger;
    *context = (void *)1;
    *mask = ~0;
    return 0;
}
static int init4(void **context, int *mask, const char *name, unsigned long hash, int nodes, int ranks, int rank,
                 void *logger) {
    return init(context, hash, mask, name, nodes, ranks, rank, logger);
}
static int start(void *context, void **handle, void *descr) {
    (void)context, (void)descr;
    *handle = (void *)1;
    return 0;
}
static int stop(void *handle) { (void)handle; return 0; }
static int state(void *handle, int number, void *args) { (void)handle, (void)number, (void)args; return 0; }
static int finalize(void *context) { (void)context; return 0; }

#define TABLE(init)                                                                                                   \
    {                                                                                                                 \
        "empty", init, start, stop, state, finalize                                                                   \
    }
const struct {
    const char *name;
    void *init;
    int (*start)(void *, void **, void *);
    int (*stop)(void *);
    int (*state)(void *, int, void *);
    int (*finalize)(void *);
} ncclProfiler_v4 = TABLE(init4), ncclProfiler_v5 = TABLE(init), ncclProfiler_v6 = TABLE(init), ncclProfiler_v7 = TABLE(init);
