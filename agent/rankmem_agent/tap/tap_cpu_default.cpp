// c10's default CPU allocator, made to record for any caller.
//
// Why not c10::SetAllocator alone: UntypedStorage(n), storage.clone(), typed storages and much C++ ask
// c10::GetDefaultCPUAllocator() by name, past whatever is registered. How: the object's pointer to its table of
// virtual functions is replaced by one to a copy of that table, in which allocate() and raw_deleter() are ours.
// The object, its address, its type and everything else it can do stay as they are, so comparisons of allocators,
// dynamic_cast and what a newer torch may add hold. One store of eight bytes, so threads that allocate meanwhile
// use either table. Nothing is changed unless everything is as expected; then the front of tap_cpu.cpp is used.
//
// Blocks handed out before keep torch's own deleter: their frees are not seen, as those of any block older than
// the recording. The copy lives as long as the process, and this library is never unloaded.
//
// Source: c10/core/CPUAllocator.cpp and Allocator.h, torch 2.6 to 2.15; the Itanium C++ ABI (tables of virtual
// functions, pointers to members), which GCC and clang follow on Linux.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <dlfcn.h>
#include <link.h>

#include <cstring>

#include "library_data.h"
#include "tap_cpu.h"

namespace rankmem {

namespace {

// As a call through the table is compiled: the object comes first, like an argument.
using Allocate = c10::DataPtr (*)(c10::Allocator*, size_t);
using RawDeleter = c10::DeleterFnPtr (*)(const c10::Allocator*);

constexpr const char* kTableName = "_ZTVN3c1019DefaultCPUAllocatorE";
constexpr size_t kBeforeTable = 2;  // words of a table before the address that objects hold: offset and type
constexpr size_t kTableWordsMax = 32;  // 8 in torch 2.6 to 2.15

void* table_copy[kTableWordsMax];
Allocate torch_allocate = nullptr;
c10::DeleterFnPtr torch_deleter = nullptr;

// The deleter of its blocks, whose context is the block itself.
void free_default(void* data) {
  if (!is_in_front()) record_cpu_free(data);
  torch_deleter(data);
}

void free_default_wrapped(void* context) {
  auto* inner = static_cast<c10::DataPtr*>(context);
  if (!is_in_front()) record_cpu_free(inner->get());
  delete inner;
}

c10::DataPtr ask_torch(c10::Allocator* self, size_t size_bytes) {
  try {
    return torch_allocate(self, size_bytes);
  } catch (...) {
    if (!is_in_front()) record_cpu_oom(size_bytes);
    throw;  // the same exception: the user's handler sees what it would have seen
  }
}

c10::DataPtr allocate_recorded(c10::Allocator* self, size_t size_bytes) {
  c10::DataPtr block = ask_torch(self, size_bytes);
  void* data = block.get();
  if (!is_in_front()) record_cpu_alloc(data, size_bytes);
  // Done even while recording is off: raw_deleter() promises this deleter on every block.
  if (data == block.get_context() && block.compare_exchange_deleter(torch_deleter, &free_default)) return block;
  if (data == nullptr) return block;
  const c10::Device device = block.device();
  auto* inner = new c10::DataPtr(std::move(block));
  return {data, inner, &free_default_wrapped, device};
}

c10::DeleterFnPtr raw_deleter_recorded(const c10::Allocator*) { return &free_default; }

constexpr size_t kNoWord = ~size_t{0};

// Which word of a table a virtual function has; kNoWord if that cannot be found here.
template <class Member>
size_t word_of(Member member) noexcept {
  uintptr_t parts[2];
  static_assert(sizeof member == sizeof parts);
  std::memcpy(parts, &member, sizeof parts);
#if defined(__x86_64__)
  if (parts[0] % 2 == 1 && parts[1] == 0) return (parts[0] - 1) / sizeof(void*);
#elif defined(__aarch64__)
  if (parts[1] == 1) return parts[0] / sizeof(void*);
#endif
  return kNoWord;
}

// How many words a table of this class has, its two first ones included; 0 if `table` is no table of it.
size_t words_of_table(void** table) noexcept {
  Dl_info info = {};
  void* entry = nullptr;
  void* begin = table - kBeforeTable;
  if (dladdr1(begin, &info, &entry, RTLD_DL_SYMENT) == 0) return 0;
  const auto* symbol = static_cast<const ElfW(Sym)*>(entry);
  if (info.dli_sname == nullptr || std::strcmp(info.dli_sname, kTableName) != 0) return 0;
  return info.dli_saddr == begin && symbol != nullptr ? symbol->st_size / sizeof(void*) : 0;
}

template <class Function>
Function function_in(void* word) noexcept {
  Function function;
  std::memcpy(&function, &word, sizeof function);
  return function;
}

}  // namespace

bool watch_default_allocator() noexcept try {
  c10::Allocator* allocator = c10::GetDefaultCPUAllocator();
  auto** slot = reinterpret_cast<void**>(allocator);
  if (allocator == nullptr || !is_replaceable(slot)) return false;
  auto** table = static_cast<void**>(*slot);
  const size_t words = words_of_table(table);
  const size_t allocate = word_of(&c10::Allocator::allocate);
  const size_t raw_deleter = word_of(&c10::Allocator::raw_deleter);
  if (words <= kBeforeTable || words > kTableWordsMax) return false;
  if (allocate >= words - kBeforeTable || raw_deleter >= words - kBeforeTable) return false;
  torch_deleter = allocator->raw_deleter();
  if (torch_deleter == nullptr || function_in<RawDeleter>(table[raw_deleter])(allocator) != torch_deleter) return false;
  torch_allocate = function_in<Allocate>(table[allocate]);
  std::memcpy(table_copy, table - kBeforeTable, words * sizeof(void*));
  table_copy[kBeforeTable + allocate] = reinterpret_cast<void*>(&allocate_recorded);
  table_copy[kBeforeTable + raw_deleter] = reinterpret_cast<void*>(&raw_deleter_recorded);
  return replace_pointer(slot, table_copy + kBeforeTable);
} catch (...) {
  return false;
}

}  // namespace rankmem
