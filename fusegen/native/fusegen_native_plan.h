// fusegen's native call path: what a call looks like (Key), and what is done for it (Plan).
//
// A Key lists everything a plan depends on: dtype, device, sizes, strides, alignment and requires_grad of each tensor,
// constants by value, Python numbers by type. A Plan has the results' layouts and the launches, whose argument blocks
// lack only pointers and numbers. Plans are made in Python (fusegen/pytorch/calls/native_cache.py) and arrive here
// as a list of 64-bit integers.

#pragma once

#define PY_SSIZE_T_CLEAN

#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include "fusegen_native_product.h"
#include "fusegen_native_table.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace fusegen {

// A Python number of a call: a kernel's scalar argument.
struct Number {
  char type = 'f';  // 'f' float, 'i' int, 'b' bool
  double real = 0;
  int64_t integer = 0;

  double as_double() const { return type == 'f' ? real : static_cast<double>(integer); }
};

struct Key {
  c10::SmallVector<uint64_t, 96> words;
  c10::SmallVector<PyObject*, 4> objects;  // strings and functions, compared as objects; owned by tables only

  void own() const {
    for (PyObject* object : objects) Py_INCREF(object);
  }

  void disown() const {
    for (PyObject* object : objects) Py_DECREF(object);
  }

  bool same(const Key& other) const { return words == other.words && same_objects(other); }

  uint64_t hash() const {
    uint64_t value = 0x9e3779b97f4a7c15u;
    for (uint64_t word : words) {
      value = (value ^ word) * 0xff51afd7ed558ccdu;
      value ^= value >> 32;
    }
    return value;
  }

 private:
  bool same_objects(const Key& other) const {
    for (size_t i = 0; i < objects.size(); ++i) {
      PyObject *x = objects[i], *y = other.objects[i];
      if (x != y && !(PyUnicode_CheckExact(x) && PyUnicode_CheckExact(y) && PyUnicode_Compare(x, y) == 0)) return false;
    }
    return true;
  }
};

// What every dense tensor may have beside its backend; anything else (subclasses, fake tensors, transforms, lazy
// negations, sparse layouts) is left to Python.
inline c10::DispatchKeySet harmless() {
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
}

// No dispatch mode and no transform is active in this thread.
inline bool plain_dispatch() {
  const auto included = c10::impl::tls_local_dispatch_key_set().included_;
  return (included - harmless() - c10::DispatchKeySet(c10::DispatchKey::BackendSelect)).empty();
}

inline PyTypeObject* device_context = nullptr;  // torch.utils._device.DeviceContext; null where torch has none

// Whether a __torch_function__ mode would see the call. torch.device as a context, and torch.set_default_device, are
// modes that only functions without tensors ask; a class of the user's, derived from theirs or of that name, may do
// more.
inline bool function_mode_sees() {
  if (!at::impl::torch_function_mode_enabled()) return false;
  using Modes = at::impl::PythonTorchFunctionTLS;
  for (int64_t i = 0; i < Modes::stack_len(); ++i) {
    const PyObject* mode = Modes::get_stack_at(i)->ptr(getPyInterpreter());
    if (Py_TYPE(mode) != device_context) return true;
  }
  return false;
}

// What torch.autocast says in this thread: an op may compute in another dtype under it.
inline uint64_t autocast_word() {
  const auto off = c10::impl::tls_local_dispatch_key_set().excluded_;
  const auto word = [&](c10::DispatchKey key, at::DeviceType device) -> uint64_t {
    return off.has(key) ? 0 : 1 + static_cast<uint64_t>(at::autocast::get_autocast_dtype(device));
  };
  return word(c10::DispatchKey::AutocastCPU, at::kCPU) << 8 | word(c10::DispatchKey::AutocastCUDA, at::kCUDA);
}

// Torch's settings of how GPUs multiply, which plans of products heed (fusegen/plan/frameworks.py, Settings).
inline uint64_t settings_word() {
  const at::Context& settings = at::globalContext();
  const auto carveout = settings._SMCarveout_EXPERIMENTAL();
  return uint64_t{settings.allowFP16AccumulationCuBLAS()} | uint64_t{settings.userEnabledCuDNN()} << 1 |
         uint64_t{carveout.has_value()} << 2 | static_cast<uint64_t>(static_cast<uint32_t>(carveout.value_or(0))) << 3;
}

// A tensor's words; false for a tensor that only Python can judge. `addresses` gets where its elements are.
inline bool add_tensor(Key& key, const at::Tensor& tensor, bool recording, c10::SmallVectorImpl<const char*>& addresses) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  const auto kind = impl->key_set() - harmless();
  const bool cuda = kind == c10::DispatchKeySet(c10::DispatchKey::CUDA);
  if (!cuda && kind != c10::DispatchKeySet(c10::DispatchKey::CPU)) return false;
  if (!impl->has_storage() || tensor._fw_grad(0).defined()) return false;
  const auto* address = static_cast<const char*>(impl->data());
  if (address == nullptr && impl->numel() > 0) return false;
  addresses.push_back(address);
  const auto sizes = impl->sizes(), strides = impl->strides();
  const uint64_t device = cuda ? 1 + static_cast<uint64_t>(static_cast<uint8_t>(impl->device().index())) : 0;
  key.words.push_back(
      uint64_t{1} << 60 | static_cast<uint64_t>(tensor.scalar_type()) | device << 8 |
      (reinterpret_cast<uintptr_t>(address) & 15) << 20 | uint64_t{recording && tensor.requires_grad()} << 24 |
      static_cast<uint64_t>(sizes.size()) << 32);
  key.words.append(sizes.begin(), sizes.end());
  key.words.append(strides.begin(), strides.end());
  return true;
}

struct Slot {
  enum Kind : int64_t { kInput, kResult, kWorkspace, kNumber };
  int64_t kind = kInput, index = 0, offset = 0;  // a fixed number has index -1 - (its place among the plan's fixed numbers)
  char format = 'Q';
};

// A launch, or a matrix product.
struct Step {
  std::unique_ptr<Product> product;
  void* function = nullptr;
  bool early = false;   // it may start while the step before drains (fusegen/launch/driver.py)
  unsigned shared = 0;  // bytes of shared memory by request
  unsigned grid[3] = {}, block[3] = {};
  std::vector<Slot> slots;  // slot i is at byte 8 i of the argument block
  std::vector<uint64_t> block_image;
  std::vector<uint32_t> offsets;  // of each kernel argument within the block
};

struct Result {
  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype = at::ScalarType::Undefined;
  int64_t first = -1, last = -1;  // of a tensor between steps: those that it lives through
};

// A launch that failed: fusegen's Python says what the code means.
struct LaunchFailure {
  size_t step = 0;
  int code = 0;
  std::string message;
};

using CudaLaunch = int (*)(
    void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
// CUlaunchConfig and CUlaunchAttribute.
struct CudaAttribute {
  unsigned id = 0, pad = 0;
  int value[16] = {};
};
struct CudaConfiguration {
  unsigned grid[3] = {}, block[3] = {}, shared = 0;
  void* stream = nullptr;
  const CudaAttribute* attributes = nullptr;
  unsigned count = 0;
};
static_assert(sizeof(CudaAttribute) == 72 && sizeof(CudaConfiguration) == 56);
using CudaLaunchEx = int (*)(const CudaConfiguration*, void*, void**, void**);
// What a kernel of the emulator begins with (fusegen/launch/emulator/fusegen_emulator.h).
using EmulatedLaunch = int (*)(
    const void*, const unsigned*, const unsigned*, void**, size_t, int, uint64_t, int, void**, char*, size_t);

struct Training;
struct Plan;
using Plans = Table<Key, Plan>;
using SharedPlans = SharedTable<Key, Plan>;

struct Plan {
  bool cuda = false;
  c10::DeviceIndex device = -1;
  CudaLaunch launch = nullptr;  // the driver's functions, and the device's context
  CudaLaunchEx launch_ex = nullptr;
  int (*get_context)(void**) = nullptr;
  int (*push_context)(void*) = nullptr;
  int (*pop_context)(void**) = nullptr;
  void* context = nullptr;
  int shuffle = 0, workers = 0;  // the emulator's mode
  uint64_t seed = 0;
  void** stack_slots = nullptr;
  int64_t workspace = 0;
  std::vector<int64_t> inputs;  // which of the call's tensors
  std::vector<Result> results;
  size_t visible = 0;  // results that the caller sees; those that follow are saved for the backward, or intermediates
  bool one = true;
  std::vector<int64_t> gradient_of;  // of a backward: the argument that each result is the gradient of (fusegen_native_node.h)
  // Of a backward: a gradient that is a cotangent, or the gradient of another argument.
  struct SharedGradient {
    int64_t argument = 0;
    bool is_gradient = false;
    int64_t index = 0;
  };
  std::vector<SharedGradient> shared_gradients;
  std::vector<Number> fixed;
  std::vector<Step> steps;
  bool multiplies = false;  // some step is a matrix product
  std::unique_ptr<Training> training;
  PyObject* fail = nullptr;

  Plan() = default;
  Plan(const Plan&) = delete;
  ~Plan();
};

// -- streams ----------------------------------------------------------------------------------------------------------

// A device's current stream, as torch numbers it and as the driver knows it. The driver's handle costs a call into
// torch's Python module, so the last one is remembered; numbers do not change their meaning.
struct Stream {
  int64_t id = 0;
  void* handle = nullptr;
};

inline int64_t current_stream_id(c10::DeviceIndex device) {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  return guard.getStream(c10::Device(c10::DeviceType::CUDA, device)).id();
}

inline PyObject* raw_stream_function = nullptr;  // torch._C._cuda_getCurrentRawStream

inline Stream current_stream(c10::DeviceIndex device) {
  static thread_local Stream last[256];  // a thread's own: dispatched calls do not hold the GIL
  static thread_local bool known[256];
  const int64_t id = current_stream_id(device);
  const auto at = static_cast<uint8_t>(device);
  if (!known[at] || last[at].id != id) {
    const pybind11::gil_scoped_acquire gil;
    auto index = THPObjectPtr(PyLong_FromLong(device));
    auto handle = THPObjectPtr(PyObject_CallFunctionObjArgs(raw_stream_function, index.get(), nullptr));
    if (!handle) {
      python_error error;
      error.persist();
      throw error;
    }
    last[at] = {id, PyLong_AsVoidPtr(handle.get())};
    known[at] = true;
  }
  return last[at];
}

// -- running ----------------------------------------------------------------------------------------------------------

inline void write_number(uint64_t* slot, char format, const Number& number) {
  *slot = 0;
  if (format == 'f') {
    const auto value = static_cast<float>(number.as_double());
    std::memcpy(slot, &value, sizeof value);
  } else if (format == 'd') {
    const double value = number.as_double();
    std::memcpy(slot, &value, sizeof value);
  } else if (format == '?') {
    const bool value = number.type == 'f' ? number.real != 0 : number.integer != 0;
    std::memcpy(slot, &value, sizeof value);
  } else {
    std::memcpy(slot, &number.integer, sizeof number.integer);
  }
}

// The device's context, current while this lives.
class InContext {
 public:
  explicit InContext(const Plan& plan) : plan_(plan) {
    void* current = nullptr;
    pushed_ = plan.get_context(&current) != 0 || current != plan.context;
    if (pushed_) {
      if (const int code = plan.push_context(plan.context)) throw LaunchFailure{0, code, ""};
    }
  }
  ~InContext() {
    void* popped = nullptr;
    if (pushed_) plan_.pop_context(&popped);
  }

 private:
  const Plan& plan_;
  bool pushed_;
};

// WithoutGil around a plan with matrix products, which take torch long on the CPU, and which it does without the GIL
// itself.
class MayFree {
 public:
  explicit MayFree(const Plan& plan) {
    if (plan.multiplies) free_.emplace();
  }

 private:
  std::optional<WithoutGil> free_;
};

inline int launch_early(const Plan& plan, const Step& step, void** params, void* stream) {
  static const CudaAttribute start_early = {6, 0, {1}};  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
  const CudaConfiguration configuration = {
      {step.grid[0], step.grid[1], step.grid[2]}, {step.block[0], step.block[1], step.block[2]}, step.shared, stream,
      &start_early, 1};
  return plan.launch_ex(&configuration, step.function, params, nullptr);
}

inline void launch(const Plan& plan, size_t at, const Step& step, void** params, void* stream) {
  if (plan.cuda) {
    const int code = step.early ? launch_early(plan, step, params, stream)
                                : plan.launch(
                                      step.function, step.grid[0], step.grid[1], step.grid[2], step.block[0],
                                      step.block[1], step.block[2], step.shared, stream, params, nullptr);
    if (code) throw LaunchFailure{at, code, ""};
    return;
  }
  char message[2048] = "";
  int code;
  {
    const WithoutGil free;
    code = (*static_cast<const EmulatedLaunch*>(step.function))(
        step.function, step.grid, step.block, params, step.shared, plan.shuffle, plan.seed, plan.workers,
        plan.stack_slots, message, sizeof message);
  }
  if (code) throw LaunchFailure{at, code, message};
}

inline c10::Device place_of(const Plan& plan) {
  return plan.cuda ? c10::Device(c10::DeviceType::CUDA, plan.device) : c10::Device(c10::DeviceType::CPU);
}

inline at::Tensor allocate(const Plan& plan, c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType dtype) {
  return at::empty_strided(sizes, strides, at::TensorOptions().dtype(dtype).device(place_of(plan)));
}

// A word that is not 0 while some GPU has found an index out of range, and Python's function that raises the error
// (fusegen/launch/reports.py).
inline const uint32_t no_reports = 0;
inline const volatile uint32_t* reports_word = &no_reports;
inline PyObject* look_at_reports = nullptr;

// watch_reports(address, function): from now on. Without an address nothing is looked at.
inline PyObject* watch_reports(PyObject*, PyObject* arguments) {
  unsigned long long address;
  PyObject* function;
  if (!PyArg_ParseTuple(arguments, "KO", &address, &function)) return nullptr;
  look_at_reports = Py_NewRef(function);  // a module's own, for as long as the process lives
  reports_word = address ? reinterpret_cast<const volatile uint32_t*>(static_cast<uintptr_t>(address)) : &no_reports;
  Py_RETURN_NONE;
}

// Throws Python's error for a report; another thread may have raised it meanwhile.
inline void raise_report() {
  const pybind11::gil_scoped_acquire gil;
  auto done = THPObjectPtr(PyObject_CallNoArgs(look_at_reports));
  if (done) return;
  python_error error;
  error.persist();
  throw error;
}

// Allocates results that are not there yet, and does everything on `stream`.
inline void run(
    const Plan& plan, const c10::SmallVectorImpl<const char*>& addresses, const c10::SmallVectorImpl<Number>& numbers,
    void* stream, c10::SmallVectorImpl<at::Tensor>& results) {
  if (*reports_word) raise_report();
  results.resize(plan.results.size());
  for (size_t i = 0; i < plan.results.size(); ++i) {
    const Result& result = plan.results[i];
    if (result.first < 0 && !results[i].defined())
      results[i] = allocate(plan, result.sizes, result.strides, result.dtype);
  }
  if (plan.steps.empty()) return;
  const auto base = [&](int64_t kind, int64_t index) {
    return kind == Slot::kInput ? addresses[plan.inputs[index]] : static_cast<const char*>(results[index].data_ptr());
  };
  at::Tensor workspace;
  if (plan.workspace) workspace = allocate(plan, {plan.workspace}, {1}, at::kByte);
  c10::SmallVector<uint64_t, 64> block;
  c10::SmallVector<void*, 48> params;
  std::optional<InContext> context;
  if (plan.cuda) context.emplace(plan);
  for (size_t at = 0; at < plan.steps.size(); ++at) {
    const Step& step = plan.steps[at];
    for (size_t i = 0; i < plan.results.size(); ++i) {
      const Result& result = plan.results[i];
      if (result.first == static_cast<int64_t>(at))
        results[i] = allocate(plan, result.sizes, result.strides, result.dtype);
      if (result.last >= 0 && result.last < static_cast<int64_t>(at)) results[i].reset();
    }
    if (step.product) {
      multiply(*step.product, place_of(plan), base, stream);
      continue;
    }
    block.assign(step.block_image.begin(), step.block_image.end());
    for (size_t i = 0; i < step.slots.size(); ++i) {
      const Slot& slot = step.slots[i];
      if (slot.kind == Slot::kNumber) {
        write_number(&block[i], slot.format, slot.index < 0 ? plan.fixed[-1 - slot.index] : numbers[slot.index]);
        continue;
      }
      // Of partial results without elements there is no workspace, and no access.
      const void* begin = slot.kind != Slot::kWorkspace ? base(slot.kind, slot.index)
                          : workspace.defined()         ? workspace.data_ptr()
                                                        : nullptr;
      block[i] = reinterpret_cast<uintptr_t>(begin) + slot.offset;
    }
    params.clear();
    for (const uint32_t offset : step.offsets) params.push_back(reinterpret_cast<char*>(block.data()) + offset);
    launch(plan, at, step, params.data(), stream);
  }
}

}  // namespace fusegen
