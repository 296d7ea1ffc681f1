// ---- operations that combine parts of a reduction

// Reductions and scans over the threads of a warp, a block, a grid.  Part of the prelude, after
// arithmetic.cuh and under the same invariants.

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
  // One more element of those that a thread adds, which are fewer than 2^32: converting 64 bits
  // takes four times as long.  Accumulators that have as many share the division.
  __device__ __forceinline__ welford<T> operator()(welford<T> a, T value) const {
    int64_t count = a.count + 1;
    T delta = value - a.mean, mean = a.mean + delta * (T(1) / T(uint32_t(count)));
    return welford<T>{mean, a.m2 + delta * (value - mean), count};
  }
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
