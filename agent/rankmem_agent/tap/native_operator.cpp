// The operator in which a thread is, by its native stack: for what no observed call names.
//
// Every call of an operator from outside of the dispatcher passes at::_ops::NAME_OVERLOAD::call, a symbol that
// libtorch_cpu exports. The outermost of these is the operator that the observer would have named; what lies beyond
// an autograd node or a Python frame is another one's. The dispatcher knows which name and overload a symbol's is.
//
// It unwinds, asks the dynamic linker and takes a lock of ours, so only off every lock of an allocator: at an
// out-of-memory, and on CPU for a block without an operator. Addresses are looked up once in a process.

#include <ATen/core/dispatch/Dispatcher.h>

#include <dlfcn.h>
#include <unwind.h>

#include <mutex>
#include <string>
#include <unordered_map>

#include "native_operator.h"
#include "spool.h"

namespace rankmem {

namespace {

// Between an allocation and the operator that Python called lie 20 to 60 native frames.
constexpr uint32_t kNativeFramesMax = 256;
// In the table: an autograd node or Python begins here.
constexpr uint32_t kEndsOperator = ~0u;

// Leaked, as everything that threads may use while the process ends.
struct NativeNames {
  std::mutex mutex;
  std::unordered_map<void*, uint32_t> by_address;  // of a return: string id, 0 or kEndsOperator
};
NativeNames& native_names() {
  static auto* all = new NativeNames;
  return *all;
}

// "mul_Tensor" is aten::mul's overload Tensor, "mul__Tensor" that of aten::mul_: only the dispatcher can say. Empty if
// it knows none.
std::string operator_of_symbol(const std::string& joined) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (size_t at = joined.size(); at != std::string::npos && at != 0; at = joined.rfind('_', at - 1)) {
    const std::string name = "aten::" + joined.substr(0, at);
    const std::string overload = at < joined.size() ? joined.substr(at + 1) : "";
    if (dispatcher.findSchema({name, overload}).has_value()) return name;
  }
  return "";
}

// What a symbol says: the string id of an operator, kEndsOperator or 0.
uint32_t learn_symbol(std::string_view symbol) {
  constexpr std::string_view operators = "_ZN2at4_ops", call = "4callE";
  if (symbol.starts_with(operators)) {
    size_t at = operators.size(), length = 0;
    while (at < symbol.size() && symbol[at] >= '0' && symbol[at] <= '9') length = length * 10 + (symbol[at++] - '0');
    if (at + length > symbol.size() || !symbol.substr(at + length).starts_with(call)) return 0;
    const std::string name = operator_of_symbol(std::string(symbol.substr(at, length)));
    return name.empty() ? 0 : intern(name);
  }
  const bool ends = symbol.starts_with("_ZN5torch8autograd4Node") || symbol.starts_with("_PyEval_EvalFrame") ||
                    symbol.find("autograd6Engine17evaluate_function") != std::string_view::npos;
  return ends ? kEndsOperator : 0;
}

// Nothing is asked of the linker or the dispatcher under our lock: who loads a library holds the linker's, and may
// come here.
uint32_t id_of_address(NativeNames& names, void* address) {
  {
    std::lock_guard lock(names.mutex);
    const auto found = names.by_address.find(address);
    if (found != names.by_address.end()) return found->second;
  }
  Dl_info info = {};
  const bool is_named = dladdr(address, &info) != 0 && info.dli_sname != nullptr;
  const uint32_t id = is_named ? learn_symbol(info.dli_sname) : 0;
  std::lock_guard lock(names.mutex);
  names.by_address.emplace(address, id);
  return id;
}

struct Unwinding {
  uint32_t outermost = 0;  // of the operators seen
  uint32_t count = 0;
};

// Called for each frame, innermost first. Python's frames and those around them are not looked at.
_Unwind_Reason_Code look_at_frame(_Unwind_Context* context, void* into) noexcept try {
  auto& unwinding = *static_cast<Unwinding*>(into);
  auto* address = reinterpret_cast<void*>(_Unwind_GetIP(context));
  const uint32_t id = id_of_address(native_names(), address);
  if (id == kEndsOperator || ++unwinding.count == kNativeFramesMax) return _URC_END_OF_STACK;
  if (id != 0) unwinding.outermost = id;
  return _URC_NO_REASON;
} catch (...) {  // no memory for the table
  return _URC_END_OF_STACK;
}

}  // namespace

uint32_t native_operator() noexcept {
  Unwinding unwinding;
  _Unwind_Backtrace(look_at_frame, &unwinding);
  return unwinding.outermost;
}

}  // namespace rankmem
