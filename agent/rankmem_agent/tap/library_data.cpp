// Replacing pointers in the data of loaded libraries: an object's table of virtual functions, a call's target.
//
// Runs once, when the CPU allocator is attached; never on the hot path. Everything is read from what the
// dynamic loader has mapped (dl_iterate_phdr), nothing from files. A page that the loader made read-only after
// relocation (RELRO) is writable for the moment of the store, and read-only again after it.
//
// Source: the ELF gABI and its x86-64 and aarch64 supplements. glibc has made the addresses in a mapped dynamic
// section absolute; where a loader leaves offsets, they are read as well.

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "library_data.h"

namespace rankmem {

namespace {

#if defined(__x86_64__)
constexpr uint32_t kJumpSlot = R_X86_64_JUMP_SLOT, kGlobalData = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT, kGlobalData = R_AARCH64_GLOB_DAT;
#else
constexpr uint32_t kJumpSlot = ~0u, kGlobalData = ~0u;  // nothing is found, which is reported as such
#endif

struct Place {
  uintptr_t address;
  bool is_writable;   // in a segment that is loaded writable
  bool is_protected;  // on a page that is read-only since relocation
};

// As the loader does it: a page that is only partly relocation data stays writable.
bool is_in_relro(const dl_phdr_info& object, const ElfW(Phdr)& segment, uintptr_t address) noexcept {
  const uintptr_t page = ~(static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
  const uintptr_t begin = (object.dlpi_addr + segment.p_vaddr) & page;
  const uintptr_t end = (object.dlpi_addr + segment.p_vaddr + segment.p_memsz) & page;
  return address >= begin && address < end;
}

int look_for_place(dl_phdr_info* object, size_t, void* wanted) noexcept {
  auto* place = static_cast<Place*>(wanted);
  for (int index = 0; index < object->dlpi_phnum; ++index) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[index];
    const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_GNU_RELRO) place->is_protected |= is_in_relro(*object, segment, place->address);
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) == 0) continue;
    place->is_writable |= place->address >= begin && place->address + sizeof(void*) <= begin + segment.p_memsz;
  }
  return place->is_writable ? 1 : 0;
}

Place place_of(void** slot) noexcept {
  Place place = {reinterpret_cast<uintptr_t>(slot), false, false};
  dl_iterate_phdr(look_for_place, &place);
  return place;
}

// A library's dynamic section, as far as calls of other libraries' functions are concerned.
struct Calls {
  const char* strings = nullptr;
  const ElfW(Sym)* symbols = nullptr;
  const ElfW(Rela)* plt = nullptr;
  size_t plt_bytes = 0;
  const ElfW(Rela)* other = nullptr;
  size_t other_bytes = 0;
  size_t relative = 0;  // how many of `other` name no symbol; they come first
};

template <class Pointer>
Pointer mapped(const dl_phdr_info& object, ElfW(Addr) value) noexcept {
  return reinterpret_cast<Pointer>(value < object.dlpi_addr ? object.dlpi_addr + value : value);
}

Calls read_dynamic(const dl_phdr_info& object, const ElfW(Dyn)* entry) noexcept {
  Calls calls;
  bool is_rela = false;
  for (; entry->d_tag != DT_NULL; ++entry) {
    const auto pointer = entry->d_un.d_ptr;
    const auto value = entry->d_un.d_val;
    switch (entry->d_tag) {
      case DT_STRTAB: calls.strings = mapped<const char*>(object, pointer); break;
      case DT_SYMTAB: calls.symbols = mapped<const ElfW(Sym)*>(object, pointer); break;
      case DT_JMPREL: calls.plt = mapped<const ElfW(Rela)*>(object, pointer); break;
      case DT_PLTRELSZ: calls.plt_bytes = value; break;
      case DT_PLTREL: is_rela = value == DT_RELA; break;
      case DT_RELA: calls.other = mapped<const ElfW(Rela)*>(object, pointer); break;
      case DT_RELASZ: calls.other_bytes = value; break;
      case DT_RELACOUNT: calls.relative = value; break;
      default: break;
    }
  }
  if (!is_rela) calls.plt_bytes = 0;
  return calls;
}

struct Search {
  const char* library;
  const char* symbol;
  void*** slots;
  size_t capacity;
  size_t found;
};

void look_among(const dl_phdr_info& object, const Calls& calls, const ElfW(Rela)* entries, size_t begin, size_t bytes,
                Search& search) noexcept {
  if (entries == nullptr || calls.strings == nullptr || calls.symbols == nullptr) return;
  for (size_t index = begin; index < bytes / sizeof(ElfW(Rela)); ++index) {
    const auto type = static_cast<uint32_t>(ELF64_R_TYPE(entries[index].r_info));
    if (type != kJumpSlot && type != kGlobalData) continue;
    const ElfW(Sym)& symbol = calls.symbols[ELF64_R_SYM(entries[index].r_info)];
    if (std::strcmp(calls.strings + symbol.st_name, search.symbol) != 0) continue;
    if (search.found < search.capacity) {
      search.slots[search.found] = reinterpret_cast<void**>(object.dlpi_addr + entries[index].r_offset);
    }
    ++search.found;
  }
}

bool is_named(const char* path, const char* library) noexcept {
  const char* slash = std::strrchr(path, '/');
  return std::strcmp(slash == nullptr ? path : slash + 1, library) == 0;
}

int look_for_slots(dl_phdr_info* object, size_t, void* wanted) noexcept {
  auto* search = static_cast<Search*>(wanted);
  if (object->dlpi_name == nullptr || !is_named(object->dlpi_name, search->library)) return 0;
  for (int index = 0; index < object->dlpi_phnum; ++index) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[index];
    if (segment.p_type != PT_DYNAMIC) continue;
    const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(object->dlpi_addr + segment.p_vaddr);
    const Calls calls = read_dynamic(*object, entry);
    look_among(*object, calls, calls.plt, 0, calls.plt_bytes, *search);
    look_among(*object, calls, calls.other, calls.relative, calls.other_bytes, *search);
  }
  return 0;
}

}  // namespace

bool is_replaceable(void** slot) noexcept {
  return reinterpret_cast<uintptr_t>(slot) % sizeof(void*) == 0 && place_of(slot).is_writable;
}

bool replace_pointer(void** slot, void* replacement) noexcept {
  const Place place = place_of(slot);
  if (!place.is_writable || place.address % sizeof(void*) != 0) return false;
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* page = reinterpret_cast<void*>(place.address & ~(page_bytes - 1));
  if (place.is_protected && mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(slot, replacement, __ATOMIC_RELEASE);
  if (place.is_protected) mprotect(page, page_bytes, PROT_READ);
  return true;
}

size_t find_call_slots(const char* library, const char* symbol, void*** slots, size_t capacity) noexcept {
  Search search = {library, symbol, slots, capacity, 0};
  dl_iterate_phdr(look_for_slots, &search);
  return search.found;
}

}  // namespace rankmem
