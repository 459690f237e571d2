// A program that is hard on the libraries in its process. For preloading: a script calls its
// functions by name, and some of libc's functions behave as they say.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plugin.h"

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_trace(const char *path) {
  const char *end = strrchr(path, '.');
  return end && (!strcmp(end, ".perfetto-trace") || !strcmp(end, ".capture"));
}

// Calls this for each descriptor of a trace or a capture, and sums the results; -1 if there is
// none.
static int each_of_the_profiler(int (*call)(int)) {
  int found = 0, sum = 0;
  for (int number = 0; number < 5000; number++) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", number);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) continue;
    path[length] = 0;
    if (!is_trace(path)) continue;
    found++;
    sum += call(number);
  }
  return found ? sum : -1;
}

static int is_in_the_way(int number) {
  return number < 3 || !(fcntl(number, F_GETFD) & FD_CLOEXEC);
}

// How many of the profiler's descriptors are among the standard three, or survive exec.
int descriptors_in_the_way(void) { return each_of_the_profiler(is_in_the_way); }

static int numbers[16], count;

static int note(int number) {
  if (count < 16) numbers[count++] = number;
  return 0;
}

static int give_to_the_checkpoint(void) {
  int checkpoint = open(getenv("CHECKPOINT"), O_RDWR | O_CREAT | O_TRUNC, 0600), failures = 0;
  for (int i = 0; i < count; i++) failures += dup2(checkpoint, numbers[i]) != numbers[i];
  return failures;
}

// Opens a file of the program's under the profiler's descriptors.
int take_over(void) { return each_of_the_profiler(note) ? -1 : give_to_the_checkpoint(); }

// The same, after closing all descriptors except the standard three.
int close_all(void) {
  if (each_of_the_profiler(note)) return -1;
  for (int number = 3; number < 5000; number++) close(number);
  return give_to_the_checkpoint();
}

int close_stderr(void) { return close(2); }

// Prints something on stderr: 0 if it arrived.
int write_to_stderr(void) { return write(2, "a word of the program", 21) != 21; }

// Opens a file as descriptor 2.
int stderr_is_a_checkpoint(void) {
  close(2);
  return open(getenv("CHECKPOINT"), O_RDWR | O_CREAT | O_TRUNC, 0600) != 2;
}

// How many other descriptors refer to what stderr refers to.
int descriptors_like_stderr(void) {
  struct stat stderr_is, is;
  int found = 0;
  if (fstat(2, &stderr_is)) return -1;
  for (int number = 3; number < 5000; number++)
    found += fstat(number, &is) == 0 && is.st_ino == stderr_is.st_ino && is.st_dev == stderr_is.st_dev;
  return found;
}

static int ends[2];

int stderr_is_a_pipe_that_is_closed(void) {
  signal(SIGPIPE, SIG_DFL);
  return pipe(ends) || dup2(ends[1], 2) != 2 || close(ends[0]) || close(ends[1]);
}

int stderr_is_a_socket_that_is_closed(void) {
  signal(SIGPIPE, SIG_DFL);
  return socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || dup2(ends[1], 2) != 2 || close(ends[0]) || close(ends[1]);
}

static int fill(void) {
  int flags = fcntl(2, F_GETFL);
  fcntl(2, F_SETFL, flags | O_NONBLOCK);
  char bytes[512] = {0};
  while (write(2, bytes, sizeof bytes) > 0) {
  }
  return fcntl(2, F_SETFL, flags);
}

int stderr_is_a_pipe_that_is_full(void) { return pipe(ends) || dup2(ends[1], 2) != 2 || fill(); }

int stderr_is_a_socket_that_is_full(void) {
  return socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || dup2(ends[1], 2) != 2 || fill();
}

// How many lines can be read from where stderr leads.
int read_stderr(void) {
  char bytes[4096];
  int lines = 0;
  FILE *copy = fopen(getenv("CHECKPOINT"), "a");
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  for (ssize_t size; (size = read(ends[0], bytes, sizeof bytes)) > 0;)
    for (ssize_t at = 0; at < size; at++) {
      if (bytes[at]) fputc(bytes[at], copy);
      lines += bytes[at] == '\n';
    }
  fclose(copy);
  return lines;
}

static int is_of_the_recording(const char *thread) {
  char path[300], name[32] = {0};
  snprintf(path, sizeof path, "/proc/self/task/%s/comm", thread);
  FILE *file = fopen(path, "r");
  if (!file) return 1;
  if (!fgets(name, sizeof name, file)) name[0] = 0;
  fclose(file);
  return !strcmp(name, "ncclscope\n") || !strcmp(name, "ncclscope write\n");
}

// Waits until only this thread and those of the recording are left: the one that sends messages has
// ended. A new thread has the name of its creator for a moment, so they are counted for a while.
int wait_until_all_is_said(void) {
  for (int others = 1, calm = 0; calm < 100; usleep(1000)) {
    calm = others ? 0 : calm + 1;
    others = 0;
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *thread; (thread = readdir(threads));)
      if (thread->d_name[0] != '.' && atoi(thread->d_name) != getpid() && !is_of_the_recording(thread->d_name)) others++;
    closedir(threads);
  }
  return 0;
}

// How many threads there are beside the first.
int other_threads(void) {
  int found = -1;
  DIR *threads = opendir("/proc/self/task");
  for (struct dirent *thread; (thread = readdir(threads));) found += thread->d_name[0] != '.';
  closedir(threads);
  return found;
}

// Whether stderr has the flags that the program gave it.
int stderr_does_not_wait(void) { return (fcntl(2, F_GETFL) & O_NONBLOCK) != 0; }

int leave_the_folder(void) { return chdir("/"); }

int remove_the_folder(void) { return system("rm -r \"$NCCLSCOPE_OUTPUT\""); }

static int threads_left = -1;

int no_thread(void) { return threads_left = 0; }
int one_thread(void) { return !(threads_left = 1); }

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
  if (threads_left == 0) return EAGAIN;
  if (threads_left > 0) threads_left--;
  return REAL(pthread_create)(thread, attributes, body, argument);
}

static volatile int hangs;
static long room = -1;

int hang_the_disk(void) { return !(hangs = 1); }
int free_the_disk(void) { return hangs = 0; }
// From now on a file cannot grow beyond this, or beyond its reserved space.
int fill_the_disk(void) { return (room = atol(getenv("ROOM"))) < 0; }

static int is_on_the_disk(int number) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", number);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return is_trace(path);
}

static int disk_error, disk_is_slow;

// The end of the file's reserved space.
static off_t promised;

int fallocate(int number, int mode, off_t from, off_t length) {
  if (is_on_the_disk(number)) {
    if (disk_error) return errno = disk_error, -1;
    if (getenv("KEEPS_NO_ROOM")) return errno = EOPNOTSUPP, -1;
    if (room >= 0 && from + length > promised) return errno = ENOSPC, -1;
    if (from + length > promised) promised = from + length;
  }
  return REAL(fallocate)(number, mode, from, length);
}

static int is_nearly_full;

// From now on the system reports only this much free space.
int nearly_fill_the_disk(void) { return !(is_nearly_full = 1); }

static int free_bytes(int result, struct statvfs64 *stats) {
  if (!result && is_nearly_full) stats->f_bavail = 4096 / stats->f_frsize;
  return result;
}

int fstatvfs64(int number, struct statvfs64 *stats) { return free_bytes(REAL(fstatvfs64)(number, stats), stats); }

int statvfs64(const char *path, struct statvfs64 *stats) { return free_bytes(REAL(statvfs64)(path, stats), stats); }

// From now on nothing can be written, with the error of that number.
int fail_the_disk(void) { return !(disk_error = atoi(getenv("DISK_ERROR"))); }
// From now on each write takes 200 ms.
int slow_the_disk(void) { return !(disk_is_slow = 1); }

ssize_t write(int number, const void *bytes, size_t length) {
  if (number > 2 && (disk_error || disk_is_slow) && is_on_the_disk(number)) {
    if (disk_error) return errno = disk_error, -1;
    usleep(200000);
  }
  if ((hangs || room >= 0) && number > 2 && is_on_the_disk(number)) {
    while (hangs) usleep(1000);
    struct stat stat;
    fstat(number, &stat);
    off_t most = promised > room ? promised : room;
    if (room >= 0 && stat.st_size + (off_t)length > most) {
      if (stat.st_size >= most) return errno = ENOSPC, -1;
      length = most - stat.st_size;
    }
  }
  return REAL(write)(number, bytes, length);
}

// ---- in a job that plays no script ----

// Appends a line to the checkpoint.
static void report(const char *what, int number, int bad) {
  FILE *file = fopen(getenv("CHECKPOINT"), "a");
  if (!file) return;
  fprintf(file, "%s %d %d\n", what, number, bad);
  fclose(file);
}

static Plugin *plugin;

// Uses the plugin in a child of the recording process: 0 if the plugin says that nothing is
// recorded.
static int use_as_a_child(void) {
  Descriptor group = {.type = 1};
  void *context = &group, *handle = &group;
  int mask = 1;
  alarm(20);
  plugin->init(&context, &mask);
  if (mask || context) return 1;
  plugin->start(context, &handle, &group);
  if (handle) return 2;
  plugin->finalize(context);
  return 0;
}

// Forks children that use the plugin, this many microseconds apart, and reports how many did not
// reach their end.
static void fork_children(int pause) {
  enum { COUNT = 10 };
  pid_t children[COUNT];
  int bad = 0;
  for (int n = 0; n < COUNT; n++) {
    children[n] = fork();
    if (children[n] == 0) _exit(use_as_a_child());
    usleep(pause);
  }
  for (int n = 0; n < COUNT; n++) {
    int status = 1;
    if (children[n] > 0) waitpid(children[n], &status, 0);
    bad += status != 0;
  }
  report("children", COUNT, bad);
}

static void *fork_more(void *unused) {
  for (int pause = 50; pause <= 5000; pause *= 10) fork_children(pause);
  return unused;
}

typedef struct {
  char bytes[128];
} UniqueId;

static __thread int is_victim;
static atomic_int victim_is_in_init;

// The plugin uses this to keep cancellation away.
int pthread_setcancelstate(int state, int *before) {
  if (is_victim && state == PTHREAD_CANCEL_DISABLE) atomic_store(&victim_is_in_init, 1);
  return REAL(pthread_setcancelstate)(state, before);
}

// Initialises a communicator of one rank.
static void *victim(void *unused) {
  void *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD), *comm = NULL;
  int (*unique_id)(UniqueId *) = nccl ? dlsym(nccl, "ncclGetUniqueId") : NULL;
  int (*init)(void **, int, UniqueId, int) = nccl ? dlsym(nccl, "ncclCommInitRank") : NULL;
  UniqueId id;
  if (!unique_id || !init || unique_id(&id)) return unused;
  is_victim = 1;
  init(&comm, 1, id, 0);
  pthread_testcancel();
  return unused;
}

static void *see_its_end(void *thread) {
  void *result = NULL;
  pthread_join(*(pthread_t *)thread, &result);
  report("cancelled", atomic_load(&victim_is_in_init), result != PTHREAD_CANCELED);
  return NULL;
}

// Has a thread wait in its own `init` for the one under way, and cancels it there.
static void cancel_another_init(void) {
  static pthread_t thread;
  pthread_t watcher;
  if (REAL(pthread_create)(&thread, NULL, victim, NULL)) return;
  // If the plugin does not keep cancellation away, it is there by then as well.
  for (int waits = 0; !atomic_load(&victim_is_in_init) && waits < 3000; waits++) usleep(1000);
  pthread_cancel(thread);
  REAL(pthread_create)(&watcher, NULL, see_its_end, &thread);
}

// What happens while the first `init` creates its file.
static void disturb_init(void) {
  static int has_begun;
  pthread_t thread;
  if (has_begun++) return;
  plugin = dlsym(dlopen("libncclscope.so", RTLD_NOW | RTLD_NOLOAD), "ncclProfiler_v1");
  if (getenv("FORK_IN_INIT")) {
    fork_children(0);
    REAL(pthread_create)(&thread, NULL, fork_more, NULL);
  }
  if (getenv("CANCEL_IN_INIT")) cancel_another_init();
}

int openat(int folder, const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
  va_end(more);
  while (getenv("DISK_HANGS_AT_ONCE") && flags & O_CREAT && is_trace(path)) usleep(1000);
  if (flags & O_CREAT && is_trace(path) && getenv("READ_ONLY")) return errno = EROFS, -1;
  if (flags & O_CREAT && is_trace(path)) disturb_init();
  return REAL(openat)(folder, path, flags, mode);
}

// Waits for the profiler's files, and takes over their descriptors.
static void *wait_and_take_over(void *unused) {
  while (take_over() < 0) usleep(20000);
  return unused;
}

__attribute__((constructor)) static void begin(void) {
  pthread_t thread;
  const char *most = getenv("ADDRESS_LIMIT_KIB");
  if (most) {
    struct rlimit limit = {strtoul(most, NULL, 10) << 10, RLIM_INFINITY};
    setrlimit(RLIMIT_AS, &limit);
  }
  if (getenv("TAKE_OVER")) REAL(pthread_create)(&thread, NULL, wait_and_take_over, NULL);
}

// If requested, the largest address space that the process ever had, in KiB.
__attribute__((destructor)) static void end(void) {
  FILE *file = getenv("REPORT_PEAK") ? fopen("/proc/self/status", "r") : NULL;
  int peak = 0;
  for (char line[256]; file && fgets(line, sizeof line, file);) sscanf(line, "VmPeak: %d", &peak);
  if (peak) report("peak", peak, 0);
}
