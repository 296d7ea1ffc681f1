typedef int64_t index_t;

extern "C" __global__ void __launch_bounds__(1024, 1) tiled_transpose(
    const float* __restrict__ T0,  // [i0, i1] by strides [i1, 1]
    float* T1,  // [i1, i0]
    index_t i0,
    index_t i1) {
  const index_t blockIdx_x = blockIdx.x;
  const index_t threadIdx_x = threadIdx.x;
  const index_t threadIdx_y = threadIdx.y;
  __shared__ __align__(16) float T2[1024];
  const index_t blockIdx_y = blockIdx.y + blockIdx.z * gridDim.y;
  if (blockIdx_y >= ceil_divide<index_t>(i0, 32)) return;
  if (blockIdx_y*32 + threadIdx_y < i0 && blockIdx_x*32 + threadIdx_x < i1) {
    T2[threadIdx_x + threadIdx_y*32] = T0[blockIdx_y*i1*32 + threadIdx_y*i1 + blockIdx_x*32 + threadIdx_x];
  }
  __syncthreads();
  if (blockIdx_y*32 + threadIdx_x < i0 && blockIdx_x*32 + threadIdx_y < i1) {
    T1[blockIdx_x*i0*32 + threadIdx_y*i0 + blockIdx_y*32 + threadIdx_x] = T2[threadIdx_x*32 + threadIdx_y];
  }
}
