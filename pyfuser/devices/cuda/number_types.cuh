// The prelude of generated CUDA kernels, first part: fixed-width types, constants, half, bfloat16 and
// 8-bit storage, casts.  memory.cuh, arithmetic.cuh and others follow.
// The text goes before a kernel's own, because NVRTC has no headers: of the sections, which `// ----`
// begins, those that the kernel uses (device_helpers.py).  What a section defines begins at the start
// of a line, and the specialisations of a template are in its section.
// Invariants: nothing here depends on a kernel; it compiles under NVRTC and, for tests, under a
// host compiler with definitions of CUDA's keywords; there is no fast-math and no contraction.

#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#endif

// ---- types and constants

template <class T> struct unsigned_of { typedef T type; };
template <> struct unsigned_of<int8_t> { typedef uint8_t type; };
template <> struct unsigned_of<int16_t> { typedef uint16_t type; };
template <> struct unsigned_of<int32_t> { typedef uint32_t type; };
template <> struct unsigned_of<int64_t> { typedef uint64_t type; };

template <class T> struct is_floating { static constexpr bool value = false; };
template <> struct is_floating<float> { static constexpr bool value = true; };
template <> struct is_floating<double> { static constexpr bool value = true; };

template <class T> struct limits {  // of integers
  static constexpr bool is_signed = T(-1) < T(0);
  static constexpr T highest = T((uint64_t(1) << (8 * sizeof(T) - 1)) - 1 +
                                 (is_signed ? 0 : uint64_t(1) << (8 * sizeof(T) - 1)));
  static constexpr T lowest = T(is_signed ? T(-highest - 1) : T(0));
};
template <> struct limits<bool> {
  static constexpr bool is_signed = false, highest = true, lowest = false;
};
template <> struct limits<float> {
  static constexpr float highest = __builtin_bit_cast(float, 0x7f800000);  // infinity
  static constexpr float lowest = -highest;
  static constexpr float nan = __builtin_bit_cast(float, 0x7fc00000);
};
template <> struct limits<double> {
  static constexpr double highest = __builtin_bit_cast(double, 0x7ff0000000000000);
  static constexpr double lowest = -highest;
  static constexpr double nan = __builtin_bit_cast(double, 0x7ff8000000000000);
};

// ---- half and bfloat16: two bytes in memory, float in arithmetic, rounded to nearest even

struct half { uint16_t bits; };
struct bfloat16 { uint16_t bits; };

// A pair of 16 bits is one instruction, wherever the element is in its register; a shift takes two for
// the upper half.
static __device__ __forceinline__ float to_float(bfloat16 x) {
#if defined(__CUDACC_RTC__)
  float result;
  asm("mov.b32 %0, {%1, %2};" : "=f"(result) : "h"(uint16_t(0)), "h"(x.bits));
  return result;
#else
  return __uint_as_float(uint32_t(x.bits) << 16);
#endif
}

static __device__ __forceinline__ bfloat16 to_bfloat16(float x) {
  bfloat16 result;
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
#endif
  uint32_t bits = __float_as_uint(x);
  result.bits = x != x ? uint16_t(0x7fc0)
                       : uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  return result;
}

#if defined(__CUDACC_RTC__)
static __device__ __forceinline__ float to_float(half x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
}

static __device__ __forceinline__ half to_half(float x) {
  half result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
}
#else
// Both directions go through multiplications that are exact, or that round as the format does.
static inline float to_float(half x) {
  uint32_t sign = uint32_t(x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | magnitude << 13);
  float value = __uint_as_float(magnitude << 13) * 0x1p112f;  // rebias the exponent by 127 - 15
  return __uint_as_float(sign | __float_as_uint(value));
}

static inline half to_half(float x) {
  uint32_t bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  half result;
  if (magnitude > 0x7f800000u) {
    result.bits = uint16_t(sign | 0x7e00u);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and more round to infinity
    result.bits = uint16_t(sign | 0x7c00u);
  } else if (magnitude < 0x38800000u) {  // subnormal: the sum's last bit is half's last bit
    float sum = __uint_as_float(magnitude) + 0.5f;
    result.bits = uint16_t(sign | (__float_as_uint(sum) - 0x3f000000u));
  } else {
    uint32_t odd = magnitude >> 13 & 1u;
    result.bits = uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
  }
  return result;
}
#endif

// ---- casts

// A cast as torch does it: to bool compares with zero; half and bfloat16 go through float.
template <class To, class From> struct conversion {
  static __device__ __forceinline__ To of(From x) { return static_cast<To>(x); }
};
template <class From> struct conversion<bool, From> {
  static __device__ __forceinline__ bool of(From x) { return x != From(0); }
};
template <class From> struct conversion<half, From> {
  static __device__ __forceinline__ half of(From x) { return to_half(static_cast<float>(x)); }
};
template <class From> struct conversion<bfloat16, From> {
  static __device__ __forceinline__ bfloat16 of(From x) {
    return to_bfloat16(static_cast<float>(x));
  }
};
// A float beyond the type's range wraps for narrow integers, as on the CPU.
#define CONVERSION_BY_WAY_OF(WAY, TO, FROM)                                            \
  template <> struct conversion<TO, FROM> {                                            \
    static __device__ __forceinline__ TO of(FROM x) { return TO(static_cast<WAY>(x)); } \
  };
CONVERSION_BY_WAY_OF(int64_t, int8_t, float)
CONVERSION_BY_WAY_OF(int64_t, int8_t, double)
CONVERSION_BY_WAY_OF(int64_t, uint8_t, float)
CONVERSION_BY_WAY_OF(int64_t, uint8_t, double)
CONVERSION_BY_WAY_OF(int64_t, int16_t, float)
CONVERSION_BY_WAY_OF(int64_t, int16_t, double)
#undef CONVERSION_BY_WAY_OF

template <class To, class From> static __device__ __forceinline__ To convert(From x) {
  return conversion<To, From>::of(x);
}
template <class To> static __device__ __forceinline__ To convert(half x) {
  return conversion<To, float>::of(to_float(x));
}
template <class To> static __device__ __forceinline__ To convert(bfloat16 x) {
  return conversion<To, float>::of(to_float(x));
}

// ---- 8-bit floating types: a byte in memory, float in arithmetic, as in devices/cpu/float8.py

struct float8_e4m3fn { uint8_t bits; };
struct float8_e5m2 { uint8_t bits; };
struct float8_e8m0fnu { uint8_t bits; };

static __device__ __forceinline__ float to_float(float8_e4m3fn x) {
  uint32_t sign = uint32_t(x.bits & 0x80u) << 24, magnitude = x.bits & 0x7fu;
  if (magnitude == 0x7fu) return __uint_as_float(sign | 0x7fc00000u);
  float value = __uint_as_float(magnitude << 20) * 0x1p120f;  // rebias the exponent by 127 - 7
  return __uint_as_float(sign | __float_as_uint(value));
}

static __device__ __forceinline__ float to_float(float8_e5m2 x) {
  half wide;
  wide.bits = uint16_t(uint16_t(x.bits) << 8);
  return to_float(wide);
}

static __device__ __forceinline__ float to_float(float8_e8m0fnu x) {
  if (x.bits == 0xffu) return __uint_as_float(0x7fc00000u);
  return __uint_as_float(x.bits == 0 ? 0x00400000u : uint32_t(x.bits) << 23);
}

// The bits of a float's magnitude with fewer bits of mantissa and another bias, rounded to nearest
// even.  Below the normal numbers, the last bit of a sum is the format's last bit.
template <int Mantissa, int Bias>
static __device__ __forceinline__ uint32_t rounded_magnitude(uint32_t magnitude) {
  constexpr int shift = 23 - Mantissa;
  constexpr uint32_t rebias = uint32_t(127 - Bias) << 23;
  constexpr uint32_t anchor = uint32_t(127 - Bias + shift + 1) << 23;
  if (magnitude < rebias + (1u << 23)) {
    return __float_as_uint(__uint_as_float(magnitude) + __uint_as_float(anchor)) - anchor;
  }
  uint32_t odd = magnitude >> shift & 1u;
  return (magnitude - rebias + (1u << (shift - 1)) - 1 + odd) >> shift;
}

static __device__ __forceinline__ float8_e4m3fn to_float8_e4m3fn(float x) {
  uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
  uint32_t found = rounded_magnitude<3, 7>(magnitude);
  if (magnitude >= 0x43f00000u || found > FLOAT8_E4M3FN_BEYOND) found = FLOAT8_E4M3FN_BEYOND;
  if (magnitude > 0x7f800000u) found = 0x7fu;
  float8_e4m3fn result;
  result.bits = uint8_t(found | (bits >> 24 & 0x80u));
  return result;
}

static __device__ __forceinline__ float8_e5m2 to_float8_e5m2(float x) {
  uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
  uint32_t found = rounded_magnitude<2, 15>(magnitude);
  if (magnitude >= 0x47800000u || found > 0x7cu) found = 0x7cu;
  if (magnitude > 0x7f800000u) found = 0x7fu;
  float8_e5m2 result;
  result.bits = uint8_t(found | (bits >> 24 & 0x80u));
  return result;
}

static __device__ __forceinline__ float8_e8m0fnu to_float8_e8m0fnu(float x) {
  uint32_t magnitude = __float_as_uint(x) & 0x7fffffffu, exponent = magnitude >> 23;
  uint32_t fraction = magnitude & 0x7fffffu;
  bool goes_up = fraction > 0x400000u || (fraction == 0x400000u && exponent != 0);
  float8_e8m0fnu result;
  result.bits = magnitude >= 0x7f800000u ? uint8_t(0xff) : uint8_t(exponent + goes_up);
  return result;
}

#define CONVERSION_TO_FLOAT8(TYPE)                                                            \
  template <class From> struct conversion<TYPE, From> {                                       \
    static __device__ __forceinline__ TYPE of(From x) { return to_##TYPE(static_cast<float>(x)); } \
  };
CONVERSION_TO_FLOAT8(float8_e4m3fn)
CONVERSION_TO_FLOAT8(float8_e5m2)
CONVERSION_TO_FLOAT8(float8_e8m0fnu)
#undef CONVERSION_TO_FLOAT8
template <class To> static __device__ __forceinline__ To convert(float8_e4m3fn x) {
  return conversion<To, float>::of(to_float(x));
}
template <class To> static __device__ __forceinline__ To convert(float8_e5m2 x) {
  return conversion<To, float>::of(to_float(x));
}
template <class To> static __device__ __forceinline__ To convert(float8_e8m0fnu x) {
  return conversion<To, float>::of(to_float(x));
}
