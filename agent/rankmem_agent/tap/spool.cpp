// Segments, control and the native thread. See spool.h.
//
// Threads: open_spool on the trainer's main thread; everything after it on the native thread "rankmem-tap",
// which holds no lock that a writer could want, never takes the GIL and has all signals blocked.

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>

#include "control.h"
#include "spool.h"

namespace rankmem {

std::atomic<uint64_t> host_available_bytes{RKM_UNKNOWN};

namespace {

// Segments kept ready beyond the one in use: at 2.5 M events/s one lasts 26 ms, so two outlast any sleep below.
constexpr uint64_t kSegmentsAhead = 2;
// How long the native thread sleeps. Writers never wake it (that would be a system call under a lock), so it
// looks: often while a segment would fill within 80 ms, rarely otherwise: a wake-up may take the trainer's core.
constexpr uint64_t kBusySleepNs = 2'000'000;
constexpr uint64_t kCalmSleepNs = 10'000'000;
constexpr uint64_t kBusyRecords = RKM_RECORDS_PER_SEGMENT / 8;  // in one calm sleep
constexpr uint64_t kSampleIntervalNs = 1'000'000'000;
// What a process may write before it is known to be a rank: a million records.
constexpr uint64_t kProvisionalSegments = 16;
// Our files have descriptors from here on: below FD_SETSIZE, for programs that put all of theirs into a select().
constexpr int kOwnDescriptors = 512;

std::atomic<SampleHook> sample_hook{nullptr};
std::atomic<bool> samples_asked{false};
std::atomic<bool> is_open{false};
std::atomic<uint64_t> segments_ready{0};

// The longest that a fork waits for a sample.
constexpr std::chrono::milliseconds kForkWait{100};
constinit thread_local bool holds_fork = false;
std::timed_mutex& fork_gate() {
  static auto* gate = new std::timed_mutex;  // leaked on purpose, see strings.cpp
  return *gate;
}

struct Mapped {
  uint64_t number;
  char* base;
  uint64_t committed;  // records known to carry their marks, from the segment's start
};

// What the native thread owns (open_spool before it starts, close_spool after it ended).
struct Keeper {
  std::mutex naming;              // for `folder` and `segments_max`: publish_spool changes them
  std::string folder;
  uint64_t segments_max = 0;      // budget in segments
  uint64_t segments_granted = 0;  // the same once the spool is published
  std::deque<uint64_t> on_disk;   // numbers whose files the shipper has not deleted, as last looked
  std::deque<Mapped> mapped;      // in order of their numbers
  uint64_t next_number = 0;       // no segment below it is still to be prepared
  pthread_t thread = {};
  std::mutex mutex;               // for `stop` alone: close_spool wakes the thread with it
  std::condition_variable wake;
  bool stop = false;
};
Keeper& keeper() {
  static auto* state = new Keeper;  // leaked on purpose, see strings.cpp
  return *state;
}

std::string segment_path(const Keeper& state, uint64_t number) {
  char name[32];
  std::snprintf(name, sizeof name, "/segment-%08llu", static_cast<unsigned long long>(number));
  return state.folder + name;
}

bool is_file_of(int fd, const char* path) noexcept {
  struct stat found, named;
  return fstat(fd, &found) == 0 && stat(path, &named) == 0 && found.st_dev == named.st_dev &&
         found.st_ino == named.st_ino;
}

// Opens a file under a number that the program's own files will hardly have: a new file gets the lowest one that is
// free. One of 0, 1 or 2 may be closed, and what a library writes to stderr would go into ours; and while our thread
// works with a file, the program may close all numbers and give ours to a file of its own. So the low number is closed
// only if it is still our file's. Where so high a number is not to be had, any above those three. Sets errno.
int open_own(const char* path, int flags) noexcept {
  const int low = ::open(path, flags | O_CLOEXEC, 0600);
  if (low < 0) return low;
  int moved = fcntl(low, F_DUPFD_CLOEXEC, kOwnDescriptors);
  if (moved < 0 && low > STDERR_FILENO) return low;
  if (moved < 0) moved = fcntl(low, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int failure = errno;
  if (is_file_of(low, path)) ::close(low);
  if (moved < 0 || is_file_of(moved, path)) {
    errno = failure;
    return moved;
  }
  ::close(moved);  // the program's by now; it keeps its own number
  errno = EBADF;
  return -1;
}

// Creates a file of `size` bytes whose blocks are reserved, maps it and makes every page present and writable.
// Reserving first matters: a store into a hole of a full tmpfs is a SIGBUS. Sets errno and returns nullptr.
char* map_reserved_file(const std::string& path, size_t size) noexcept {
  const int fd = open_own(path.c_str(), O_RDWR | O_CREAT | O_EXCL);
  if (fd < 0) return nullptr;
  int failure = posix_fallocate(fd, 0, static_cast<off_t>(size));
  void* base = MAP_FAILED;
  if (failure == 0) {
    base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) failure = errno;
  }
  ::close(fd);
  if (failure != 0) {
    unlink(path.c_str());
    errno = failure;
    return nullptr;
  }
  // A core dump of the trainer need not carry a log that is on disk anyway.
  madvise(base, size, MADV_DONTDUMP);
  for (size_t offset = 0; offset < size; offset += 4096) static_cast<volatile char*>(base)[offset] = 0;
  return static_cast<char*>(base);
}

// Room for one more segment file? The shipper deletes from the oldest on, so only the front is looked at.
bool within_budget(Keeper& state) {
  while (state.on_disk.size() >= state.segments_max && !state.on_disk.empty()) {
    if (access(segment_path(state, state.on_disk.front()).c_str(), F_OK) == 0) return false;
    state.on_disk.pop_front();
  }
  return state.segments_max > 0;
}

void write_header(char* base, uint64_t number) noexcept {
  auto* header = reinterpret_cast<RkmSegmentHeader*>(base);
  __builtin_memcpy(header->magic, RKM_SEGMENT_MAGIC, 8);
  header->version = RKM_FORMAT_VERSION;
  header->record_bytes = RKM_RECORD_BYTES;
  header->segment_number = number;
  header->sequence_first = number * RKM_RECORDS_PER_SEGMENT;
}

// Makes segment `number` ready. False if it cannot be reserved now; a segment that a writer declared lost
// meanwhile is taken back, its file never appears as ready.
bool prepare_segment(Keeper& state, uint64_t number) {
  SegmentSlot& slot = spool.slots[number % kSlots];
  uint64_t word = slot.word.load(std::memory_order_relaxed);
  if (word == (number << 2 | kLost) || word == (number << 2 | kReady)) return true;
  if (!within_budget(state)) return false;
  const std::string path = segment_path(state, number);
  char* base = map_reserved_file(path, RKM_SEGMENT_BYTES);
  if (base == nullptr) return false;
  write_header(base, number);
  // The base before the word (release below): who sees READY sees the base. Until then no one reads it, as the
  // slot's previous segment is kSlots segments back.
  slot.base.store(base, std::memory_order_relaxed);
  while (word != (number << 2 | kLost)) {
    if (slot.word.compare_exchange_weak(word, number << 2 | kReady, std::memory_order_acq_rel)) {
      __atomic_store_n(&reinterpret_cast<RkmSegmentHeader*>(base)->ready, 1u, __ATOMIC_RELEASE);
      state.mapped.push_back({number, base, 0});
      state.on_disk.push_back(number);
      segments_ready.fetch_add(1, std::memory_order_relaxed);
      return true;
    }
  }
  munmap(base, RKM_SEGMENT_BYTES);
  unlink(path.c_str());
  return true;
}

// Whom to call when a process has recorded for a while without being published; see call_when_busy.
struct Busy {
  std::atomic<void*> callback{nullptr};  // a Python object
  uint64_t opened_ns = 0;
  uint64_t after_ns = 0;
  uint64_t records = 0;
};
Busy busy;

// On the main thread, under the GIL. What the callback raises is raised where that thread goes on. Not through ctypes,
// which prints what it raises and returns whatever lay on the stack.
int run_busy(void* callback) {
  auto* call = reinterpret_cast<void* (*)(void*)>(dlsym(RTLD_DEFAULT, "PyObject_CallNoArgs"));
  auto* let_go = reinterpret_cast<void (*)(void*)>(dlsym(RTLD_DEFAULT, "Py_DecRef"));
  if (call == nullptr || let_go == nullptr) return 0;
  void* result = call(callback);
  if (result == nullptr) return -1;
  let_go(result);
  return 0;
}

void call_if_busy(Keeper& state) noexcept {
  void* callback = busy.callback.load(std::memory_order_acquire);
  if (callback == nullptr) return;
  const uint64_t next_seq = __atomic_load_n(&spool.control->next_seq, __ATOMIC_RELAXED);
  const bool half_full = next_seq / RKM_RECORDS_PER_SEGMENT >= state.segments_max / 2;
  const bool for_long = monotonic_ns() - busy.opened_ns >= busy.after_ns && next_seq >= busy.records &&
                        has_recorded_blocks();  // clocks and samples alone are no use of tensors
  if (!half_full && !for_long) return;
  // Needs neither the GIL nor a Python thread: the main thread calls it between two of its instructions.
  static auto* add = reinterpret_cast<int (*)(int (*)(void*), void*)>(dlsym(RTLD_DEFAULT, "Py_AddPendingCall"));
  if (add == nullptr || add(run_busy, callback) == 0) busy.callback.store(nullptr);
}

// Prepares what writers will need next: from the segment in use on. After lost ones it goes on with the next
// whole segment, because a lost one stays lost.
void prepare_segments(Keeper& state) {
  const uint64_t in_use = __atomic_load_n(&spool.control->next_seq, __ATOMIC_RELAXED) / RKM_RECORDS_PER_SEGMENT;
  if (state.next_number < in_use) state.next_number = in_use;
  while (state.next_number <= in_use + kSegmentsAhead) {
    if (!prepare_segment(state, state.next_number)) return;
    ++state.next_number;
  }
}

// Unmaps segments whose records all carry their marks: from then on no writer touches them. One read of each
// record, resumed where it stopped.
void unmap_committed(Keeper& state) {
  const uint64_t next_seq = __atomic_load_n(&spool.control->next_seq, __ATOMIC_RELAXED);
  while (!state.mapped.empty()) {
    Mapped& oldest = state.mapped.front();
    if ((oldest.number + 1) * RKM_RECORDS_PER_SEGMENT > next_seq) return;
    const auto* records = reinterpret_cast<const RkmRecord*>(oldest.base + RKM_SEGMENT_HEADER_BYTES);
    while (oldest.committed < RKM_RECORDS_PER_SEGMENT) {
      if (__atomic_load_n(&records[oldest.committed].mark, __ATOMIC_ACQUIRE) == 0) return;
      ++oldest.committed;
    }
    munmap(oldest.base, RKM_SEGMENT_BYTES);
    state.mapped.pop_front();
  }
}

void write_clock() noexcept {
  timespec real;
  const uint64_t before = monotonic_ns();
  clock_gettime(CLOCK_REALTIME, &real);
  RkmClock record;
  record.time_ns = before + (monotonic_ns() - before) / 2;
  record.realtime_ns() = static_cast<uint64_t>(real.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(real.tv_nsec);
  write_record(record);
}

// A "Name:   123 kB" line of /proc/meminfo, in bytes.
uint64_t meminfo_bytes(const char* text, const char* name) noexcept {
  const char* line = std::strstr(text, name);
  return line == nullptr ? RKM_UNKNOWN : std::strtoull(line + std::strlen(name), nullptr, 10) * 1024;
}

size_t read_small_file(const char* path, char* buffer, size_t size) noexcept {
  const int fd = open_own(path, O_RDONLY);
  const ssize_t got = fd < 0 ? 0 : read(fd, buffer, size - 1);
  if (fd >= 0) ::close(fd);
  buffer[got > 0 ? got : 0] = '\0';
  return got > 0 ? static_cast<size_t>(got) : 0;
}

// The host as seen from outside the allocator: the process's RSS, the machine's memory.
void write_host_sample() noexcept {
  char text[1024];
  RkmSample sample;
  uint64_t& used = sample.device_used_bytes();
  uint64_t& free = sample.device_free_bytes();
  uint64_t& total = sample.device_total_bytes();
  sample.device_type = RKM_DEVICETYPE_CPU;
  sample.app_reserved_bytes() = used = free = total = RKM_UNKNOWN;
  unsigned long long size_pages = 0, resident_pages = 0;
  if (read_small_file("/proc/self/statm", text, sizeof text) != 0 &&
      std::sscanf(text, "%llu %llu", &size_pages, &resident_pages) == 2) {
    sample.app_reserved_bytes() = resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }
  if (read_small_file("/proc/meminfo", text, sizeof text) != 0) {
    total = meminfo_bytes(text, "MemTotal:");
    free = meminfo_bytes(text, "MemAvailable:");
    if (free != RKM_UNKNOWN && total != RKM_UNKNOWN) used = total - free;
    host_available_bytes.store(free, std::memory_order_relaxed);
  }
  write_record(sample);
}

void write_samples() noexcept {
  write_clock();
  write_host_sample();
  if (SampleHook hook = sample_hook.load(std::memory_order_acquire)) {
    const ForkHeld held;
    hook();
  }
}

void keep_life(Keeper& state) noexcept;

void* run_keeper(void*) {
  Keeper& state = keeper();
  uint64_t sampled_ns = 0;
  uint64_t seen_seq = 0, seen_ns = monotonic_ns();
  std::unique_lock lock(state.mutex);
  while (!state.stop) {
    lock.unlock();
    try {
      std::lock_guard naming(state.naming);
      prepare_segments(state);
      unmap_committed(state);
    } catch (...) {  // no memory now: a gap, unless there is some before the segment is needed
    }
    call_if_busy(state);
    leave_steady_if_asked();
    const uint64_t now = monotonic_ns();
    __atomic_store_n(&spool.control->heartbeat_ns, now, __ATOMIC_RELAXED);
    if (samples_asked.exchange(false, std::memory_order_relaxed) || now - sampled_ns >= kSampleIntervalNs) {
      sampled_ns = now;
      write_samples();
      keep_life(state);
    }
    const uint64_t next_seq = __atomic_load_n(&spool.control->next_seq, __ATOMIC_RELAXED);
    const bool busy = (next_seq - seen_seq) * kCalmSleepNs > kBusyRecords * (now - seen_ns);
    seen_seq = next_seq;
    seen_ns = now;
    lock.lock();
    if (!state.stop) state.wake.wait_for(lock, std::chrono::nanoseconds(busy ? kBusySleepNs : kCalmSleepNs));
  }
  return nullptr;
}

// Signals are the trainer's: a handler of the user's must never run on our thread.
int start_keeper(Keeper& state) noexcept {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int failure = pthread_create(&state.thread, nullptr, run_keeper, nullptr);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failure == 0) pthread_setname_np(state.thread, "rankmem-tap");
  return -failure;
}

int create_strings(const std::string& path) noexcept {
  const int fd = open_own(path.c_str(), O_RDWR | O_CREAT | O_EXCL);
  if (fd < 0) return -errno;
  char header[RKM_STRINGS_HEADER_BYTES] = RKM_STRINGS_MAGIC;
  const uint32_t version = RKM_FORMAT_VERSION;
  std::memcpy(header + 8, &version, sizeof version);
  if (pwrite(fd, header, sizeof header, 0) == static_cast<ssize_t>(sizeof header)) return fd;
  const int failure = errno != 0 ? errno : ENOSPC;
  ::close(fd);
  return -failure;
}

// Around a fork, on the thread that forks. A sample takes microseconds; a driver that hangs is not waited for.
void wait_to_fork() noexcept {
  holds_fork = is_open.load(std::memory_order_relaxed) && fork_gate().try_lock_for(kForkWait);
}

void go_on_after_fork() noexcept {
  if (holds_fork) fork_gate().unlock();
  holds_fork = false;
}

// The lock on the control page that shows every process that this one lives (rankmem_agent.spool.life). It belongs
// to the open file, so it ends with this process, however that ends, and with an exec. Where the program has closed
// the file it is taken again by the native thread. Under the fork gate, so that no child inherits it unseen.
OwnFile life;

bool is_locked_for_others(const char* path) noexcept {
  const int fd = open_own(path, O_RDONLY);
  if (fd < 0) return false;
  const bool locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return locked;
}

// Where locks do not hold, the control page names no file, and who asks goes by the process id.
void hold_life(const std::string& path, RkmControl* control) noexcept {
  const int fd = open_own(path.c_str(), O_RDONLY);
  if (fd < 0) return;
  struct stat found;
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 || fstat(fd, &found) != 0 || !is_locked_for_others(path.c_str())) {
    ::close(fd);
    return;
  }
  life = OwnFile(fd);
  control->lock_device = found.st_dev;
  __atomic_store_n(&control->lock_inode, uint64_t{found.st_ino}, __ATOMIC_RELEASE);
}

// A forked child shares the mappings, and none of its threads but one lives: everything is off in it for good.
// Blocks that the parent allocated are still freed right: the deleter asks enabled() first. It shares the lock too,
// and would keep a dead parent alive.
void silence_forked_child() noexcept {
  enabled_bits.store(0, std::memory_order_relaxed);
  is_open.store(false, std::memory_order_relaxed);
  go_on_after_fork();
  if (life.is_there()) ::close(life.fd);
  life = {};
}

// Once a second, on the native thread.
void keep_life(Keeper& state) noexcept try {
  const ForkHeld held;
  if (life.fd < 0 || life.is_there()) return;
  std::lock_guard naming(state.naming);
  life = {};
  hold_life(state.folder + "/control", spool.control);
} catch (...) {  // no memory now; who asks goes by the process id
}

RkmControl* create_control(const std::string& path) noexcept {
  auto* control = reinterpret_cast<RkmControl*>(map_reserved_file(path, RKM_CONTROL_BYTES));
  if (control == nullptr) return nullptr;
  control->version = RKM_FORMAT_VERSION;
  control->pid = static_cast<uint32_t>(getpid());
  control->state = RKM_STATE_STARTING;
  control->order_reader = 1;
  std::memcpy(control->magic, RKM_CONTROL_MAGIC, 8);
  return control;
}

}  // namespace

bool spool_is_open() noexcept { return is_open.load(std::memory_order_relaxed); }

OwnFile::OwnFile(int of) noexcept : fd(of) {
  struct stat found;
  if (fstat(fd, &found) != 0) return;
  device = found.st_dev;
  inode = found.st_ino;
}

bool OwnFile::is_there() const noexcept {
  struct stat found;
  return fd >= 0 && fstat(fd, &found) == 0 && found.st_dev == device && found.st_ino == inode;
}

uint64_t segments_made() noexcept { return segments_ready.load(std::memory_order_relaxed); }

ForkHeld::ForkHeld() noexcept { fork_gate().lock(); }

ForkHeld::~ForkHeld() { fork_gate().unlock(); }

bool try_hold_fork() noexcept { return fork_gate().try_lock(); }

void release_fork() noexcept { fork_gate().unlock(); }

void set_sample_hook(SampleHook hook) noexcept { sample_hook.store(hook, std::memory_order_release); }
void ask_for_samples() noexcept { samples_asked.store(true, std::memory_order_relaxed); }

int publish_spool(const char* folder) noexcept try {
  if (spool.control == nullptr || spool.control->pid != static_cast<uint32_t>(getpid())) return -EINVAL;
  Keeper& state = keeper();
  std::string moved(folder);  // before the rename: there may be no memory
  std::lock_guard naming(state.naming);
  if (std::rename(state.folder.c_str(), folder) != 0) return -errno;
  state.folder.swap(moved);
  state.segments_max = state.segments_granted;
  busy.callback.store(nullptr);
  return 0;
} catch (...) {
  return -ENOMEM;
}

void call_when_busy(void* callback, uint64_t after_ns, uint64_t records) noexcept {
  busy.opened_ns = monotonic_ns();
  busy.after_ns = after_ns;
  busy.records = records;
  busy.callback.store(callback, std::memory_order_release);
}

namespace {

#ifdef __GLIBC__
// Runs in exit(), after the interpreter and its END: the one place that knows the status. A forked child that calls
// exit() has inherited the handler, and the mapping.
void note_exit(int status, void*) noexcept {
  RkmControl* control = spool.control;
  if (control == nullptr || control->pid != static_cast<uint32_t>(getpid())) return;
  if (__atomic_load_n(&control->exit_kind, __ATOMIC_RELAXED) != RKM_EXITKIND_UNREPORTED) return;
  __atomic_store_n(&control->exit_code, static_cast<uint32_t>(status) & 0xffu, __ATOMIC_RELAXED);
  __atomic_store_n(&control->exit_kind, uint32_t{RKM_EXITKIND_EXIT}, __ATOMIC_RELEASE);
}
#endif

}  // namespace

int open_spool(const char* folder, uint64_t budget_bytes, bool is_provisional) noexcept try {
  Keeper& state = keeper();
  if (spool.control != nullptr) return -EALREADY;  // one spool in a process's life: writers keep pointers into it
  state.folder = folder;
  state.segments_granted = std::min(budget_bytes / RKM_SEGMENT_BYTES, kSlots / 2);
  state.segments_max = is_provisional ? std::min(state.segments_granted, kProvisionalSegments) : state.segments_granted;
  const int strings_fd = create_strings(state.folder + "/strings");
  if (strings_fd < 0) return strings_fd;
  RkmControl* control = create_control(state.folder + "/control");
  if (control == nullptr) return -errno;
  spool.control = control;
  strings_use(strings_fd);
  // The first segment here, so that nothing is lost before the native thread runs. If there is no room even
  // for it, recording starts with a gap.
  prepare_segment(state, 0);
  is_open.store(true, std::memory_order_release);
  write_clock();
  write_host_sample();  // an OOM wants to know what was free, however early
  const int failure = start_keeper(state);
  if (failure != 0) {
    is_open.store(false);
    return failure;
  }
  pthread_atfork(wait_to_fork, go_on_after_fork, silence_forked_child);
  {
    const ForkHeld held;
    hold_life(state.folder + "/control", control);
  }
#ifdef __GLIBC__
  on_exit(note_exit, nullptr);
#endif
  __atomic_store_n(&control->state, uint32_t{RKM_STATE_RUNNING}, __ATOMIC_RELEASE);
  return 0;
} catch (...) {
  return -ENOMEM;
}

int close_spool() noexcept {
  static std::atomic<bool> closing{false};
  if (!is_open.load() || closing.exchange(true)) return 0;
  forget_switched(~0u);
  enabled_bits.store(0);
  Keeper& state = keeper();
  {
    std::lock_guard lock(state.mutex);
    state.stop = true;
  }
  state.wake.notify_one();
  pthread_join(state.thread, nullptr);
  write_clock();
  is_open.store(false);
  RkmEnd end;
  end.num_dropped() = __atomic_load_n(&spool.control->dropped, __ATOMIC_RELAXED);
  write_record_at(thread_state.last_segment, end, monotonic_ns());
  // After END. A writer that was past its enabled() check may still commit a record behind it.
  __atomic_store_n(&spool.control->state, uint32_t{RKM_STATE_ENDED}, __ATOMIC_RELEASE);
  return 0;
}

}  // namespace rankmem
