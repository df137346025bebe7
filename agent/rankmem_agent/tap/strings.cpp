// The strings file: every name, frame and stack once. Runs off every allocator's lock, one mutex around all.
//
// An entry is written with one pwrite at an offset that only moves on success, so a kill in the middle leaves
// an entry that the reader refuses by its CRC, and the next start never sees it (a spool has one writer).

#include <sys/types.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "spool.h"

namespace rankmem {

namespace {

// In-memory copies and the file end here: names are data from outside (record_function("step 7342")), and
// must not fill the trainer's memory. 8 MiB are some 200,000 names.
constexpr uint64_t kStringBytesMax = 8u << 20;
// Frames and stacks cost 12 to 260 bytes each on file; 64 MiB end a program that makes code without end.
constexpr uint64_t kStringsFileBytesMax = 64u << 20;

// zlib's CRC-32, a byte at a time: a few KiB in the life of a training.
uint32_t crc32_of(const char* data, size_t size) noexcept {
  uint32_t crc = 0xFFFF'FFFFu;
  for (size_t i = 0; i < size; ++i) {
    crc ^= static_cast<unsigned char>(data[i]);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xEDB8'8320u & (0u - (crc & 1u)));
  }
  return ~crc;
}

struct StringsFile {
  std::mutex mutex;
  OwnFile file;
  uint64_t end = RKM_STRINGS_HEADER_BYTES;
  uint64_t text_bytes = 0;
  uint32_t last_id[4] = {};  // by entry type
  char entry[RKM_STRING_ENTRY_HEADER_BYTES + RKM_NOTE_BYTES_MAX + 8];
  // The keys view copies that live as long as the process: thread caches point at them too.
  std::unordered_map<std::string_view, uint32_t> ids;

  uint32_t append(uint8_t type, const void* payload, size_t size) {
    const size_t padded = (size + 7) / 8 * 8;
    const size_t total = RKM_STRING_ENTRY_HEADER_BYTES + padded;
    RkmStringEntry header = {};
    header.type = type;
    header.id = last_id[type] + 1;
    header.length = static_cast<uint32_t>(size);
    header.crc = crc32_of(static_cast<const char*>(payload), size);
    std::memcpy(entry, &header, sizeof header);
    std::memcpy(entry + sizeof header, payload, size);
    std::memset(entry + sizeof header + size, 0, padded - size);
    if (!file.is_there() || end + total > kStringsFileBytesMax ||
        pwrite(file.fd, entry, total, static_cast<off_t>(end)) != static_cast<ssize_t>(total)) {
      __atomic_fetch_add(&spool.control->strings_dropped, 1, __ATOMIC_RELAXED);
      return 0;
    }
    end += total;
    return last_id[type] = header.id;
  }
};

// Leaked on purpose: threads may still intern while static destructors run.
StringsFile& strings() {
  static auto* file = new StringsFile;
  return *file;
}

}  // namespace

Interned intern_entry(std::string_view text, size_t bytes_max) noexcept try {
  if (!spool_is_open()) return {nullptr, 0, 0};
  text = text.substr(0, bytes_max);
  StringsFile& file = strings();
  std::lock_guard lock(file.mutex);
  auto known = file.ids.find(text);
  if (known == file.ids.end()) {
    if (file.text_bytes + text.size() > kStringBytesMax) {
      __atomic_fetch_add(&spool.control->strings_dropped, 1, __ATOMIC_RELAXED);
      return {nullptr, 0, 0};
    }
    const uint32_t id = file.append(RKM_ENTRY_STRING, text.data(), text.size());
    if (id == 0) return {nullptr, 0, 0};
    auto* copy = new char[text.size() + 1];
    std::memcpy(copy, text.data(), text.size());
    copy[text.size()] = '\0';
    file.text_bytes += text.size() + 1;
    known = file.ids.emplace(std::string_view(copy, text.size()), id).first;
  }
  return {known->first.data(), static_cast<uint32_t>(known->first.size()), known->second};
} catch (...) {
  return {nullptr, 0, 0};  // no memory: the name is lost, the training goes on
}

uint32_t intern_bounded(std::string_view text, size_t bytes_max) noexcept {
  return intern_entry(text, bytes_max).id;
}

uint32_t intern(std::string_view text) noexcept { return intern_entry(text, RKM_STRING_BYTES_MAX).id; }

uint32_t intern_frame(uint32_t file_id, uint32_t function_id, uint32_t line) noexcept {
  const uint32_t payload[3] = {file_id, function_id, line};
  StringsFile& file = strings();
  std::lock_guard lock(file.mutex);
  return file.append(RKM_ENTRY_FRAME, payload, sizeof payload);
}

uint32_t intern_stack(const uint32_t* frames, uint32_t count) noexcept {
  StringsFile& file = strings();
  std::lock_guard lock(file.mutex);
  const uint32_t id = file.append(RKM_ENTRY_STACK, frames, count * sizeof *frames);
  if (id != 0) __atomic_fetch_add(&spool.control->stacks, 1, __ATOMIC_RELAXED);
  return id;
}

void strings_use(int fd) noexcept { strings().file = OwnFile(fd); }

}  // namespace rankmem
