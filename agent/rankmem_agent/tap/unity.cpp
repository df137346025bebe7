// The tap as one translation unit: see tap.h for why. The order is that of use.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "records.cpp"
#include "strings.cpp"
#include "spool.cpp"
#include "frames.cpp"
#include "stacks.cpp"
#include "modules.cpp"
#include "library_data.cpp"
#include "heights.cpp"
#include "auto_detail.cpp"
#include "steady.cpp"
#include "control.cpp"
#include "python_objects.cpp"
#include "same_calls.cpp"
#include "roots.cpp"
#ifdef RKM_WITH_EVIDENCE
#include "evidence.cpp"
#include "parts.cpp"
#endif
#include "native_operator.cpp"
#include "calls.cpp"
#include "steps.cpp"
#include "tap_cpu_default.cpp"
#include "tap_cpu_mapped.cpp"
#include "tap_cpu.cpp"
#include "tap_pinned.cpp"
#ifdef RKM_WITH_CUDA
#include "tap_cuda.cpp"
#endif
#include "children.cpp"
#include "tap.cpp"
