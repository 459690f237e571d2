// Ends the process at any system call that starts a program, makes a process, or opens a way to the
// network: on every thread, from before `main` on. A line names the call, unless the thread blocks
// all signals: then SIGSYS ends the process. For preloading.

#define _GNU_SOURCE

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void caught(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)context;
  char line[64];
  int length = snprintf(line, sizeof line, "forbidden system call %d\n", info->si_syscall);
  if (write(STDERR_FILENO, line, (size_t)length) != length) _exit(4);
  _exit(3);
}

#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define FORBID(name)                                      \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), \
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP)

__attribute__((constructor)) static void confine(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = caught;
  action.sa_flags = SA_SIGINFO;
  struct sock_filter filter[] = {
      NUMBER,
      FORBID(execve),
      FORBID(execveat),
#ifdef SYS_fork
      FORBID(fork),
      FORBID(vfork),
#endif
      FORBID(socket),
      FORBID(socketpair),
      FORBID(connect),
      FORBID(bind),
      FORBID(listen),
      FORBID(io_uring_setup),
      FORBID(ptrace),
      FORBID(process_vm_writev),
      // Its flags lie in memory, where a filter cannot look; the C library then uses `clone`.
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      // A line for stderr is sent without an address, in case that stderr is a socket.
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendto, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[4])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      // A thread is no process.
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  if (sigaction(SIGSYS, &action, NULL) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    perror("a filter for system calls");
    _exit(5);
  }
}
