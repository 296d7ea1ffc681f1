extern "C" __global__ void __launch_bounds__(128) grid_sum_phase0(
    const float* __restrict__ T0,  // [i0] by strides [1]
    int64_t i0,
    float* T4) {  // [ceildiv(i0, 512)]
  const int64_t blockIdx_x = blockIdx.x;
  const int64_t threadIdx_x = threadIdx.x;
  __shared__ __align__(16) unsigned char reduction_scratch[512];
  float T3 = 0.0f;
  // T3 = sum(T0)
  for (int64_t j1 = 0; j1 < minimum<int64_t>(4, (maximum<int64_t>(i0 - blockIdx_x*512, 0) / 128)); ++j1) {
    T3 = T3 + T0[blockIdx_x*512 + j1*128 + threadIdx_x];
  }
  // T3 = sum(T0)
  for (int64_t j1 = minimum<int64_t>(4, (maximum<int64_t>(i0 - blockIdx_x*512, 0) / 128)); j1 < 4; ++j1) {
    if (blockIdx_x*512 + j1*128 + threadIdx_x < i0) {
      T3 = T3 + T0[blockIdx_x*512 + j1*128 + threadIdx_x];
    }
  }
  if (threadIdx_x == 0) {
    T4[blockIdx_x] = 0.0f;
  }
  const float T4_own = T3;
  const float T4_total = block_reduce<true, false, false>(T4_own, sum_of<float>(), reinterpret_cast<float*>(reduction_scratch));
  if (threadIdx_x == 0) {
    T4[blockIdx_x] = T4[blockIdx_x] + T4_total;
  }
}

extern "C" __global__ void __launch_bounds__(1) grid_sum_phase1(
    float* T2,  // []
    int64_t i0,
    const float* __restrict__ T4) {  // [ceildiv(i0, 512)]
  float T1 = 0.0f;
  // T1 = sum(T4)
  for (int64_t j5 = 0; j5 < ceil_divide(i0, 512); ++j5) {
    T1 = T1 + T4[j5];
  }
  T2[0] = T1 * 2.0f;
}
