// fusegen's native call path: matrix products among a plan's steps, done by torch (fusegen/wrap/products.py).

#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_addmm_activation.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>

#include <cstdint>
#include <vector>

namespace fusegen {

// A tensor in a matrix product: where it begins, and the dimensions it is read with.
struct Factor {
  int64_t kind, index, offset;  // as a Slot's
  std::vector<int64_t> sizes, strides;
};

// result = left @ right; or left @ right + bias, or relu or gelu of that, as the library's epilogue; or
// result += left @ right. Or what surrounds a product whose sizes are rounded up: zeros in a strip, or a copy.
struct Product {
  enum Closing : int64_t { kNone, kRelu, kGelu, kBias, kZero, kCopy, kAdded };
  int64_t closing;
  at::ScalarType dtype;
  std::vector<Factor> factors;  // left, right, result, and the bias where there is one; or what is written, read
};

inline at::Tensor view(const Factor& factor, const char* base, at::ScalarType dtype, c10::Device device) {
  auto* data = const_cast<char*>(base) + factor.offset;
  return at::from_blob(
      data, factor.sizes, factor.strides, [](void*) {}, at::TensorOptions().dtype(dtype).device(device), device);
}

// `base` says where an input or result begins. On torch's current stream, which is the launches' too.
template <class Base>
void multiply(const Product& product, c10::Device device, const Base& base) {
  const at::AutoDispatchBelowADInplaceOrView below;
  c10::SmallVector<at::Tensor, 4> tensors;
  for (const Factor& factor : product.factors)
    tensors.push_back(view(factor, base(factor.kind, factor.index), product.dtype, device));
  if (product.closing == Product::kZero) {
    tensors[0].zero_();
    return;
  }
  if (product.closing == Product::kCopy) {
    tensors[0].copy_(tensors[1]);
    return;
  }
  at::Tensor& result = tensors[2];
  if (product.closing == Product::kAdded) {
    if (result.dim() == 2) {
      result.addmm_(tensors[0], tensors[1]);
    } else if (result.dim() == 3) {
      result.baddbmm_(tensors[0], tensors[1]);
    } else {
      result.add_(at::matmul(tensors[0], tensors[1]));
    }
  } else if (product.closing == Product::kBias) {
    at::addmm_out(result, tensors[3], tensors[0], tensors[1]);
  } else if (product.closing != Product::kNone) {
    at::_addmm_activation_out(result, tensors[3], tensors[0], tensors[1], 1, 1, product.closing == Product::kGelu);
  } else if (result.dim() == 2) {
    at::mm_out(result, tensors[0], tensors[1]);
  } else if (result.dim() == 3) {
    at::bmm_out(result, tensors[0], tensors[1]);
  } else {
    at::matmul_out(result, tensors[0], tensors[1]);
  }
}

}  // namespace fusegen
