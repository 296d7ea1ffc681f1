typedef int64_t index_t;

extern "C" __global__ void __launch_bounds__(128, 1) add_chain(
    const float* __restrict__ T0,  // [i0, i1] by strides [i1, 1]
    const float* __restrict__ T1,  // [i0, i1] by strides [i1, 1]
    float* T3,  // [i0, i1]
    index_t i0,
    index_t i1) {
  const index_t blockIdx_x = blockIdx.x;
  const index_t threadIdx_x = threadIdx.x;
  float T2[4];
  // T2 = add(T1, 2.0)
  #pragma unroll
  for (index_t j1 = 0; j1 < 4; ++j1) {
    if (blockIdx_x*512 + j1*128 + threadIdx_x < i0*i1) {
      T2[j1] = T1[blockIdx_x*512 + j1*128 + threadIdx_x] + 2.0f;
    }
  }
  // T3 = add(T0, T2)
  #pragma unroll
  for (index_t j3 = 0; j3 < 4; ++j3) {
    if (blockIdx_x*512 + j3*128 + threadIdx_x < i0*i1) {
      T3[blockIdx_x*512 + j3*128 + threadIdx_x] = T0[blockIdx_x*512 + j3*128 + threadIdx_x] + T2[j3];
    }
  }
}
