// ---- functions whose results are rounded to half precision

// Functions of float whose relative error is below 2^-16, for results that will be rounded to half or
// bfloat16 (analysis/precision.py says which).  Part of the prelude, after arithmetic.cuh.  Special
// values are those of the usual functions, except that sigmoid and what is made of it is 0 where e^-x
// overflows, 1 + tanh(x) where it would be subnormal, and 1 + erf(x) decreases to 0 below x = -4.8.
// Powers of 2 and reciprocals are single instructions, with an error of 2 units in the last place, if
// subnormal numbers are 0 for them.

#if defined(__CUDACC_RTC__)
static __device__ __forceinline__ float normal_power_of_2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
static __device__ __forceinline__ float normal_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
#else
static inline float normal_or_0(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
static inline float normal_power_of_2(float x) { return normal_or_0(exp2f(normal_or_0(x))); }
static inline float normal_reciprocal(float x) { return normal_or_0(1.0f / normal_or_0(x)); }
#endif

static __device__ __forceinline__ float half_exp(float x) { return exp2f(x * 1.44269504f); }

// The divisor is scaled so that its reciprocal is a normal number.
static __device__ __forceinline__ float half_divide(float a, float b) {
  const float size = fabsf(b);
  const float scale = size > 0x1p64f ? 0x1p-64f : size < 0x1p-64f ? 0x1p64f : 1.0f;
  return a * scale * normal_reciprocal(b * scale);
}

static __device__ __forceinline__ float half_sigmoid(float x) {
  return near_reciprocal(1.0f + normal_power_of_2(x * -1.44269504f));
}

static __device__ __forceinline__ float half_silu(float x) { return x * half_sigmoid(x); }

// 1 + tanh(x) = 1 / (1/2 + e^-2x / 2) doesn't cancel for negative x.
static __device__ __forceinline__ float half_one_plus_tanh(float x) {
  return normal_reciprocal(fmaf(normal_power_of_2(x * -2.88539008f), 0.5f, 0.5f));
}

// 1 - 2 / (1 + e^2x), and near 0 the first terms of the series, x (1 - x^2 / 3 + 2 x^4 / 15).
static __device__ __forceinline__ float half_tanh(float x) {
  const float size = fabsf(x), square = x * x;
  const float part = normal_reciprocal(1.0f + normal_power_of_2(size * 2.88539008f));
  const float far = copysignf(fmaf(part, -2.0f, 1.0f), x);
  const float series = fmaf(square, 0.13333334f, -0.33333334f);
  const float near = x * fmaf(square, series, 1.0f);
  return size < 0.0625f ? near : far;
}

// 1 + erf(x) is erfc(y) for x < 0 and 2 - erfc(y) otherwise, with y = |x| and erfc(y) = 2^(y P(y)); the
// coefficients are those of devices/cpu/vector_math/half_precision/error_function.py.
static __device__ __forceinline__ float half_one_plus_erf(float x) {
  const float y = fabsf(x);
  float p = -1.8849436e-05f;
  p = fmaf(p, y, 0.00046354719f);
  p = fmaf(p, y, -0.0050879982f);
  p = fmaf(p, y, 0.033506893f);
  p = fmaf(p, y, -0.15181683f);
  p = fmaf(p, y, -0.91751933f);
  p = fmaf(p, y, -1.6279539f);
  const float small = normal_power_of_2(y * p);
  return x < 0.0f ? small : 2.0f - small;
}
