"""An NVIDIA GPU, emulated on the CPU: it checks what kernels do, and counts it as a profiler does.

CUDA C++ text -> (harness.py, g++) -> a shared object of threads, warps and shared memory (simt.h,
simt_runtime.cpp) -> launches on CPU tensors (runtime.py) -> counts (simt_counters.h, counters.py).
Nothing imports this folder but tests and `pyfuser profile`.
"""
