// The mathematical functions of CUDA C++, and the integer ones: libm's, and those that it lacks.  Part
// of simt.h.  They are declared here because the standard library's headers take longer to compile than
// most kernels.
#pragma once

#define HUGE_VAL __builtin_huge_val()
#define HUGE_VALF __builtin_huge_valf()
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define M_PI 3.14159265358979323846
#define M_2_SQRTPI 1.12837916709551257390

// ---------------------------------------------------------------- libm

// A function of libm for double and float; with its plain name for float, too, as in CUDA.
#define SIMT_OF_LIBM(name, parameters, float_parameters, arguments) \
  extern "C" double name parameters noexcept;                       \
  extern "C" float name##f float_parameters noexcept;               \
  inline float name float_parameters { return name##f arguments; }
#define SIMT_UNARY(name) SIMT_OF_LIBM(name, (double x), (float x), (x))
#define SIMT_BINARY(name) SIMT_OF_LIBM(name, (double x, double y), (float x, float y), (x, y))
SIMT_UNARY(acos)
SIMT_UNARY(acosh)
SIMT_UNARY(asin)
SIMT_UNARY(asinh)
SIMT_UNARY(atan)
SIMT_UNARY(atanh)
SIMT_UNARY(cbrt)
SIMT_UNARY(ceil)
SIMT_UNARY(cos)
SIMT_UNARY(cosh)
SIMT_UNARY(erf)
SIMT_UNARY(erfc)
SIMT_UNARY(exp)
SIMT_UNARY(exp2)
SIMT_UNARY(expm1)
SIMT_UNARY(fabs)
SIMT_UNARY(floor)
SIMT_UNARY(lgamma)
SIMT_UNARY(log)
SIMT_UNARY(log10)
SIMT_UNARY(log1p)
SIMT_UNARY(log2)
SIMT_UNARY(logb)
SIMT_UNARY(nearbyint)
SIMT_UNARY(rint)
SIMT_UNARY(round)
SIMT_UNARY(sin)
SIMT_UNARY(sinh)
SIMT_UNARY(sqrt)
SIMT_UNARY(tan)
SIMT_UNARY(tanh)
SIMT_UNARY(tgamma)
SIMT_UNARY(trunc)
SIMT_BINARY(atan2)
SIMT_BINARY(copysign)
SIMT_BINARY(fdim)
SIMT_BINARY(fmax)
SIMT_BINARY(fmin)
SIMT_BINARY(fmod)
SIMT_BINARY(hypot)
SIMT_BINARY(nextafter)
SIMT_BINARY(pow)
SIMT_BINARY(remainder)
SIMT_OF_LIBM(fma, (double x, double y, double z), (float x, float y, float z), (x, y, z))
SIMT_OF_LIBM(frexp, (double x, int* power), (float x, int* power), (x, power))
SIMT_OF_LIBM(ldexp, (double x, int power), (float x, int power), (x, power))
SIMT_OF_LIBM(modf, (double x, double* whole), (float x, float* whole), (x, whole))
#undef SIMT_BINARY
#undef SIMT_UNARY
#undef SIMT_OF_LIBM
extern "C" {
int abs(int) noexcept;
long labs(long) noexcept;
long long llabs(long long) noexcept;
long lrint(double) noexcept;
long lrintf(float) noexcept;
long long llrint(double) noexcept;
long long llrintf(float) noexcept;
long double erfcl(long double) noexcept;
long double expl(long double) noexcept;
long double fabsl(long double) noexcept;
long double logl(long double) noexcept;
long double sqrtl(long double) noexcept;
}

#define SIMT_CLASS(name)                                          \
  inline bool name(float x) { return __builtin_##name(x); }       \
  inline bool name(double x) { return __builtin_##name(x); }
SIMT_CLASS(isfinite)
SIMT_CLASS(isinf)
SIMT_CLASS(isnan)
SIMT_CLASS(signbit)
#undef SIMT_CLASS

// ---------------------------------------------------------------- what libm lacks

#define SIMT_MIN_MAX(type)                                          \
  inline type min(type a, type b) { return b < a ? b : a; }         \
  inline type max(type a, type b) { return a < b ? b : a; }
SIMT_MIN_MAX(int)
SIMT_MIN_MAX(unsigned)
SIMT_MIN_MAX(long)
SIMT_MIN_MAX(unsigned long)
SIMT_MIN_MAX(long long)
SIMT_MIN_MAX(unsigned long long)
#undef SIMT_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline double rsqrt(double x) { return (double)(1 / sqrtl((long double)x)); }
inline float rsqrtf(float x) { return (float)(1 / sqrt((double)x)); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

// Halley's method on erfc(x) - z; |z| is never close to 2, where erfc has no digits left.
inline long double simt_erfc_inverse(long double z) {
  long double x = z < 0.5L ? sqrtl(-logl(z)) : 0;
  for (int i = 0; i < 60; ++i) {
    long double step = (erfcl(x) - z) / (-M_2_SQRTPI * expl(-x * x));
    step /= 1 + x * step;
    x -= step;
    if (fabsl(step) <= 1e-18L * fabsl(x)) break;
  }
  return x;
}
inline double erfcinv(double z) {
  if (z == 0) return HUGE_VAL;
  if (z == 2) return -HUGE_VAL;
  if (!(z > 0 && z < 2)) return NAN;
  return (double)(z > 1 ? -simt_erfc_inverse(2 - (long double)z) : simt_erfc_inverse(z));
}
inline double erfinv(double y) {
  if (fabs(y) < 1e-9) return y * (1 / M_2_SQRTPI);
  if (fabs(y) == 1) return y * HUGE_VAL;
  if (!(fabs(y) < 1)) return NAN;
  return copysign((double)simt_erfc_inverse(1 - fabsl((long double)y)), y);
}
inline float erfinvf(float y) { return (float)erfinv(y); }
inline float erfcinvf(float z) { return (float)erfcinv(z); }
