// A program that is hard on a profiler plugin in the given way: hostile PLUGIN WAY [NUMBER]. It
// uses interface v1, and v7 for channels, and reports on standard output what it did. Exit status
// 1: the plugin answered something forbidden.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../include/ncclscope.h"
#include "plugin.h"

enum { GROUP = 1, PROXY_OP = 8 };

static Plugin *plugin;
static void *context;
static atomic_ulong calls, in_handlers;

static void require(int holds, const char *what) {
  if (!holds) {
    fprintf(stderr, "%s\n", what);
    _exit(1);
  }
}

static Plugin *load(void *library) {
  if (!library) fprintf(stderr, "%s\n", dlerror());
  Plugin *found = library ? dlsym(library, "ncclProfiler_v1") : NULL;
  require(found != NULL, "there is no such plugin");
  return found;
}

static void *start(unsigned char type) {
  Descriptor descriptor = {.type = type};
  void *handle = NULL;
  require(plugin->start(context, &handle, &descriptor) == 0, "a start failed");
  atomic_fetch_add(&calls, 1);
  return handle;
}

static void stop(void *handle) {
  require(plugin->stop(handle) == 0, "a stop failed");
  atomic_fetch_add(&calls, 1);
}

static int init(void) {
  int mask = 0;
  require(plugin->init(&context, &mask) == 0, "init failed");
  return mask;
}

static void finalize(void) { require(plugin->finalize(context) == 0, "finalize failed"); }

// Events that are not stopped, which take the most memory, and others.
static void send(unsigned long events) {
  for (unsigned long n = 0; n < events; n++) {
    void *handle = start(n % 2 ? PROXY_OP : GROUP);
    if (n % 4 && handle) stop(handle);
    if (n % 500 == 0) usleep(2000);
  }
}

// ---- memory ----

static atomic_int no_malloc;
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

// Whether this thread is one of the plugin's, by its name, and gets no memory.
static int starves(void) {
  char name[16] = "";
  if (!atomic_load(&no_malloc)) return 0;
  prctl(PR_GET_NAME, name);
  return strncmp(name, "ncclscope", 9) == 0;
}

void *malloc(size_t size) { return starves() ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return starves() ? NULL : __libc_calloc(count, size); }
void *realloc(void *memory, size_t size) { return starves() ? NULL : __libc_realloc(memory, size); }
int posix_memalign(void **memory, size_t alignment, size_t size) {
  *memory = starves() ? NULL : __libc_memalign(alignment, size);
  return *memory ? 0 : 12;
}
void *aligned_alloc(size_t alignment, size_t size) { return starves() ? NULL : __libc_memalign(alignment, size); }

// libc allocates a thread's part of a library's thread-local storage, and the records of its
// destructors, when they are first used, and ends the process if it cannot. So threads of the
// plugin's use neither.
static void forbid(const char *function, void *caller) {
  // A thread of the plugin's has its name from the start.
  static __thread int calls;
  Dl_info library;
  if (calls == 10 || !dladdr(caller, &library) || !strstr(library.dli_fname, "libncclscope")) return;
  calls++;
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  if (strncmp(name, "ncclscope", 9)) return;
  fprintf(stderr, "%s calls %s\n", name, function);
  abort();
}

int __cxa_thread_atexit_impl(void (*destructor)(void *), void *object, void *library) {
  static int (*real)(void (*)(void *), void *, void *);
  if (!real) real = dlsym(RTLD_NEXT, __func__);
  forbid(__func__, __builtin_return_address(0));
  return real(destructor, object, library);
}

void *__tls_get_addr(void *index) {
  static void *(*real)(void *);
  if (!real) real = dlsym(RTLD_NEXT, __func__);
  forbid(__func__, __builtin_return_address(0));
  return real(index);
}

static unsigned long address_space(void) {
  unsigned long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  require(file && fscanf(file, "%lu", &pages) == 1, "no statm");
  fclose(file);
  return pages * 4096;
}

static void limit(unsigned long more) {
  struct rlimit limit = {address_space() + more, RLIM_INFINITY};
  require(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit failed");
}

// ---- floods ----

typedef struct {
  const char *name;
  int (*init)(void **, unsigned long hash, int *mask, const char *name, int nodes, int ranks, int rank, void *logger);
  int (*start)(void *context, void **handle, void *descriptor);
  int (*stop)(void *handle);
  int (*state)(void *handle, int state, void *arguments);
  int (*finalize)(void *context);
} Plugin7;

typedef struct {
  unsigned long type;
  void *parent;
  int rank;
  struct {
    unsigned char channel;
    unsigned long timer;
    char between[64];
    // Of a Coll.
    void *group;
    char rest[160];
  } body;
} Descriptor7;

enum { COLL = 2, PROXY_STEP = 16, KERNEL_CH = 64, GROUP_API = 256, COLL_API = 512, KERNEL_LAUNCH = 2048 };
enum { KERNEL_CH_STOP = 22 };

static unsigned long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * 1000000000ul + time.tv_nsec;
}

static unsigned long status(const char *name) {
  char line[256];
  unsigned long value = 0;
  FILE *file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file)) {
    if (strncmp(line, name, strlen(name)) == 0) value = strtoul(line + strlen(name), NULL, 10);
  }
  if (file) fclose(file);
  return value;
}

static void *start7(Plugin7 *plugin, unsigned long type, void *parent, int channel, unsigned long timer, void *group) {
  Descriptor7 descriptor = {.type = type, .parent = parent, .body = {.channel = channel, .timer = timer, .group = group}};
  void *handle = NULL;
  plugin->start(context, &handle, &descriptor);
  atomic_fetch_add(&calls, 1);
  return handle;
}

static void stop7(Plugin7 *plugin, void *handle) {
  if (!handle) return;
  plugin->stop(handle);
  atomic_fetch_add(&calls, 1);
}

// A machine with a GPU that never runs anything, for the emulated driver and CUPTI
// (emulator/observe).
typedef struct {
  char name[64], uuid[16];
  unsigned pci[3], compute_capability[2];
  unsigned long memory;
  unsigned multiprocessors;
} Gpu;

static unsigned long true_time(void) {
  struct timespec time;
  clock_gettime(CLOCK_BOOTTIME, &time);
  return time.tv_sec * 1000000000ul + time.tv_nsec;
}
static unsigned long wall(unsigned long at) { return at + now() - true_time(); }
static unsigned one(void) { return 1; }
static unsigned zero(void) { return 0; }
static unsigned version(void) { return 13000; }
static void *nothing(void) { return NULL; }
static char describe(unsigned ordinal, Gpu *gpu) {
  Gpu known = {.name = "a GPU", .compute_capability = {9, 0}, .memory = 1 << 30, .multiprocessors = 1};
  if (ordinal == 0) *gpu = known;
  return ordinal == 0;
}

const void *const *ncclscope_emulator_attach(const void *observer) {
  static const void *machine[] = {true_time, wall, one, nothing, one, zero, version, describe, nothing};
  (void)observer;
  return machine;
}

// Plans, each with this many channels; if they are open, nothing is ever stopped.
static void plans(Plugin7 *plugin, int channels, int stops, int count) {
  for (int n = 0; n < count; n++) {
    void *api = start7(plugin, GROUP_API, NULL, 0, 0, NULL);
    void *call = start7(plugin, COLL_API, api, 0, 0, NULL);
    void *launch = start7(plugin, KERNEL_LAUNCH, api, 0, 0, NULL);
    void *group = start7(plugin, GROUP, NULL, 0, 0, NULL);
    void *coll = start7(plugin, COLL, call, 0, 0, group);
    void *op = start7(plugin, PROXY_OP, coll, 0, 0, NULL);
    void *step = start7(plugin, PROXY_STEP, op, 0, 0, NULL);
    if (stops) {
      void *all[] = {step, op, call, launch, coll, group, api};
      for (int one = 0; one < 7; one++) stop7(plugin, all[one]);
    }
    for (int channel = 0; channel < channels; channel++) {
      void *handle = start7(plugin, KERNEL_CH, coll, channel, now(), NULL);
      if (!stops || !handle) continue;
      unsigned long timer = now();
      plugin->state(handle, KERNEL_CH_STOP, &timer);
      atomic_fetch_add(&calls, 1);
      stop7(plugin, handle);
    }
    // Let the trace's threads keep up, so that the growth is in what they remember.
    usleep(100 + channels * 10);
  }
}

static void flood(const char *path, int channels, int stops, int count) {
  FILE *peak = fopen("/proc/self/clear_refs", "w");
  if (peak) fputs("5", peak), fclose(peak);
  unsigned long before = status("VmRSS:");
  int mask = 0;
  // If the test has one, kernels are waited for.
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  int (*cuda_init)(unsigned) = driver ? dlsym(driver, "cuInit") : NULL;
  if (cuda_init) cuda_init(0);
  Plugin7 *plugin = dlsym(dlopen(path, RTLD_NOW), "ncclProfiler_v7");
  plugin->init(&context, 7, &mask, NULL, 1, 8, 0, NULL);
  plans(plugin, channels, stops, count);
  plugin->finalize(context);
  printf("{\"calls\": %lu, \"grown_kib\": %lu}\n", calls, status("VmHWM:") - before);
}

// ---- children ----

static atomic_int initialised;

static void *init_on_a_thread(void *_) {
  init();
  atomic_store(&initialised, 1);
  return _;
}

static void as_a_child(void) {
  alarm(20);
  init();
  void *handle = start(GROUP);
  if (handle) stop(handle);
  finalize();
  _exit(0);
}

static void fork_while_init_runs(void) {
  enum { MOST = 200 };
  pid_t children[MOST];
  int count = 0, bad = 0;
  pthread_t thread;
  pthread_create(&thread, NULL, init_on_a_thread, NULL);
  do {
    children[count] = fork();
    if (children[count] == 0) as_a_child();
    require(children[count++] > 0, "fork failed");
  } while (!atomic_load(&initialised) && count < MOST);
  pthread_join(thread, NULL);
  for (int n = 0; n < count; n++) {
    int status = 0;
    waitpid(children[n], &status, 0);
    bad += status != 0;
  }
  printf("{\"children\": %d, \"bad\": %d}\n", count, bad);
}

static void bare_clone(void) {
  require(init() != 0, "nothing is recorded");
  long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0) {
    alarm(20);
    void *theirs = context;
    int mask = 1;
    require(start(GROUP) == NULL, "a child got a handle");
    plugin->init(&context, &mask);
    require(mask == 0 && context == NULL, "a child was asked for events");
    context = theirs;
    finalize();
    // With everything that runs at the exit of a process.
    exit(0);
  }
  int status = 0;
  waitpid((pid_t)child, &status, 0);
  printf("{\"bad\": %d}\n", status != 0);
  fflush(stdout);
  stop(start(GROUP));
  finalize();
}

// ---- threads ----

static void *cancelled_in_init(void *_) {
  pthread_cancel(pthread_self());
  init();
  pthread_testcancel();
  return _;
}

static void *cancelled_in_finalize(void *_) {
  stop(start(GROUP));
  pthread_cancel(pthread_self());
  finalize();
  pthread_testcancel();
  return _;
}

static void cancel(void) {
  void *(*bodies[2])(void *) = {cancelled_in_init, cancelled_in_finalize};
  for (int n = 0; n < 2; n++) {
    pthread_t thread;
    void *result = NULL;
    pthread_create(&thread, NULL, bodies[n], NULL);
    pthread_join(thread, &result);
    require(result == PTHREAD_CANCELED, "a thread was not cancelled after all");
  }
}

// ---- ends ----

static atomic_int go_on = 1;

static void *keep_sending(void *_) {
  while (atomic_load(&go_on)) {
    stop(start(GROUP));
    usleep(10);
  }
  return _;
}

enum { SENDERS = 4 };
static pthread_t senders[SENDERS];

static void send_on_threads(void) {
  for (int n = 0; n < SENDERS; n++) pthread_create(&senders[n], NULL, keep_sending, NULL);
}

static void join_senders(void) {
  atomic_store(&go_on, 0);
  for (int n = 0; n < SENDERS; n++) pthread_join(senders[n], NULL);
}

// Closes the library while threads are inside.
static void close_under_threads(void *library) {
  require(init() != 0, "nothing is recorded");
  send_on_threads();
  usleep(20000);
  for (int n = 0; n < 3; n++) dlclose(library);
  usleep(20000);
  join_senders();
  finalize();
}

static void *short_life(void *_) {
  for (int n = 0; n < 5; n++) stop(start(GROUP));
  return _;
}

// Threads begin and end while communicators are finalized.
static void end_during_finalize(void) {
  for (int life = 0; life < 30; life++) {
    require(init() != 0, "nothing is recorded");
    pthread_t threads[8];
    for (int n = 0; n < 8; n++) pthread_create(&threads[n], NULL, short_life, NULL);
    finalize();
    for (int n = 0; n < 8; n++) pthread_join(threads[n], NULL);
  }
}

static void *lives(void *_) {
  for (int n = 0; n < 200; n++) {
    void *mine = NULL, *handle = NULL;
    int mask = 0;
    Descriptor descriptor = {.type = GROUP};
    require(plugin->init(&mine, &mask) == 0 && mask != 0, "init failed");
    require(plugin->start(mine, &handle, &descriptor) == 0 && handle, "a start failed");
    require(plugin->stop(handle) == 0, "a stop failed");
    atomic_fetch_add(&calls, 2);
    require(plugin->finalize(mine) == 0, "finalize failed");
  }
  return _;
}

// The first `init` and the last `finalize` of several threads at once, again and again.
static void race(void) {
  for (int n = 0; n < SENDERS; n++) pthread_create(&senders[n], NULL, lives, NULL);
  for (int n = 0; n < SENDERS; n++) pthread_join(senders[n], NULL);
}

// What a program's own destructors may still call.
static int calls_at_the_end;
static void call_at_the_end(void) {
  if (!calls_at_the_end) return;
  stop(start(GROUP));
  finalize();
  init();
  stop(start(GROUP));
  finalize();
}
__attribute__((destructor)) static void destructor(void) { call_at_the_end(); }

static void use_after_the_end(void) {
  // Before the plugin's handler is registered, so it runs after that.
  atexit(call_at_the_end);
  require(init() != 0, "nothing is recorded");
  stop(start(GROUP));
  printf("{\"calls\": %lu}\n", calls);
  fflush(stdout);
  calls_at_the_end = 1;
}

static void *exit_here(void *_) {
  stop(start(GROUP));
  exit(7);
  return _;
}

// One of the threads that call the plugin ends the process while the others are inside.
static void exit_on_a_thread(void) {
  require(init() != 0, "nothing is recorded");
  send_on_threads();
  usleep(20000);
  pthread_t thread;
  pthread_create(&thread, NULL, exit_here, NULL);
  pthread_join(thread, NULL);
}

// Forks from before the library is loaded until after the last `finalize`, while threads send. Each
// child uses the plugin.
static void child_of_each_phase(int *children, int *bad) {
  pid_t child = fork();
  if (child == 0) as_a_child();
  int status = 1;
  waitpid(child, &status, 0);
  *children += 1;
  *bad += status != 0;
}

static void *finalize_on_a_thread(void *_) {
  finalize();
  atomic_store(&initialised, 0);
  return _;
}

static void fork_in_every_phase(void) {
  int children = 0, bad = 0;
  child_of_each_phase(&children, &bad);
  for (int life = 0; life < 3; life++) {
    require(init() != 0, "nothing is recorded");
    atomic_store(&initialised, 1);
    child_of_each_phase(&children, &bad);
    atomic_store(&go_on, 1);
    send_on_threads();
    for (int n = 0; n < 5; n++) child_of_each_phase(&children, &bad);
    join_senders();
    pthread_t thread;
    pthread_create(&thread, NULL, finalize_on_a_thread, NULL);
    do child_of_each_phase(&children, &bad);
    while (atomic_load(&initialised));
    pthread_join(thread, NULL);
    child_of_each_phase(&children, &bad);
  }
  printf("{\"children\": %d, \"bad\": %d, \"calls\": %lu}\n", children, bad, calls);
}

// The bytes in this process's trace, found among its descriptors.
static off_t bytes_in_the_trace(void) {
  DIR *open = opendir("/proc/self/fd");
  off_t bytes = 0;
  for (struct dirent *entry; open && (entry = readdir(open));) {
    char name[32], to[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%.10s", entry->d_name);
    ssize_t length = readlink(name, to, sizeof to - 1);
    struct stat status;
    if (length < 0) continue;
    to[length] = 0;
    if (strstr(to, ".perfetto-trace") && stat(name, &status) == 0) bytes = status.st_size;
  }
  if (open) closedir(open);
  return bytes;
}

// Replaces the program by another run of it, with the recording under way.
static void replace(char **arguments) {
  require(init() != 0, "nothing is recorded");
  send_on_threads();
  // More than a trace begins with: calls were flushed.
  for (int n = 0; bytes_in_the_trace() < 65536; n++) {
    require(n < 6000, "nothing is flushed");
    usleep(10000);
  }
  char *again[] = {arguments[0], arguments[1], "threads", NULL};
  execv(arguments[0], again);
  require(0, "exec failed");
}

// Has a clock go back, for everybody in this process, or be ahead by some ns for one thread.
static atomic_int set_back = -1;
static time_t by;
static _Thread_local long ahead;
int clock_gettime(clockid_t which, struct timespec *time) {
  int result = (int)syscall(SYS_clock_gettime, which, time);
  if (which == atomic_load(&set_back) && time) time->tv_sec -= by;
  if (which == CLOCK_BOOTTIME && time && (time->tv_nsec += ahead) >= 1000000000) {
    time->tv_sec++;
    time->tv_nsec -= 1000000000;
  }
  return result;
}

static void set_the_clock_back(clockid_t which, time_t seconds) {
  by = seconds;
  require(init() != 0, "nothing is recorded");
  for (int n = 0; n < 6; n++) {
    stop(start(GROUP));
    usleep(150000);
    if (n == 2) atomic_store(&set_back, which);
  }
  finalize();
  printf("{\"calls\": %lu}\n", calls);
}

// As on a processor whose clock is ahead of those of the others.
static void be_ahead(long microseconds) {
  require(init() != 0, "nothing is recorded");
  ahead = 1000 * microseconds;
  for (int n = 0; n < 8000; n++) {
    stop(start(GROUP));
    usleep(100);
  }
  // The end is that of the recording's own thread.
  ahead = 0;
  finalize();
  printf("{\"calls\": %lu}\n", calls);
}

// All of the recording's threads get the least of one processor, which another thread uses.
static void *spin(void *_) {
  while (atomic_load(&go_on)) {
  }
  return _;
}

static int is_ours(int thread) {
  char path[64], name[32] = "";
  snprintf(path, sizeof path, "/proc/self/task/%d/comm", thread);
  FILE *file = fopen(path, "r");
  if (file) {
    if (!fgets(name, sizeof name, file)) name[0] = 0;
    fclose(file);
  }
  return strncmp(name, "ncclscope", 9) == 0;
}

/* Returns how many of the plugin's threads run on these processors now, and by this policy. */
static int schedule_ours(int policy, const cpu_set_t *processors) {
  int scheduled = 0;
  DIR *threads = opendir("/proc/self/task");
  for (struct dirent *thread; threads && (thread = readdir(threads));) {
    int number = atoi(thread->d_name);
    struct sched_param least = {0};
    if (number && is_ours(number) && !sched_setaffinity(number, sizeof *processors, processors)) {
      scheduled += !sched_setscheduler(number, policy, &least);
    }
  }
  closedir(threads);
  return scheduled;
}

static void starve(void) {
  require(init() != 0, "nothing is recorded");
  cpu_set_t one, all;
  sched_getaffinity(0, sizeof all, &all);
  CPU_ZERO(&one);
  CPU_SET(0, &one);
  int starved = schedule_ours(SCHED_IDLE, &one);
  pthread_t spinner;
  pthread_create(&spinner, NULL, spin, NULL);
  pthread_setaffinity_np(spinner, sizeof one, &one);
  for (int n = 0; n < 300000; n++) stop(start(GROUP));
  atomic_store(&go_on, 0);
  pthread_join(spinner, NULL);
  /* On a busy machine the recording would not end in time. Only root may change the policy back. */
  schedule_ours(SCHED_OTHER, &all);
  finalize();
  printf("{\"calls\": %lu, \"starved\": %d}\n", calls, starved);
}

// ---- for long ----

static Plugin7 *plugin7;

static void *a_little(void *_) {
  for (int n = 0; n < 50; n++) stop7(plugin7, start7(plugin7, COLL, NULL, 0, 0, NULL));
  return _;
}

static unsigned long descriptors(void) {
  unsigned long found = 0;
  DIR *open = opendir("/proc/self/fd");
  while (open && readdir(open)) found++;
  closedir(open);
  // Without the two names for folders, and this one.
  return found - 3;
}

typedef struct {
  unsigned long memory_kib, threads, descriptors;
} Use;

static void look(Use *most) {
  Use use = {status("VmRSS:"), status("Threads:"), descriptors()};
  if (use.memory_kib > most->memory_kib) most->memory_kib = use.memory_kib;
  if (use.threads > most->threads) most->threads = use.threads;
  if (use.descriptors > most->descriptors) most->descriptors = use.descriptors;
}

static void print(const char *name, const Use *use) {
  printf("\"%s_memory_kib\": %lu, \"%s_threads\": %lu, \"%s_descriptors\": %lu, ", name, use->memory_kib, name,
         use->threads, name, use->descriptors);
}

// NVTX, as far as ranges on a thread need it: at the first call a tool's library puts its functions
// into tables, whose places are those of NVTX 3.
enum { NVTX_CALLBACKS = 1, NVTX_CORE = 1, NVTX_FUNCTIONS = 16, NVTX_PUSH = 9, NVTX_POP = 11 };
static void *nvtx[8][NVTX_FUNCTIONS], **nvtx_places[8][NVTX_FUNCTIONS];

static int nvtx_table(unsigned module, void ****table, unsigned *size) {
  if (module >= 8) return 0;
  for (int n = 1; n < NVTX_FUNCTIONS; n++) nvtx_places[module][n] = &nvtx[module][n];
  *table = nvtx_places[module];
  *size = NVTX_FUNCTIONS;
  return 1;
}

static const void *nvtx_export(unsigned id) {
  static struct {
    size_t size;
    int (*table)(unsigned, void ****, unsigned *);
  } callbacks = {sizeof callbacks, nvtx_table};
  return id == NVTX_CALLBACKS ? &callbacks : NULL;
}

static void nvtx_range(const char *text) {
  static int is_ready;
  if (!is_ready++) {
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *tool = path ? dlopen(path, RTLD_LAZY) : NULL;
    int (*start)(const void *(*)(unsigned)) = tool ? dlsym(tool, "InitializeInjectionNvtx2") : NULL;
    require(start != NULL && start(nvtx_export) != 0, "nobody listens to NVTX");
  }
  int (*push)(const char *) = nvtx[NVTX_CORE][NVTX_PUSH];
  int (*pop)(void) = nvtx[NVTX_CORE][NVTX_POP];
  if (text) push(text);
  else pop();
}

// Communicators and threads that come and go, plans, proxies and channels, named steps, ranges of
// NVTX, CUPTI lent and taken, for this many seconds. What it uses at most is said for four parts of
// the time.
static void soak(const char *path, unsigned long seconds) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *library = dlopen(path, RTLD_NOW);
  int (*cuda_init)(unsigned) = driver ? dlsym(driver, "cuInit") : NULL;
  require(cuda_init != NULL && library != NULL, "no driver, or no plugin");
  cuda_init(0);
  plugin7 = dlsym(library, "ncclProfiler_v7");
  int (*release)(void) = dlsym(library, "ncclscope_release"), (*acquire)(void) = dlsym(library, "ncclscope_acquire");
  void (*step)(unsigned long) = dlsym(library, "ncclscope_step");
  void (*name)(const char *) = dlsym(library, "ncclscope_name_comm");
  Use parts[4] = {{0}};
  unsigned long begin = now(), length = seconds * 1000000000ul, rounds = 0, late = 0;
  for (unsigned long passed; (passed = now() - begin) < length; rounds++) {
    int mask = 0;
    char text[32];
    snprintf(text, sizeof text, "soak %lu", rounds);
    name(text);
    require(plugin7->init(&context, rounds, &mask, text, 1, 8, 0, NULL) == 0 && mask, "init failed");
    pthread_t threads[4];
    for (int n = 0; n < 4; n++) pthread_create(&threads[n], NULL, a_little, NULL);
    nvtx_range(text);
    plans(plugin7, rounds % 4, rounds % 8 != 7, 5);
    nvtx_range(NULL);
    int released;
    while ((released = release()) == NCCLSCOPE_LATE) late++;
    require(released == NCCLSCOPE_SUCCESS, "CUPTI was not released");
    plans(plugin7, rounds % 4, 1, 5);
    require(acquire() == 0, "CUPTI was not taken");
    for (int n = 0; n < 4; n++) pthread_join(threads[n], NULL);
    step(rounds);
    require(plugin7->finalize(context) == 0, "finalize failed");
    usleep(20000);
    look(&parts[passed * 4 / length]);
  }
  char names[4][8] = {"first", "second", "third", "fourth"};
  printf("{");
  for (int part = 0; part < 4; part++) print(names[part], &parts[part]);
  printf("\"rounds\": %lu, \"late\": %lu, \"calls\": %lu}\n", rounds, late, calls);
}

static void handler(int _) {
  (void)_;
  void *handle = start(GROUP);
  stop(handle);
  atomic_fetch_add(&in_handlers, 2);
}

static void interrupt(unsigned long signals) {
  require(init() != 0, "nothing is recorded");
  struct sigaction action = {.sa_handler = handler};
  sigaction(SIGALRM, &action, NULL);
  struct itimerval timer = {{0, 20}, {0, 20}};
  setitimer(ITIMER_REAL, &timer, NULL);
  while (atomic_load(&in_handlers) < 2 * signals) stop(start(GROUP));
  memset(&timer, 0, sizeof timer);
  setitimer(ITIMER_REAL, &timer, NULL);
  finalize();
  printf("{\"calls\": %lu, \"in_handlers\": %lu}\n", calls, in_handlers);
}

static void two_namespaces(const char *path) {
  int masks[2] = {init(), 0};
  void *first = context, *second = NULL;
  Plugin *other = load(dlmopen(LM_ID_NEWLM, path, RTLD_NOW));
  require(other != plugin, "it is the same copy");
  require(other->init(&second, &masks[1]) == 0, "init failed");
  stop(start(GROUP));
  other->finalize(second);
  context = first;
  finalize();
  printf("{\"masks\": [%d, %d]}\n", masks[0], masks[1]);
}

int main(int count, char **arguments) {
  require(count >= 3, "hostile PLUGIN WAY [NUMBER]");
  const char *path = arguments[1], *way = arguments[2];
  unsigned long number = count > 3 ? strtoul(arguments[3], NULL, 10) : 0;
  void *library = NULL;
  if (strstr(way, "open") == NULL && strcmp(way, "channels") && strcmp(way, "soak")) plugin = load(library = dlopen(path, RTLD_NOW));
  int is = 0;
#define WAY(name) if (strcmp(way, name) == 0 && ++is)
  WAY("fork") fork_while_init_runs();
  WAY("fork-phases") fork_in_every_phase();
  WAY("exec") replace(arguments);
  WAY("dlclose") close_under_threads(library);
  WAY("finalize") end_during_finalize();
  WAY("race") race();
  WAY("destructors") use_after_the_end();
  WAY("exit") exit_on_a_thread();
  WAY("clock") set_the_clock_back(CLOCK_REALTIME, 3600);
  WAY("restore") set_the_clock_back(CLOCK_BOOTTIME, 20);
  // NUMBER: by how many us.
  WAY("ahead") be_ahead((long)number);
  WAY("starve") starve();
  WAY("soak") soak(path, number);
  WAY("clone") bare_clone();
  WAY("cancel") cancel();
  WAY("channels") flood(path, number, 1, 300000 / (number + 20));
  WAY("open-channels") flood(path, number, 0, 300000 / (number + 20));
  WAY("open") flood(path, 0, 0, 40000);
  WAY("signals") interrupt(number);
  WAY("namespaces") two_namespaces(path);
  WAY("threads") {
    int mask = init(), threads = 0;
    stop(start(GROUP));
    FILE *file = fopen("/proc/self/status", "r");
    for (char line[256]; file && fgets(line, sizeof line, file);) sscanf(line, "Threads: %d", &threads);
    finalize();
    printf("{\"mask\": %d, \"threads\": %d}\n", mask, threads);
  }
  // NUMBER: how much more memory the process may take, in KiB.
  WAY("limit-before") {
    limit(number << 10);
    int mask = init();
    send(20000);
    finalize();
    printf("{\"recorded\": %d, \"calls\": %lu}\n", mask != 0, calls);
  }
  WAY("limit-after") {
    require(init() != 0, "nothing is recorded");
    send(50000);
    // A planted fault may wait for this file, until something is in the trace.
    const char *after = getenv("PLANTED_AFTER");
    if (after) {
      finalize();
      require(init() != 0, "nothing is recorded");
    }
    limit(number << 10);
    if (after) close(open(after, O_CREAT | O_WRONLY, 0600));
    send(50000);
    // Until nothing is recorded any more.
    for (int n = 0; after && n < 20000; n++) {
      void *handle = start(GROUP);
      if (!handle) break;
      stop(handle);
      usleep(1000);
    }
    finalize();
    printf("{\"calls\": %lu}\n", calls);
  }
  WAY("no-malloc") {
    unsigned long before = address_space();
    require(init() != 0, "nothing is recorded");
    atomic_store(&no_malloc, 1);
    send(40000);
    finalize();
    printf("{\"calls\": %lu, \"reserved_kib\": %lu}\n", calls, (address_space() - before) >> 10);
  }
  if (!strcmp(way, "dlclose") || !strcmp(way, "finalize") || !strcmp(way, "race")) printf("{\"calls\": %lu}\n", calls);
  require(is == 1, "there is no such way");
  return 0;
}
