// ---- indices: never negative

// Arithmetic as torch has it: indices, extrema, integers, refused values.  Part of the prelude, after
// memory.cuh and under the same invariants.

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

// ---- a reciprocal that is at most a unit in the last place off, for all numbers

static __device__ __forceinline__ float near_reciprocal(float x) {
#if defined(__CUDACC_RTC__)
  float result;
  asm("rcp.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return 1.0f / x;
#endif
}
