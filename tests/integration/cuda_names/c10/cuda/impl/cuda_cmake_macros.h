// torch writes it when it is built with CUDA.
#pragma once
