// fusegen's native call path: the kernels that torch's dispatcher calls for registered ops.
//
// A graph that torch compiled calls torch.ops.fusegen.*. Each of these ops has kernels in Python
// (fusegen/pytorch/library/registry.py) that can do everything. Before them stand the two kernels of this file: one for
// tensors that autograd need not see, and one for tensors with memory, which does what a call like an earlier one did
// without Python.

#pragma once

#include "fusegen_native_node.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

namespace fusegen {

// How the numbers of a parameter count: as values of the call, or as constants of the plan.
constexpr int64_t kFloatsVary = 1, kIntegersVary = 2;

enum Tag : uint64_t { kNumber = 2, kSingle, kInteger, kFloat, kString, kTuple, kObject, kKeyword };

inline uint64_t tagged(Tag tag, uint64_t value) { return static_cast<uint64_t>(tag) << 60 ^ value; }

inline uint64_t bits_of(double value) {  // bits tell -0.0 from 0.0, and find NaN again
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// A call as the dispatcher hands it over, or a FastPath reads it (fusegen_native_fast_path.h).
struct BoxedCall {
  Key key;
  Addresses addresses;
  Numbers numbers;
  c10::SmallVector<at::Tensor, 8> owners;  // of tensors that nothing else keeps while the plan runs

  BoxedCall() { key.words.push_back(settings_word()); }
};

inline void add_text(Key& key, const std::string& text) {
  key.words.push_back(tagged(kString, text.size()));
  const size_t first = key.words.size();
  key.words.resize(first + (text.size() + 7) / 8, 0);
  std::memcpy(key.words.data() + first, text.data(), text.size());
}

inline void add_number(BoxedCall& call, const Number& number, bool varies) {
  const auto type = static_cast<uint64_t>(number.type);
  call.key.words.push_back(tagged(kNumber, type << 1 | uint64_t{varies}));
  if (varies) call.numbers.push_back(number);
  else call.key.words.push_back(number.type == 'f' ? bits_of(number.real) : static_cast<uint64_t>(number.integer));
}

// Adds an argument; false for what only Python can judge. A FastPath's add_object adds the same words.
inline bool add_value(BoxedCall& call, const c10::IValue& value, int64_t flags) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() && add_tensor(call.key, tensor, false, call.addresses);
  }
  Number number;
  if (value.isDouble()) {
    number.real = value.toDouble();
    add_number(call, number, flags & kFloatsVary);
  } else if (value.isInt() || value.isBool()) {
    number.type = value.isBool() ? 'b' : 'i';
    number.integer = value.isBool() ? value.toBool() : value.toInt();
    add_number(call, number, flags & kIntegersVary);
  } else if (value.isNone()) {
    call.key.words.push_back(tagged(kSingle, 0));
  } else if (value.isString()) {
    add_text(call.key, value.toStringRef());
  } else if (value.isList()) {
    const auto items = value.toListRef();
    call.key.words.push_back(tagged(kTuple, items.size()));
    for (const c10::IValue& item : items)
      if (!add_value(call, item, flags)) return false;
  } else {
    return false;
  }
  return true;
}

// The plans of one registered op; dispatch does not hold the GIL.
struct RegisteredPlans {
  std::vector<int64_t> flags;  // of each argument of the schema
  SharedPlans plans;

  RegisteredPlans(std::vector<int64_t> given, size_t most) : flags(std::move(given)), plans(most) {}
};

// The call that this thread has passed to Python, which may record a plan for it (record_kernel).
class PendingCall {
 public:
  static thread_local PendingCall* innermost;
  const RegisteredPlans& registered;
  const Key* key;  // null for a call that has none: no plan is recorded for it

  PendingCall(const RegisteredPlans& registered, const Key* key) : registered(registered), key(key), outer_(innermost) {
    innermost = this;
  }
  ~PendingCall() { innermost = outer_; }

 private:
  PendingCall* outer_;
};

inline thread_local PendingCall* PendingCall::innermost = nullptr;

// What the caller gets for a call with a plan.
inline void run_plan(const Plan& plan, const BoxedCall& call, Tensors& results) {
  try {
    void* stream = plan.cuda ? current_stream(plan.device).handle : nullptr;
    const MayFree free(plan);
    run(plan, call.addresses, call.numbers, stream, results);
  } catch (const LaunchFailure& failure) {
    raise_failure(plan, failure);
  }
  results.resize(plan.visible);  // not the intermediates
}

// For tensors with memory.
class BackendKernel : public c10::OperatorKernel {
 public:
  explicit BackendKernel(std::shared_ptr<RegisteredPlans> registered) : registered_(std::move(registered)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    BoxedCall call;
    bool known = plain_dispatch();
    for (size_t i = 0; known && i < arguments.size(); ++i) known = add_value(call, arguments[i], registered_->flags[i]);
    if (known) {
      if (const auto plan = registered_->plans.find(call.key)) return answer(op, *plan, call, *stack);
    }
    const PendingCall pending(*registered_, known ? &call.key : nullptr);
    op.redispatchBoxed(c10::DispatchKeySet(), stack);  // no key at all: the kernel for all devices, which is Python's
  }

 private:
  static void answer(const c10::OperatorHandle& op, const Plan& plan, const BoxedCall& call, torch::jit::Stack& stack) {
    Tensors results;
    run_plan(plan, call, results);
    torch::jit::drop(stack, op.schema().arguments().size());
    const auto& returns = op.schema().returns();
    if (returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType) {
      c10::List<at::Tensor> list;
      list.reserve(results.size());
      for (at::Tensor& result : results) list.push_back(std::move(result));
      stack.emplace_back(std::move(list));
    } else {
      for (at::Tensor& result : results) stack.emplace_back(std::move(result));
    }
  }

  std::shared_ptr<RegisteredPlans> registered_;
};

// Whether autograd has to see a call with this argument.
inline bool is_recorded(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return false;
    return (c10::GradMode::is_enabled() && tensor.requires_grad()) || tensor._fw_grad(0).defined();
  }
  if (!value.isTensorList()) return false;
  const auto items = value.toListRef();
  return std::any_of(items.begin(), items.end(), is_recorded);
}

// For tensors that autograd knows. What it must see goes to Python.
class AutogradKernel : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    if (std::any_of(arguments.begin(), arguments.end(), is_recorded))  // the kernel for all devices, which is Python's
      return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::AutogradOther), stack);
    const at::AutoDispatchBelowAutograd below;
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }
};

inline constexpr const char* kRegisteredPlansName = "fusegen.RegisteredPlans";

// install(name, flags, most): the kernels for an op that is defined. They stay until the process ends.
inline PyObject* install_kernels(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const char* name;
  PyObject* flags;
  Py_ssize_t most;
  if (!PyArg_ParseTuple(arguments, "sO!n", &name, &PyTuple_Type, &flags, &most)) return nullptr;
  std::vector<int64_t> values;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(flags); ++i)
    values.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(flags, i)));
  auto registered = std::make_shared<RegisteredPlans>(std::move(values), static_cast<size_t>(most));
  static auto* library = new torch::Library(torch::Library::IMPL, "fusegen", std::nullopt, "fusegen_native", 0);
  for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
    auto kernel = torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BackendKernel>(registered));
    library->impl(name, torch::dispatch(key, std::move(kernel)));
  }
  for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
    auto kernel = torch::CppFunction::makeFromBoxedFunctor(std::make_unique<AutogradKernel>());
    library->impl(name, torch::dispatch(key, std::move(kernel)));
  }
  auto* held = new std::shared_ptr<RegisteredPlans>(std::move(registered));
  return PyCapsule_New(held, kRegisteredPlansName, [](PyObject* capsule) {
    delete static_cast<std::shared_ptr<RegisteredPlans>*>(PyCapsule_GetPointer(capsule, kRegisteredPlansName));
  });
  END_HANDLE_TH_ERRORS
}

inline const std::shared_ptr<RegisteredPlans>& shared_registered(PyObject* capsule) {
  auto* held = static_cast<std::shared_ptr<RegisteredPlans>*>(PyCapsule_GetPointer(capsule, kRegisteredPlansName));
  if (!held) throw python_error();
  return *held;
}

inline RegisteredPlans& unwrap_registered(PyObject* capsule) { return *shared_registered(capsule); }

// record_kernel(kernels, plan): what to do from now on for calls like the one that Python has been passed.
inline PyObject* record_kernel(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *kernels, *plan;
  if (!PyArg_ParseTuple(arguments, "OO", &kernels, &plan)) return nullptr;
  RegisteredPlans& registered = unwrap_registered(kernels);
  const PendingCall* pending = PendingCall::innermost;
  if (pending == nullptr || pending->key == nullptr || &pending->registered != &registered) Py_RETURN_FALSE;
  registered.plans.put(*pending->key, unwrap_plan(plan));
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

// has_pending_call(kernels): whether record_kernel would record something.
inline PyObject* has_pending_call(PyObject*, PyObject* kernels) {
  HANDLE_TH_ERRORS
  const PendingCall* pending = PendingCall::innermost;
  const bool records =
      pending != nullptr && pending->key != nullptr && &pending->registered == &unwrap_registered(kernels);
  return PyBool_FromLong(records);
  END_HANDLE_TH_ERRORS
}

// forget_kernels(kernels): every plan.
inline PyObject* forget_kernels(PyObject*, PyObject* kernels) {
  HANDLE_TH_ERRORS
  unwrap_registered(kernels).plans.clear();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// plan_count(kernels).
inline PyObject* plan_count(PyObject*, PyObject* kernels) {
  HANDLE_TH_ERRORS
  return PyLong_FromSize_t(unwrap_registered(kernels).plans.size());
  END_HANDLE_TH_ERRORS
}

}  // namespace fusegen
