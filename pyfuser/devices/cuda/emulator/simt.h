// CUDA C++ vocabulary for a host compiler: generated kernel text, unchanged, becomes a shared
// object that runs on a machine without a GPU. This header defines the vocabulary (threadIdx,
// __shared__, __syncthreads, shuffles, atomics); simt_math.h has the mathematical functions;
// simt_runtime.cpp simulates the threads and checks what they do. harness.py combines them.
// It includes nothing of the standard library that would take long to compile.
// Invariant: the text that NVRTC compiles neither needs nor sees anything of this.
#pragma once

#include <float.h>
#include <stddef.h>
#include <stdint.h>

#include "simt_interface.h"
#include "simt_math.h"

extern "C" {
void* memcpy(void*, const void*, size_t) noexcept;
void* memset(void*, int, size_t) noexcept;
}

namespace simt {

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(dynamic_shared_memory());
}

template <size_t... I>
struct Numbers {};

template <auto Kernel>
struct Entry;

// Unpacks the pointer array of a launch into the kernel's parameters, as cuLaunchKernel does.
template <class... Parameters, void (*Kernel)(Parameters...)>
struct Entry<Kernel> {
  template <size_t... I>
  __attribute__((no_sanitize("thread", "address"), noinline)) static void call(
      void** arguments, Numbers<I...>) {
    Kernel(*static_cast<Parameters*>(arguments[I])...);
  }
  // Not among the functions that a thread is in: the first of them is the kernel.
  __attribute__((no_sanitize("thread", "address"))) static void run(void** arguments) {
    call(arguments, Numbers<__integer_pack(sizeof...(Parameters))...>{});
  }

  // One letter and a size per parameter: p pointer, f floating, i integer, s anything else.
  static const char* signature() {
    static char text[sizeof...(Parameters) * 8 + 1];
    char* out = text;
    ((out = describe<Parameters>(out)), ...);
    *out = 0;
    return text;
  }
  template <class P>
  static char* describe(char* out) {
    constexpr bool is_float = __is_same(P, float) || __is_same(P, double);
    *out++ = is_pointer((P*)nullptr) ? 'p' : is_float ? 'f' : is_integer((P*)nullptr) ? 'i' : 's';
    unsigned size = sizeof(P);
    for (unsigned digit = 1000; digit; digit /= 10) *out++ = char('0' + size / digit % 10);
    *out++ = ' ';
    return out;
  }
  template <class P>
  static constexpr bool is_pointer(P**) { return true; }
  static constexpr bool is_pointer(...) { return false; }
  template <class P>
  static constexpr auto is_integer(P*) -> decltype(P() % 1, true) { return true; }
  static constexpr bool is_integer(...) { return false; }
};

}  // namespace simt

#define SIMT_EXPORT(kernel)                                                      \
  extern "C" __attribute__((visibility("default"))) int simt_launch_##kernel(    \
      const simt::Request* request) {                                            \
    return simt::launch(&simt::Entry<&kernel>::run, *request);                   \
  }                                                                              \
  extern "C" __attribute__((visibility("default"))) const char*                  \
      simt_signature_##kernel() {                                                \
    return simt::Entry<&kernel>::signature();                                    \
  }

// ---------------------------------------------------------------- keywords

#define __global__ __attribute__((noinline))
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __maxnreg__(registers)
#define __align__(bytes) __attribute__((aligned(bytes)))
// A restrict promise would let the host compiler assume what the fibers of a block violate.
#define __restrict__
// One block runs at a time, so one copy is enough.  The section lets the runtime find it, fill it
// with a pattern at a block's start and watch it.  harness.py rewrites `extern __shared__`.
#define __shared__ static __attribute__((section("simt_shared")))

constexpr int warpSize = 32;

// ---------------------------------------------------------------- barriers, warps, fences

#define __syncthreads() ((void)simt::block_barrier(__LINE__, false))
#define __syncthreads_count(predicate) ((int)simt::block_barrier(__LINE__, (predicate) != 0))
#define __syncthreads_or(predicate) ((int)(simt::block_barrier(__LINE__, (predicate) != 0) != 0))
#define __syncthreads_and(predicate) ((int)(simt::block_barrier(__LINE__, (predicate) == 0) == 0))
#define __syncwarp(...) (simt::synchronise_warp(__LINE__, ##__VA_ARGS__))
#define __ballot_sync(mask, predicate) (simt::ballot(__LINE__, mask, (predicate) != 0))
#define __any_sync(mask, predicate) ((int)(__ballot_sync(mask, predicate) != 0))
#define __all_sync(mask, predicate) ((int)(__ballot_sync(mask, (predicate) == 0) == 0))
#define __shfl_sync(mask, ...) (simt::shuffle(__LINE__, mask, __VA_ARGS__))
#define __shfl_down_sync(mask, ...) (simt::shuffle_down(__LINE__, mask, __VA_ARGS__))
#define __shfl_up_sync(mask, ...) (simt::shuffle_up(__LINE__, mask, __VA_ARGS__))
#define __shfl_xor_sync(mask, ...) (simt::shuffle_xor(__LINE__, mask, __VA_ARGS__))

// The threads of a block share one memory and run one at a time: there is nothing to fence, but a
// counter of blocks orders only what is fenced.
inline void __threadfence() { simt::fence(); }
inline void __threadfence_block() {}

namespace simt {

inline void synchronise_warp(int line, unsigned mask = 0xffffffffu) {
  warp_exchange(line, WarpOperation::synchronise, mask, 0, 0);
}

inline unsigned ballot(int line, unsigned mask, bool predicate) {
  return (unsigned)warp_exchange(line, WarpOperation::ballot, mask, predicate, 0);
}

template <class T>
T exchange(int line, unsigned mask, T value, int source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = warp_exchange(line, WarpOperation::shuffle, mask, bits, source);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

// A source outside the segment of `width` lanes gives the lane its own value, as in CUDA.
template <class T>
T shuffle(int line, unsigned mask, T value, int source, int width = 32) {
  int start = (int)lane() & ~(width - 1);
  return exchange(line, mask, value, start + (source & (width - 1)));
}

template <class T>
T shuffle_down(int line, unsigned mask, T value, unsigned delta, int width = 32) {
  int own = (int)lane(), source = own + (int)delta;
  return exchange(line, mask, value, (own & (width - 1)) + (int)delta < width ? source : own);
}

template <class T>
T shuffle_up(int line, unsigned mask, T value, unsigned delta, int width = 32) {
  int own = (int)lane(), source = own - (int)delta;
  return exchange(line, mask, value, (own & (width - 1)) >= (int)delta ? source : own);
}

template <class T>
T shuffle_xor(int line, unsigned mask, T value, int flip, int width = 32) {
  int own = (int)lane(), source = own ^ flip;
  // Later segments are out of reach; earlier ones are not.
  return exchange(line, mask, value, source < (own & ~(width - 1)) + width ? source : own);
}

// ---------------------------------------------------------------- atomics

template <class T, class Update>
__attribute__((no_sanitize("thread", "address"), noinline)) T update(T* address, Update next) {
  atomic_access(address, sizeof(T));
  T old = *address;
  *address = next(old);
  return old;
}

template <class T>
struct Same {
  using Type = T;
};
template <class T>
using Operand = typename Same<T>::Type;  // converts to the address's type instead of deducing one

}  // namespace simt

template <class T>
T atomicAdd(T* address, simt::Operand<T> value) {
  return simt::update(address, [=](T old) { return T(old + value); });
}
template <class T>
T atomicMin(T* address, simt::Operand<T> value) {
  return simt::update(address, [=](T old) { return value < old ? value : old; });
}
template <class T>
T atomicMax(T* address, simt::Operand<T> value) {
  return simt::update(address, [=](T old) { return old < value ? value : old; });
}
template <class T>
T atomicExch(T* address, simt::Operand<T> value) {
  return simt::update(address, [=](T) { return value; });
}
template <class T>
T atomicCAS(T* address, simt::Operand<T> compare, simt::Operand<T> value) {
  return simt::update(address, [=](T old) { return old == compare ? value : old; });
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  return simt::update(address, [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}

// ---------------------------------------------------------------- vectors, loads, bits

#define SIMT_VECTORS(type, name)                                               \
  struct __attribute__((aligned(2 * sizeof(type)))) name##2 { type x, y; };    \
  struct __attribute__((aligned(4 * sizeof(type) > 16 ? 16 : 4 * sizeof(type)))) name##4 { \
    type x, y, z, w;                                                           \
  };
SIMT_VECTORS(float, float)
SIMT_VECTORS(int, int)
SIMT_VECTORS(unsigned, uint)
SIMT_VECTORS(double, double)
#undef SIMT_VECTORS

template <class T>
T __ldca(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
T __ldg(const T* address) {
  return *address;
}

#define SIMT_BITS(name, to, from)         \
  inline to name(from value) {            \
    to result;                            \
    memcpy(&result, &value, sizeof(to));  \
    return result;                        \
  }
SIMT_BITS(__float_as_int, int, float)
SIMT_BITS(__float_as_uint, unsigned, float)
SIMT_BITS(__int_as_float, float, int)
SIMT_BITS(__uint_as_float, float, unsigned)
SIMT_BITS(__double_as_longlong, long long, double)
SIMT_BITS(__longlong_as_double, double, long long)
#undef SIMT_BITS

inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __clz(int value) { return value ? __builtin_clz((unsigned)value) : 32; }
inline int __ffs(int value) { return __builtin_ffs(value); }
