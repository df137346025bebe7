// Allocators for CPU as other libraries register them, for tests of what the tap makes of them.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <cstring>

namespace {

// Asks c10's default allocator for each block and gives it on as it is.
struct Delegating final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override { return c10::GetDefaultCPUAllocator()->allocate(size); }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetDefaultCPUAllocator()->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};

// Asks for a larger block and gives a context of its own with it.
struct Wrapping final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    auto* whole = new c10::DataPtr(c10::GetDefaultCPUAllocator()->allocate(size + 64));
    void* data = static_cast<char*>(whole->get()) + 64;
    return {data, whole, [](void* context) { delete static_cast<c10::DataPtr*>(context); },
            c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};

// Its own memory; the default allocator is never asked.
struct Apart final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* data = size == 0 ? nullptr : std::aligned_alloc(64, (size + 63) / 64 * 64);
    return {data, data, &std::free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};

}  // namespace

extern "C" void install(const char* name, int priority) {
  c10::Allocator* allocator = nullptr;
  if (std::strcmp(name, "delegating") == 0) allocator = new Delegating;
  if (std::strcmp(name, "wrapping") == 0) allocator = new Wrapping;
  if (std::strcmp(name, "apart") == 0) allocator = new Apart;
  c10::SetAllocator(c10::DeviceType::CPU, allocator, static_cast<uint8_t>(priority));
}

// As a tool that came before us may leave it: the default allocator's table is one that nobody knows.
extern "C" void disguise_default() {
  auto** object = reinterpret_cast<void**>(c10::GetDefaultCPUAllocator());
  static void* table[8];
  std::memcpy(table, static_cast<void**>(*object) - 2, sizeof table);
  *object = table + 2;
}

// The raw interface: 1 if a block can be had and given back through it.
extern "C" int raw_round() {
  c10::Allocator* allocator = c10::GetDefaultCPUAllocator();
  void* data = allocator->raw_allocate(777);
  const bool simple = allocator->is_simple_data_ptr(allocator->allocate(5));
  allocator->raw_deallocate(data);
  return data != nullptr && simple;
}
