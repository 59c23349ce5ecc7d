// Operands transposed: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, forward                                               declared in ops/blends.py
//   below = abs(weight) < 0.5
//   d = end - input
//   out = where(below, input + weight * d, end - (1 - weight) * d)
// tiled transpose: end is contiguous along another axis, and is read through tiles in shared memory
extern "C" __global__ __launch_bounds__(256)
void lerp_forward_f32(const float* __restrict__ input_ptr,   // [D0, D1]
                      const float* __restrict__ end_ptr,     // [D0, D1]
                      const float* __restrict__ weight_ptr,  // [D0, D1]
                      float* __restrict__ out_ptr,           // [D0, D1]
                      int rows, int cols, int input_stride0, int end_stride1, int weight_stride0, int out_stride0) {
  // A block owns a tile of 32 x 32 elements: row by row of tiles.
  const int tiles_across = (cols + 31) / 32;
  const int tiles_down = (rows + 31) / 32;
  int rest = blockIdx.x;
  const int col0 = 32 * int(rest % tiles_across);
  rest /= tiles_across;
  const int row0 = 32 * int(rest % tiles_down);

  // What lies along the rows is read along them, a warp a row, and transposed in shared memory.
  FUSEGEN_SHARED(float, end_tile, [32][33]);
#pragma unroll
  for (int line = threadIdx.y; line < 32; line += 8) {
    const int row = row0 + threadIdx.x;
    const int col = col0 + line;
    if (row < rows && col < cols) {
      end_tile[line][threadIdx.x] = fg::load(end_ptr + row + col * end_stride1);
    }
  }
  __syncthreads();

#pragma unroll
  for (int line = threadIdx.y; line < 32; line += 8) {
    const int row = row0 + line;
    const int col = col0 + threadIdx.x;
    if (row < rows && col < cols) {
      const float input = fg::load(input_ptr + row * input_stride0 + col);
      const float end_ = end_tile[threadIdx.x][line];
      const float weight = fg::load(weight_ptr + row * weight_stride0 + col);
      const bool below = fg::abs(weight) < 0.5f;
      const float d = end_ - input;
      fg::store(out_ptr + row * out_stride0 + col, below ? input + weight * d : end_ - (1.0f - weight) * d);
    }
  }
}
