// Whether, and how, the size of a CPU block is known when it is freed.
//
// The deleter of a block is given its address alone, and a table of sizes would take a lock or a search on the hot
// path. malloc knows: malloc_usable_size() reads the word before the block, which free() reads right after. It is only
// asked where libc10 takes its blocks from the same library's posix_memalign (glibc, or a malloc that was preloaded).
//
// Source: c10/core/impl/alloc_cpu.cpp, torch 2.6 to 2.15.

#include <dlfcn.h>

#include "heights.h"
#include "library_data.h"

namespace rankmem {

Heights heights;

namespace {

using UsableSize = size_t (*)(void*);
UsableSize usable_size = nullptr;
bool cpu_sizes_known = false;

constexpr const char* kAllocatingLibrary = "libc10.so";

// The base of the library that a symbol comes from; null for none.
void* library_of(const char* symbol) noexcept {
  Dl_info info = {};
  void* address = dlsym(RTLD_DEFAULT, symbol);
  return address != nullptr && dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

bool mallocs_agree() noexcept {
  void** slots[1];
  void* library = library_of("malloc_usable_size");
  return library != nullptr && library == library_of("posix_memalign") &&
         find_call_slots(kAllocatingLibrary, "posix_memalign", slots, 1) != 0;
}

}  // namespace

uint64_t usable_bytes(void* block) noexcept { return cpu_sizes_known ? usable_size(block) : 0; }

void check_cpu_sizes(bool is_torchs_own) noexcept {
  usable_size = reinterpret_cast<UsableSize>(dlsym(RTLD_DEFAULT, "malloc_usable_size"));
  cpu_sizes_known = is_torchs_own && usable_size != nullptr && mallocs_agree();
}

bool knows_cpu_sizes() noexcept { return cpu_sizes_known; }

}  // namespace rankmem
