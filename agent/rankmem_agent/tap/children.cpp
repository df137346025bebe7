// Starts a program that the training does not notice: no SIGCHLD reaches it, and no wait() of its own meets it.
//
// A process that ends by another signal than SIGCHLD, or by none, is passed over by a wait() without __WCLONE. But
// execve() makes it SIGCHLD again, whatever clone() was asked for. So there are two: one that executes nothing, ends
// without a signal and is waited for here, and below it the program, which is init's child by then.
//
// Both run in the memory of the trainer (CLONE_VM), whose calling thread stands still until the program is executed
// (CLONE_VFORK): no page table is copied, no pthread_atfork or os.register_at_fork handler runs, and an error comes
// back through memory. Their signal handlers and descriptors are copies. In them only system calls are made, with all
// signals blocked: another thread may hold any lock, and a handler of the user's would run in the user's memory.
//
// Source: clone(2), execve(2) ("The termination signal is reset to SIGCHLD"), wait(2), Linux; glibc's posix_spawn.

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include "children.h"
#include "tap.h"

namespace rankmem {

namespace {

constexpr size_t kStackBytes = 64 * 1024;
// For a process that is ending already; a debugger may hold it.
constexpr uint64_t kEndLimitNs = 10'000'000'000;

struct Start {
  const char* const* arguments;
  const char* const* environment;
  int output, kept;
  char* program_stack;  // its end: it grows down
  sigset_t mask;        // the calling thread's
  int failure = 0;      // errno
};

// Closes the descriptors from `first` to `last`; false where neither the kernel (before 5.9) nor /proc allows it.
bool close_all(unsigned first, unsigned last) noexcept {
  if (first > last) return true;
#ifdef SYS_close_range
  if (syscall(SYS_close_range, first, last, 0) == 0) return true;
#endif
  struct Entry {  // linux_dirent64
    uint64_t inode, position;
    unsigned short bytes;
    unsigned char type;
    char name[1];
  };
  alignas(Entry) char entries[1024];
  const int listing = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
  if (listing < 0) return false;
  for (long got; (got = syscall(SYS_getdents64, listing, entries, sizeof entries)) > 0;) {
    for (long at = 0; at < got; at += reinterpret_cast<Entry*>(entries + at)->bytes) {
      unsigned number = 0;
      const char* digit = reinterpret_cast<Entry*>(entries + at)->name;
      if (*digit < '0' || *digit > '9') continue;
      for (; *digit != '\0'; ++digit) number = 10 * number + static_cast<unsigned>(*digit - '0');
      const bool is_listing = number == static_cast<unsigned>(listing);
      if (number >= first && number <= last && !is_listing) ::close(static_cast<int>(number));
    }
  }
  ::close(listing);
  return true;
}

bool arrange_descriptors(const Start& start) noexcept {
  const int output = fcntl(start.output, F_DUPFD, 3);  // it may be one of the three
  const int input = ::open("/dev/null", O_RDONLY);
  if (output < 0 || input < 0) return false;
  if (dup2(input, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0) return false;
  if (fcntl(start.kept, F_SETFD, 0) < 0) return false;
  const auto kept = static_cast<unsigned>(start.kept);
  return close_all(3, kept - 1) && close_all(kept + 1, ~0u);
}

// What is ignored stays so, as through any exec, but for what Python ignores for itself.
void reset_signals() noexcept {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction now = {};
    if (sigaction(number, nullptr, &now) != 0 || now.sa_handler == SIG_DFL) continue;
    if (now.sa_handler == SIG_IGN && number != SIGPIPE && number != SIGXFSZ) continue;
    now = {};
    now.sa_handler = SIG_DFL;
    sigaction(number, &now, nullptr);
  }
}

int run_program(void* of) {
  auto& start = *static_cast<Start*>(of);
  reset_signals();
  if (arrange_descriptors(start) && chdir("/") == 0) {
    pthread_sigmask(SIG_SETMASK, &start.mask, nullptr);
    execve(start.arguments[0], const_cast<char* const*>(start.arguments), const_cast<char* const*>(start.environment));
  }
  start.failure = errno;
  // The kernel wakes the trainer before it closes the descriptors of a process that ends; until then the lock would
  // still be held by a shipper that does not exist.
  ::close(start.kept);
  _exit(127);
}

int run_between(void* of) {
  auto& start = *static_cast<Start*>(of);
  setsid();
  if (clone(run_program, start.program_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, of) < 0) start.failure = errno;
  _exit(0);
}

// It has ended, or is about to.
void wait_for(pid_t between) noexcept {
  const uint64_t since_ns = monotonic_ns();
  const timespec pause = {0, 100'000};
  while (waitpid(between, nullptr, __WCLONE | WNOHANG) == 0 && monotonic_ns() - since_ns < kEndLimitNs) {
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

int start_unseen(const char* const* arguments, const char* const* environment, int output, int kept) noexcept {
  if (kept < 3) return -EBADF;
  void* stacks = mmap(nullptr, 2 * kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stacks == MAP_FAILED) return -errno;
  Start start = {arguments, environment, output, kept, static_cast<char*>(stacks) + 2 * kStackBytes, {}, 0};
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &start.mask);
  const pid_t between = clone(run_between, static_cast<char*>(stacks) + kStackBytes, CLONE_VM | CLONE_VFORK, &start);
  const int failure = between < 0 ? errno : start.failure;
  pthread_sigmask(SIG_SETMASK, &start.mask, nullptr);
  if (between >= 0) wait_for(between);
  munmap(stacks, 2 * kStackBytes);
  return -failure;
}

}  // namespace rankmem
