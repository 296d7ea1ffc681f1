// The prelude of generated CUDA kernels: fixed-width types, half and bfloat16 storage, constants,
// torch's arithmetic where C++ differs from it, vector loads, block and grid reductions.  The text
// goes before a kernel's own, because NVRTC has no headers: of the sections, which `// ----` begins,
// those that the kernel uses (device_helpers.py).  What a section defines begins at the start of a
// line, and the specialisations of a template are in its section.
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

static __device__ __forceinline__ float to_float(bfloat16 x) {
  return __uint_as_float(uint32_t(x.bits) << 16);
}

static __device__ __forceinline__ bfloat16 to_bfloat16(float x) {
  bfloat16 result;
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

// ---- a vector of N elements that one instruction loads or stores

template <class T, int N> struct __align__(sizeof(T) * N) vector { T value[N]; };

template <int Bytes> struct word_of;
template <> struct word_of<1> { typedef uint8_t type; };
template <> struct word_of<2> { typedef uint16_t type; };
template <> struct word_of<4> { typedef uint32_t type; };
template <> struct word_of<8> { typedef uint2 type; };
template <> struct word_of<16> { typedef uint4 type; };

template <class T, int N>
static __device__ __forceinline__ vector<T, N> load_vector(const T* from) {
  typedef typename word_of<sizeof(T) * N>::type word;
  union { word bits; vector<T, N> elements; } result;
  result.bits = *reinterpret_cast<const word*>(from);
  return result.elements;
}

template <class T, int N>
static __device__ __forceinline__ void store_vector(T* to, const vector<T, N>& elements) {
  typedef typename word_of<sizeof(T) * N>::type word;
  union { word bits; vector<T, N> elements; } value;
  value.elements = elements;
  *reinterpret_cast<word*>(to) = value.bits;
}

// N consecutive elements between registers and memory, by the widest vectors that N consists of, if
// the memory is aligned to them.
template <class T, int N> struct widest {
  static constexpr int fitting = sizeof(T) * N > 16 ? 16 / sizeof(T) : N;
  static constexpr int bytes = sizeof(T) * fitting;
};

template <int Bytes> static __device__ __forceinline__ bool is_aligned(const void* address) {
  return reinterpret_cast<uint64_t>(address) % Bytes == 0;
}

template <int N, class T>
static __device__ __forceinline__ void load_aligned(T* to, const T* from) {
  constexpr int width = widest<T, N>::fitting;
#pragma unroll
  for (int i = 0; i < N; i += width) {
    const vector<T, width> elements = load_vector<T, width>(from + i);
#pragma unroll
    for (int j = 0; j < width; ++j) to[i + j] = elements.value[j];
  }
}

template <int N, class T>
static __device__ __forceinline__ void store_aligned(T* to, const T* from) {
  constexpr int width = widest<T, N>::fitting;
#pragma unroll
  for (int i = 0; i < N; i += width) {
    vector<T, width> elements;
#pragma unroll
    for (int j = 0; j < width; ++j) elements.value[j] = from[i + j];
    store_vector(to + i, elements);
  }
}

template <int N, class T>
static __device__ __forceinline__ void load_contiguous(T* to, const T* from) {
  if (is_aligned<widest<T, N>::bytes>(from)) {
    load_aligned<N>(to, from);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = from[i];
  }
}

template <int N, class T>
static __device__ __forceinline__ void store_contiguous(T* to, const T* from) {
  if (is_aligned<widest<T, N>::bytes>(to)) {
    store_aligned<N>(to, from);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = from[i];
  }
}

// ---- loads with a cache operator

template <class T> static __device__ __forceinline__ auto word_at(const T* from) {
  return reinterpret_cast<const typename word_of<sizeof(T)>::type*>(from);
}
template <class T, class Word> static __device__ __forceinline__ T from_word(Word raw) {
  T value;
  memcpy(&value, &raw, sizeof(T));
  return value;
}
template <class T> static __device__ __forceinline__ T load_all_levels(const T* from) {
  return from_word<T>(__ldca(word_at(from)));
}
template <class T> static __device__ __forceinline__ T load_streaming(const T* from) {
  return from_word<T>(__ldcs(word_at(from)));
}
template <class T> static __device__ __forceinline__ T load_global(const T* from) {
  return from_word<T>(__ldcg(word_at(from)));
}

// ---- indices: never negative

template <class T> static __device__ __forceinline__ T ceil_divide(T a, T b) {
  return (a + b - 1) / b;
}

// ---- extrema

template <class T> static __device__ __forceinline__ T minimum(T a, T b) {
  return b != b || b < a ? b : a;  // NaN if either is; a if they are equal, as zeros are
}
template <class T> static __device__ __forceinline__ T maximum(T a, T b) {
  return b != b || b > a ? b : a;
}
// A number wins over NaN; which of two zeros is given isn't specified.
template <class T> static __device__ __forceinline__ T lesser_number(T a, T b) {
  if constexpr (sizeof(T) == 4 && is_floating<T>::value) return fminf(a, b);
  else if constexpr (is_floating<T>::value) return fmin(a, b);
  else return minimum(a, b);
}
template <class T> static __device__ __forceinline__ T greater_number(T a, T b) {
  if constexpr (sizeof(T) == 4 && is_floating<T>::value) return fmaxf(a, b);
  else if constexpr (is_floating<T>::value) return fmax(a, b);
  else return maximum(a, b);
}

// ---- integers wrap

template <class T> static __device__ __forceinline__ T wrapping_negate(T a) {
  return T(typename unsigned_of<T>::type(0) - typename unsigned_of<T>::type(a));
}
template <class T> static __device__ __forceinline__ T wrapping_add(T a, T b) {
  return T(typename unsigned_of<T>::type(a) + typename unsigned_of<T>::type(b));
}
template <class T> static __device__ __forceinline__ T wrapping_subtract(T a, T b) {
  return T(typename unsigned_of<T>::type(a) - typename unsigned_of<T>::type(b));
}
template <class T> static __device__ __forceinline__ T wrapping_multiply(T a, T b) {
  return T(uint64_t(a) * uint64_t(b));
}

// ---- values that torch refuses

// Refuses what torch refuses: the launch fails, as an assertion in a kernel of torch does.
static __device__ __forceinline__ void require(bool holds, const char* what) {
  if (!holds) __assertfail(what, "pyfuser", 0, "kernel", 1);
}
static __device__ __forceinline__ int64_t checked_index(int64_t i, int64_t size) {
  require(uint64_t(i) < uint64_t(size), "index out of range");
  return i;
}
static __device__ __forceinline__ int64_t wrapped_index(int64_t i, int64_t size) {
  return checked_index(i < 0 ? i + size : i, size);
}

// ---- arithmetic where torch and C++ differ: dividing by zero gives zero

// Rounds toward zero.  The lowest value divided by -1 is itself, which C++ leaves undefined.
template <class T> static __device__ __forceinline__ T truncating_divide(T a, T b) {
  if (b == T(0)) return T(0);
  if (limits<T>::is_signed && b == T(-1)) return wrapping_negate(a);
  return T(a / b);
}
template <class T> static __device__ __forceinline__ T truncating_modulo(T a, T b) {
  return b == T(0) || (limits<T>::is_signed && b == T(-1)) ? T(0) : T(a % b);
}

// The remainder with the divisor's sign, as Python's %.
template <class T> static __device__ __forceinline__ T floor_modulo(T a, T b) {
  T result = truncating_modulo(a, b);
  return result != T(0) && (result < T(0)) != (b < T(0)) ? T(result + b) : result;
}
static __device__ __forceinline__ float floor_modulo(float a, float b) {
  float result = fmodf(a, b);
  return result != 0.0f && (result < 0.0f) != (b < 0.0f) ? result + b : result;
}
static __device__ __forceinline__ double floor_modulo(double a, double b) {
  double result = fmod(a, b);
  return result != 0.0 && (result < 0.0) != (b < 0.0) ? result + b : result;
}

template <class T> static __device__ __forceinline__ T floor_divide(T a, T b) {
  T result = truncating_divide(a, b);
  return b != T(0) && truncating_modulo(a, b) != T(0) && (a < T(0)) != (b < T(0)) ? T(result - 1)
                                                                               : result;
}

template <class T> static __device__ __forceinline__ T greatest_common_divisor(T a, T b) {
  while (b != T(0)) {
    T remainder = truncating_modulo(a, b);
    a = b;
    b = remainder;
  }
  return a < T(0) ? wrapping_negate(a) : a;
}

// Negative exponents give the truncated reciprocal: 0, except for bases 1 and -1.
template <class T> static __device__ __forceinline__ T integer_power(T base, T exponent) {
  if (exponent < T(0)) {
    if (base == T(1)) return T(1);
    return base == T(-1) ? (exponent & T(1) ? T(-1) : T(1)) : T(0);
  }
  T result = T(1);
  for (uint64_t left = uint64_t(exponent); left != 0; left >>= 1) {
    if (left & 1) result = wrapping_multiply(result, base);
    base = wrapping_multiply(base, base);
  }
  return result;
}

// Shifts by less than zero, or by the type's width or more, shift everything out.
template <class T> static __device__ __forceinline__ T shift_left(T a, T b) {
  return b < T(0) || b >= T(8 * sizeof(T)) ? T(0) : T(uint64_t(a) << b);
}
template <class T> static __device__ __forceinline__ T shift_right(T a, T b) {
  constexpr int all = 8 * sizeof(T) - 1;
  if (b >= T(0) && b <= T(all)) return T(a >> b);
  return limits<T>::is_signed ? T(a >> all) : T(0);
}
template <class T> static __device__ __forceinline__ T shift_right_logical(T a, T b) {
  typedef typename unsigned_of<T>::type bits;
  return b < T(0) || b >= T(8 * sizeof(T)) ? T(0) : T(bits(a) >> b);
}

// ---- operations that combine parts of a reduction

template <class T> struct sum_of {
  __device__ __forceinline__ T operator()(T a, T b) const {
    return wrapping_add(a, b);
  }
};
template <class T> struct product_of {
  __device__ __forceinline__ T operator()(T a, T b) const {
    if constexpr (is_floating<T>::value) return a * b;
    else return wrapping_multiply(a, b);
  }
};
template <class T> struct minimum_of {
  __device__ __forceinline__ T operator()(T a, T b) const { return minimum(a, b); }
};
template <class T> struct maximum_of {
  __device__ __forceinline__ T operator()(T a, T b) const { return maximum(a, b); }
};
template <class T> struct lesser_number_of {
  __device__ __forceinline__ T operator()(T a, T b) const { return lesser_number(a, b); }
};
template <class T> struct greater_number_of {
  __device__ __forceinline__ T operator()(T a, T b) const { return greater_number(a, b); }
};

// ---- values combined with an element of memory that other threads combine theirs with

template <int Bytes> struct atomic_word;
template <> struct atomic_word<2> { typedef unsigned short type; };
template <> struct atomic_word<4> { typedef unsigned int type; };
template <> struct atomic_word<8> { typedef unsigned long long type; };

template <class T, class V, class Combine>
static __device__ __forceinline__ void atomic_combine(T* address, V value, Combine combine) {
  typedef typename atomic_word<sizeof(T)>::type word;
  word* place = reinterpret_cast<word*>(address);
  word known = atomicCAS(place, word(0), word(0)), before;  // an atomic load
  do {
    before = known;
    T old, next;
    memcpy(&old, &before, sizeof(T));
    next = convert<T>(combine(convert<V>(old), value));
    word wanted;
    memcpy(&wanted, &next, sizeof(T));
    known = atomicCAS(place, before, wanted);
  } while (known != before);
}
static __device__ __forceinline__ void atomic_combine(float* address, float value, sum_of<float>) {
  atomicAdd(address, value);
}
static __device__ __forceinline__ void atomic_combine(
    double* address, double value, sum_of<double>) {
  atomicAdd(address, value);
}
static __device__ __forceinline__ void atomic_combine(
    int32_t* address, int32_t value, sum_of<int32_t>) {
  atomicAdd(reinterpret_cast<int*>(address), int(value));
}
static __device__ __forceinline__ void atomic_combine(
    int64_t* address, int64_t value, sum_of<int64_t>) {
  atomicAdd(
      reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
}

// ---- moments

// Mean, sum of squared deviations and count; Chan, Golub and LeVeque's rule combines two of them.
template <class T> struct welford {
  T mean, m2;
  int64_t count;
};
template <class T> struct welford_of {
  __device__ __forceinline__ welford<T> operator()(welford<T> a, welford<T> b) const {
    if (b.count == 0) return a;
    if (a.count == 0) return b;
    int64_t count = a.count + b.count;
    T delta = b.mean - a.mean, share = T(b.count) / T(count);
    return welford<T>{a.mean + delta * share,
                      a.m2 + b.m2 + delta * delta * T(a.count) * share, count};
  }
};

// ---- values of other lanes of the warp

// The value of another lane of the warp: `exchange` moves a word.
template <class T, class Exchange>
static __device__ __forceinline__ T shuffled(T value, Exchange exchange) {
  if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(T, exchange(__builtin_bit_cast(uint32_t, value)));
  } else if constexpr (sizeof(T) % 4 == 0) {
    union { T value; uint32_t words[sizeof(T) / 4]; } bits;
    bits.value = value;
#pragma unroll
    for (int i = 0; i < int(sizeof(T) / 4); ++i) bits.words[i] = exchange(bits.words[i]);
    return bits.value;
  } else {
    return T(exchange(uint32_t(int(value))));
  }
}
struct from_above {
  int delta;
  __device__ __forceinline__ uint32_t operator()(uint32_t word) const {
    return __shfl_up_sync(0xffffffffu, word, delta);
  }
};
struct from_below {
  int delta;
  __device__ __forceinline__ uint32_t operator()(uint32_t word) const {
    return __shfl_down_sync(0xffffffffu, word, delta);
  }
};
struct from_lane {
  int lane;
  __device__ __forceinline__ uint32_t operator()(uint32_t word) const {
    return __shfl_sync(0xffffffffu, word, lane);
  }
};

// ---- reductions over the threads of a block

// Combines `value` over the threads that differ only in the dimensions X, Y, Z that are set; each
// of them gets the result.  All threads of the block call it.  `scratch` is an element per thread
// in shared memory, free again on return.  A thread with nothing to add passes the identity.
// Threads that share a warp need neither the scratch nor a barrier.  The sizes are the block's, 0 if
// only the launch knows: of the ways below, one is left if they are given.
template <bool X, bool Y, bool Z, unsigned XSize = 0, unsigned YSize = 0, unsigned ZSize = 0,
          class T, class Operation>
static __device__ T block_reduce(T value, Operation operation, T* scratch) {
  const unsigned x = threadIdx.x, y = threadIdx.y, z = threadIdx.z;
  const unsigned x_size = XSize ? XSize : blockDim.x, y_size = YSize ? YSize : blockDim.y;
  const unsigned z_size = ZSize ? ZSize : blockDim.z;
  const unsigned members = (X ? x_size : 1) * (Y ? y_size : 1) * (Z ? z_size : 1);
  const unsigned member =
      (X ? x : 0) + (X ? x_size : 1) * ((Y ? y : 0) + (Y ? y_size : 1) * (Z ? z : 0));
  const unsigned group =
      (X ? 0 : x) + (X ? 1 : x_size) * ((Y ? 0 : y) + (Y ? 1 : y_size) * (Z ? 0 : z));
  // The members of a group are neighbours in their warps if the dimensions are the fastest ones.
  const bool neighbours = X && (Y || !Z || y_size == 1);
  T result;
  if (neighbours && 32 % members == 0 && x_size * y_size * z_size % 32 == 0) {
    for (int delta = members / 2; delta > 0; delta /= 2) {
      value = operation(value, shuffled(value, from_below{delta}));
    }
    return shuffled(value, from_lane{int((x + x_size * (y + y_size * z) - member) % 32)});
  }
  if (neighbours && members % 32 == 0) {
    for (int delta = 16; delta > 0; delta /= 2) {
      value = operation(value, shuffled(value, from_below{delta}));
    }
    const unsigned warps = members / 32;
    T* partial = scratch + group * warps;
    if (member % 32 == 0) partial[member / 32] = value;
    __syncthreads();
    result = partial[0];
    for (unsigned i = 1; i < warps; ++i) result = operation(result, partial[i]);
  } else {
    // Threads that differ only in x access adjacent elements, which are in different banks.
    const unsigned groups = x_size * y_size * z_size / members, step = X ? 1 : groups;
    T* partial = scratch + (X ? group * members : group);
    partial[member * step] = value;
    unsigned half_size = 1;
    while (half_size * 2 < members) half_size *= 2;
#pragma unroll 1  // its addresses would take registers, and the barriers take longer than the loop
    for (; half_size > 0; half_size /= 2) {
      __syncthreads();
      if (member < half_size && member + half_size < members) {
        value = operation(value, partial[(member + half_size) * step]);
        partial[member * step] = value;
      }
    }
    __syncthreads();
    result = partial[0];
  }
  __syncthreads();
  return result;
}

// ---- scans along the threads of a block

// Combines `value` with those of the threads before it along the dimension X, Y or Z that is set;
// `total` is the last of these results, in all of the threads.  All threads of the block call it.
// `scratch` is an element per thread in shared memory, free again on return.  A thread with nothing
// to add passes the identity.  `operation` takes what comes later first.  The sizes are the block's,
// 0 if only the launch knows.
template <bool X, bool Y, bool Z, unsigned XSize = 0, unsigned YSize = 0, unsigned ZSize = 0,
          class T, class Operation>
static __device__ T block_scan(T value, Operation operation, T* scratch, T& total) {
  const unsigned x = threadIdx.x, y = threadIdx.y, z = threadIdx.z;
  const unsigned x_size = XSize ? XSize : blockDim.x, y_size = YSize ? YSize : blockDim.y;
  const unsigned z_size = ZSize ? ZSize : blockDim.z;
  const unsigned members = X ? x_size : Y ? y_size : z_size;
  const unsigned member = X ? x : Y ? y : z;
  const unsigned group =
      (X ? 0 : x) + (X ? 1 : x_size) * ((Y ? 0 : y) + (Y ? 1 : y_size) * (Z ? 0 : z));
  if (X && members % 32 == 0) {
    const unsigned lane = member % 32, warp = member / 32, warps = members / 32;
    for (unsigned delta = 1; delta < 32; delta *= 2) {
      const T before = shuffled(value, from_above{int(delta)});
      if (lane >= delta) value = operation(value, before);
    }
    T* partial = scratch + group * warps;
    if (lane == 31) partial[warp] = value;
    __syncthreads();
    total = partial[0];
    for (unsigned i = 1; i < warps; ++i) {
      if (i == warp) value = operation(value, total);
      total = operation(partial[i], total);
    }
  } else {
    T* partial = scratch + group * members;
    partial[member] = value;
    __syncthreads();
    for (unsigned delta = 1; delta < members; delta *= 2) {
      const T before = partial[member >= delta ? member - delta : 0];
      __syncthreads();
      if (member >= delta) partial[member] = value = operation(value, before);
      __syncthreads();
    }
    total = partial[members - 1];
  }
  __syncthreads();
  return value;
}

// ---- reductions over the blocks of a grid

// True in all threads of the last of `blocks` blocks to arrive: it sees what the others wrote
// before they arrived, and finishes the work.  `arrived` is 0 before the launch and after it.
static __device__ __forceinline__ bool is_last_block(unsigned* arrived, unsigned blocks) {
  __threadfence();
  const bool first_thread = threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0;
  __syncthreads();
  const bool last = first_thread && atomicInc(arrived, blocks - 1) == blocks - 1;
  const bool result = __syncthreads_or(last) != 0;
  __threadfence();
  return result;
}
