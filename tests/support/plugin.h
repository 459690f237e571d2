// Interface v1 of a profiler plugin, which every version of ours has.

typedef struct {
  const char *name;
  int (*init)(void **context, int *mask);
  int (*start)(void *context, void **handle, void *descriptor);
  int (*stop)(void *handle);
  int (*state)(void *handle, int state, void *arguments);
  int (*finalize)(void *context);
} Plugin;

// Our tests need only the head of a descriptor; the rest is zero.
typedef struct {
  unsigned char type;
  void *parent;
  int rank;
  char body[128];
} Descriptor;
