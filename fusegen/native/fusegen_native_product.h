// fusegen's native call path: matrix products among a plan's steps, done by torch (fusegen/matmul/views.py).

#pragma once

#include "fusegen_native_fused.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_addmm_activation.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/python_headers.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace fusegen {

// A tensor in a matrix product: where it begins, and the dimensions it is read with.
struct Factor {
  int64_t kind = 0, index = 0, offset = 0;  // as a Slot's
  std::vector<int64_t> sizes, strides;
};

// A product by an algorithm of cuBLASLt's, with an epilogue or without, as fusegen/matmul/libraries/cublaslt.py has
// planned it.
struct Planned {
  using Matmul = int (*)(
      void* handle, void* operation, const float* alpha, const void* a, void* a_layout, const void* b, void* b_layout,
      const float* beta, const void* c, void* c_layout, void* d, void* d_layout, void* algorithm, void* workspace,
      size_t workspace_size, void* stream);
  using SetAttribute = int (*)(void* operation, int attribute, const void* value, size_t size);
  Matmul matmul = nullptr;
  SetAttribute set_attribute = nullptr;
  void *handle = nullptr, *operation = nullptr, *right = nullptr, *left = nullptr, *result = nullptr;
  void* algorithm = nullptr;
  int64_t workspace = 0;
  int64_t pointers[2] = {};  // attributes that say where the bias and the activation's argument are; 0: there is none
  int64_t adds = 0;          // whether the product is added to what the result holds
  std::mutex mutex;          // the operation holds addresses
};

// result = left @ right; or left @ right + bias, or relu or gelu of that, as the library's epilogue; or
// result += left @ right. Or what surrounds a product whose sizes are rounded up: zeros in a strip, or a copy.
struct Product {
  enum Kind : int64_t { kNone, kRelu, kGelu, kBias, kZero, kCopy, kAdded, kPlanned, kFused };
  int64_t kind = kNone;
  std::unique_ptr<Planned> planned;
  std::unique_ptr<Fused> fused;
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::vector<Factor> factors;  // left, right, result, and the bias where there is one; or what is written, read
};

inline at::Tensor view(const Factor& factor, const char* base, at::ScalarType dtype, c10::Device device) {
  auto* data = const_cast<char*>(base) + factor.offset;
  return at::from_blob(
      data, factor.sizes, factor.strides, [](void*) {}, at::TensorOptions().dtype(dtype).device(device), device);
}

// Lets other Python threads run, if this thread was running Python.
class WithoutGil {
 public:
  WithoutGil() : state_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_) PyEval_RestoreThread(state_);
  }

 private:
  PyThreadState* state_;
};

// cuBLASLt counts columns first: the right factor is its first.
inline void multiply(Planned& planned, c10::ArrayRef<at::Tensor> tensors, void* stream) {
  const float one = 1, beta = planned.adds ? 1.0f : 0.0f;
  void* out = tensors[2].data_ptr();
  const at::Tensor workspace = at::empty({planned.workspace}, tensors[2].options().dtype(at::kByte));
  const std::lock_guard<std::mutex> alone(planned.mutex);
  int code = 0;
  size_t next = 3;
  for (const int64_t attribute : planned.pointers) {
    if (attribute == 0 || code != 0) continue;
    const void* where = tensors[next++].data_ptr();
    code = planned.set_attribute(planned.operation, static_cast<int>(attribute), &where, sizeof where);
  }
  if (code == 0) {
    code = planned.matmul(
        planned.handle, planned.operation, &one, tensors[1].data_ptr(), planned.right, tensors[0].data_ptr(),
        planned.left, &beta, out, planned.result, out, planned.result, planned.algorithm, workspace.data_ptr(),
        static_cast<size_t>(planned.workspace), stream);
  }
  if (code != 0) throw std::runtime_error("fusegen: cuBLASLt's error " + std::to_string(code));
}

// `base` says where an input or result begins. On torch's current stream, which is the launches' too.
template <class Base>
void multiply(const Product& product, c10::Device device, const Base& base, void* stream) {
  // Below autograd, and below autocast: what is computed in which dtype has been decided.
  const c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  c10::SmallVector<at::Tensor, 5> tensors;
  for (const Factor& factor : product.factors)
    tensors.push_back(view(factor, base(factor.kind, factor.index), product.dtype, device));
  if (product.kind == Product::kZero) {
    tensors[0].zero_();
    return;
  }
  if (product.kind == Product::kCopy) {
    tensors[0].copy_(tensors[1]);
    return;
  }
  at::Tensor& result = tensors[2];
  if (product.planned) {
    multiply(*product.planned, tensors, stream);
  } else if (product.fused) {
    multiply(*product.fused, tensors, stream);
  } else if (product.kind == Product::kAdded) {
    if (result.dim() == 2) {
      result.addmm_(tensors[0], tensors[1]);
    } else if (result.dim() == 3) {
      result.baddbmm_(tensors[0], tensors[1]);
    } else {
      result.add_(at::matmul(tensors[0], tensors[1]));
    }
  } else if (product.kind == Product::kBias) {
    at::addmm_out(result, tensors[3], tensors[0], tensors[1]);
  } else if (product.kind != Product::kNone) {
    at::_addmm_activation_out(result, tensors[3], tensors[0], tensors[1], 1, 1, product.kind == Product::kGelu);
  } else if (result.dim() == 2) {
    at::mm_out(result, tensors[0], tensors[1]);
  } else if (result.dim() == 3) {
    at::bmm_out(result, tensors[0], tensors[1]);
  } else {
    at::matmul_out(result, tensors[0], tensors[1]);
  }
}

}  // namespace fusegen
