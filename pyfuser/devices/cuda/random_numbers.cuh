// ---- random numbers: Philox 4x32-10, uniform and normal

// pyfuser/ops/random_numbers.py defines them.  It follows reductions.cuh, under the same
// invariants: without contraction to fused multiply-add, each number has the bits that the reference
// and the CPU's kernels give it.

struct philox_words { uint32_t word[4]; };

static __device__ __forceinline__ philox_words philox(uint64_t call, uint64_t offset,
                                                      uint64_t seed) {
  uint32_t a = uint32_t(call), b = uint32_t(call >> 32);
  uint32_t c = uint32_t(offset), d = uint32_t(offset >> 32);
  uint32_t k = uint32_t(seed), m = uint32_t(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    uint64_t first = uint64_t(0xd2511f53u) * a, second = uint64_t(0xcd9e8d57u) * c;
    a = uint32_t(second >> 32) ^ b ^ k;
    b = uint32_t(second);
    c = uint32_t(first >> 32) ^ d ^ m;
    d = uint32_t(first);
    k += 0x9e3779b9u;
    m += 0xbb67ae85u;
  }
  return philox_words{{a, b, c, d}};
}

// The word of that number, without an array in memory.
static __device__ __forceinline__ uint32_t picked(const philox_words& words, int64_t number) {
  uint32_t low = number & 1 ? words.word[1] : words.word[0];
  uint32_t high = number & 1 ? words.word[3] : words.word[2];
  return number & 2 ? high : low;
}

template <class T> struct random_format;
template <> struct random_format<float> {
  typedef int32_t integer;
  static constexpr int32_t half_root = 0x3f3504f3;  // sqrt(1/2)
  static constexpr int mantissa = 23, logarithm_terms = 5, sine_terms = 7;
  static __device__ __forceinline__ float of(int32_t bits) {
    return __builtin_bit_cast(float, bits);
  }
};
template <> struct random_format<double> {
  typedef int64_t integer;
  static constexpr int64_t half_root = 0x3fe6a09e667f3bcd;
  static constexpr int mantissa = 52, logarithm_terms = 11, sine_terms = 12;
  static __device__ __forceinline__ double of(int64_t bits) {
    return __builtin_bit_cast(double, bits);
  }
};

// sqrt(-2 ln x) for x in (0, 1]: 2 s + s^3 (2/3 + 2/5 s^2 + ...) of the part near 1.
template <class T> static __device__ __forceinline__ T random_radius(T fraction) {
  typedef random_format<T> format;
  typedef typename format::integer integer;
  integer bits = __builtin_bit_cast(integer, fraction);
  integer exponent = (bits - format::half_root) >> format::mantissa;
  T rest = format::of(bits - exponent * (integer(1) << format::mantissa)) - T(1);
  T s = rest / (rest + T(2)), square = s * s;
  T series = T(2.0 / (2 * format::logarithm_terms + 1));
#pragma unroll
  for (int k = format::logarithm_terms - 1; k > 0; --k) {
    series = series * square + T(2.0 / (2 * k + 1));
  }
  T scaled = T(exponent) * T(0x1.62e42fefa39efp-1);
  return sqrt((scaled + (s * (square * series) + (s + s))) * T(-2));
}

// The sine of an angle of which all values of the integer are a whole turn.
template <class T>
static __device__ __forceinline__ T random_sine(typename random_format<T>::integer turn) {
  typedef random_format<T> format;
  typedef typename format::integer integer;
  typedef typename unsigned_of<integer>::type whole;
  constexpr double coefficients[12] = {
      0x1.921fb54442d18p+0, -0x1.4abbce625be52p-1, 0x1.466bc6775aae1p-4,
      -0x1.32d2cce62bd84p-8, 0x1.50783487ee77fp-13, -0x1.e3074fde8871cp-19,
      0x1.e8f434d018d5fp-25, -0x1.6fadb9f155740p-31, 0x1.aaec32af93355p-38,
      -0x1.8a404211f9542p-45, 0x1.2877020d52cecp-52, -0x1.7215f879e1ac2p-60,
  };
  const integer quarter = integer(1) << (8 * sizeof(integer) - 2);
  if (turn > quarter || turn < -quarter) {
    turn = integer((whole(1) << (8 * sizeof(integer) - 1)) - whole(turn));
  }
  T quarters = T(turn) * (T(1) / T(quarter)), square = quarters * quarters;
  T series = T(coefficients[format::sine_terms - 1]);
#pragma unroll
  for (int k = format::sine_terms - 2; k >= 0; --k) series = series * square + T(coefficients[k]);
  return quarters * series;
}

// The words of the last call, which serve all of its numbers: a thread's neighbouring elements take
// theirs one after the other.  No call has this number at first.
struct philox_group {
  uint64_t call = ~uint64_t(0);
  philox_words words;
  __device__ __forceinline__ const philox_words& at(uint64_t wanted, int64_t offset, int64_t seed) {
    if (wanted != call) {
      words = philox(wanted, offset, seed);
      call = wanted;
    }
    return words;
  }
};

// The numbers of a seed and an offset.
template <class T> struct random_numbers;
template <> struct random_numbers<float> {
  philox_group group;
  __device__ __forceinline__ float uniform(int64_t seed, int64_t offset, int64_t index) {
    const philox_words& words = group.at(uint64_t(index) >> 2, offset, seed);
    return float(picked(words, index) >> 8) * 0x1p-24f;
  }
  __device__ __forceinline__ float normal(int64_t seed, int64_t offset, int64_t index) {
    const philox_words& words = group.at(uint64_t(index) >> 2, offset, seed);
    float fraction = float(picked(words, index & 2)) * 0x1p-32f + 0x1p-33f;
    uint32_t turn = picked(words, index | 1) + (uint32_t(~index & 1) << 30);
    return random_radius(fraction) * random_sine<float>(int32_t(turn));
  }
};
template <> struct random_numbers<double> {
  philox_group group;
  static __device__ __forceinline__ uint64_t joined(uint32_t high, uint32_t low) {
    return uint64_t(high) << 32 | low;
  }
  __device__ __forceinline__ double uniform(int64_t seed, int64_t offset, int64_t index) {
    const philox_words& words = group.at(uint64_t(index) >> 1, offset, seed);
    uint64_t own = joined(picked(words, index << 1), picked(words, index << 1 | 1));
    return double(own >> 11) * 0x1p-53;
  }
  __device__ __forceinline__ double normal(int64_t seed, int64_t offset, int64_t index) {
    const philox_words& words = group.at(uint64_t(index) >> 1, offset, seed);
    double fraction = double(joined(words.word[0], words.word[1]) >> 11) * 0x1p-53 + 0x1p-54;
    uint64_t turn = joined(words.word[2], words.word[3]) + (uint64_t(~index & 1) << 62);
    return random_radius(fraction) * random_sine<double>(int64_t(turn));
  }
};

// A half-precision type gets the float without the bits that it can't hold: rounding would give 1.
template <> struct random_numbers<half> {
  random_numbers<float> wide;
  __device__ __forceinline__ half uniform(int64_t seed, int64_t offset, int64_t index) {
    const float value = wide.uniform(seed, offset, index);
    return to_half(__uint_as_float(__float_as_uint(value) & 0xffffe000u));
  }
  __device__ __forceinline__ half normal(int64_t seed, int64_t offset, int64_t index) {
    return to_half(wide.normal(seed, offset, index));
  }
};
template <> struct random_numbers<bfloat16> {
  random_numbers<float> wide;
  __device__ __forceinline__ bfloat16 uniform(int64_t seed, int64_t offset, int64_t index) {
    const float value = wide.uniform(seed, offset, index);
    return to_bfloat16(__uint_as_float(__float_as_uint(value) & 0xffff0000u));
  }
  __device__ __forceinline__ bfloat16 normal(int64_t seed, int64_t offset, int64_t index) {
    return to_bfloat16(wide.normal(seed, offset, index));
  }
};
