extern "C" __global__ void __launch_bounds__(128) two_step_sum(
    const float* __restrict__ T0,  // [i0, i1] by strides [i1, 1]
    float* T1,  // [i0]
    int64_t i0,
    int64_t i1) {
  const int64_t blockIdx_x = blockIdx.x;
  const int64_t threadIdx_x = threadIdx.x;
  __shared__ __align__(16) unsigned char reduction_scratch[512];
  float T2 = 0.0f;
  // T2 = sum(T0)
  for (int64_t j1 = 0; j1 < (i1 / 128); ++j1) {
    T2 = T2 + T0[blockIdx_x*i1 + j1*128 + threadIdx_x];
  }
  // T2 = sum(T0)
  for (int64_t j1 = (i1 / 128); j1 < ceil_divide(i1, 128); ++j1) {
    if (j1*128 + threadIdx_x < i1) {
      T2 = T2 + T0[blockIdx_x*i1 + j1*128 + threadIdx_x];
    }
  }
  if (threadIdx_x == 0) {
    T1[blockIdx_x] = 0.0f;
  }
  const float T1_own = T2;
  const float T1_total = block_reduce<true, false, false>(T1_own, sum_of<float>(), reinterpret_cast<float*>(reduction_scratch));
  if (threadIdx_x == 0) {
    T1[blockIdx_x] = T1[blockIdx_x] + T1_total;
  }
}
