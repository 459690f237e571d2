// For preloading: a wall clock that a script can set back by an hour, for everybody in the process.

#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static atomic_long set_back;

int set_the_wall_clock_back(void) {
  atomic_store(&set_back, 3600);
  return 0;
}

int clock_gettime(clockid_t which, struct timespec *time) {
  int result = (int)syscall(SYS_clock_gettime, which, time);
  if (which == CLOCK_REALTIME && time) time->tv_sec -= atomic_load(&set_back);
  return result;
}
