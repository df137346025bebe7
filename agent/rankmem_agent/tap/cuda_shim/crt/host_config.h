// Stands in for CUDA's crt/host_config.h; see host_defines.h beside it. It checks compilers for nvcc: not for us.
#pragma once
