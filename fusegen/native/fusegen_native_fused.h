// fusegen's native call path: a product and its epilogue as one kernel of cuDNN's, as fusegen/matmul/libraries/cudnn.py
// has planned it.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace fusegen {

// Numbers as in cuDNN's header.
struct Fused {
  enum : int { kPack = 16, kInt64 = 3, kPointer = 6, kUnique = 1000, kPointers = 1001, kWorkspace = 1003 };
  int (*create)(int kind, void** descriptor) = nullptr;
  int (*set_attribute)(void* descriptor, int attribute, int type, int64_t count, const void* values) = nullptr;
  int (*finish)(void* descriptor) = nullptr;
  int (*execute)(void* handle, void* plan, void* pack) = nullptr;
  int (*destroy)(void* descriptor) = nullptr;
  int (*set_stream)(void* handle, void* stream) = nullptr;
  void *handle = nullptr, *plan = nullptr;
  int64_t workspace = 0;
  std::vector<int64_t> unique;     // the library's numbers of left, right, result, bias and argument, and constants
  std::vector<int64_t> constants;  // where they are
};

inline void multiply(const Fused& fused, c10::ArrayRef<at::Tensor> tensors, void* stream) {
  static std::mutex alone;  // a handle is one thread's at a time, and all plans of a device share one
  const at::Tensor workspace = at::empty({fused.workspace}, tensors[2].options().dtype(at::kByte));
  const void* scratch = workspace.data_ptr();
  std::vector<const void*> pointers;
  for (const at::Tensor& tensor : tensors) pointers.push_back(tensor.data_ptr());
  for (const int64_t address : fused.constants) pointers.push_back(reinterpret_cast<const void*>(address));
  const auto count = static_cast<int64_t>(pointers.size());
  void* pack = nullptr;
  int code = fused.create(Fused::kPack, &pack);
  if (!code) code = fused.set_attribute(pack, Fused::kUnique, Fused::kInt64, count, fused.unique.data());
  if (!code) code = fused.set_attribute(pack, Fused::kPointers, Fused::kPointer, count, pointers.data());
  if (!code) code = fused.set_attribute(pack, Fused::kWorkspace, Fused::kPointer, 1, &scratch);
  if (!code) code = fused.finish(pack);
  if (!code) {
    const std::lock_guard<std::mutex> guard(alone);
    code = fused.set_stream(fused.handle, stream);
    if (!code) code = fused.execute(fused.handle, fused.plan, pack);
  }
  if (pack != nullptr) fused.destroy(pack);
  if (code) throw std::runtime_error("fusegen: cuDNN's status " + std::to_string(code));
}

}  // namespace fusegen
