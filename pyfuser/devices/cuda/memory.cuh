// ---- a vector of N elements that one instruction loads or stores

// Between registers and memory: vectors of elements, cache operators.  Part of the prelude, after
// number_types.cuh and under the same invariants.

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

// The same where `is_inside`, else N times another value.  What is chosen are whole words: elements
// that are narrower than a register would be moved to registers of their own first.
template <int N, class T>
static __device__ __forceinline__ void load_aligned_or(
    T* to, bool is_inside, const T* from, T otherwise) {
  constexpr int width = widest<T, N>::fitting;
  typedef typename word_of<sizeof(T) * width>::type word;
#pragma unroll
  for (int i = 0; i < N; i += width) {
    union { word bits; vector<T, width> elements; } chosen;
#pragma unroll
    for (int j = 0; j < width; ++j) chosen.elements.value[j] = otherwise;
    if (is_inside) chosen.bits = *reinterpret_cast<const word*>(from + i);
#pragma unroll
    for (int j = 0; j < width; ++j) to[i + j] = chosen.elements.value[j];
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

// A vector whose elements are stored `stride` apart, in the part of shared memory that a thread has
// interleaved with those of the others.
template <int N, class T>
static __device__ __forceinline__ void spread(T* to, int stride, const T* elements) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i * stride] = elements[i];
}

template <int N, class T>
static __device__ __forceinline__ void spread_aligned(T* to, int stride, const T* from) {
  T elements[N];
  load_aligned<N>(elements, from);
  spread<N>(to, stride, elements);
}

template <int N, class T>
static __device__ __forceinline__ void spread_contiguous(T* to, int stride, const T* from) {
  T elements[N];
  load_contiguous<N>(elements, from);
  spread<N>(to, stride, elements);
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

// ---- copies from global to shared memory of which a thread has many under way

#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800
template <class T> static __device__ __forceinline__ void begin_copy(T* to, const T* from) {
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from), "n"(sizeof(T)) : "memory");
}
static __device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
#else
template <class T> static __device__ __forceinline__ void begin_copy(T* to, const T* from) { *to = *from; }
static __device__ __forceinline__ void wait_for_copies() {}
#endif
