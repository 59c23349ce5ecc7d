// fusegen's native call path: gradients that matrix products add to a leaf's .grad where it lies, which a caller asks
// for by fg.accumulate_grad (fusegen/pytorch/autograd/accumulate_grad.py). Torch's own addition is left out, so torch
// must not be waiting for the gradient: no hook, and no torch.autograd.grad.

#pragma once

#include "fusegen_native_plan.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_cpp_function.h>

#include <typeinfo>

namespace fusegen {

using Tensors = c10::SmallVector<at::Tensor, 8>;

// Torch hands these objects on to the threads that run a backward.
inline constexpr const char* kAccumulating = "fusegen";  // short: a look at it allocates nothing

inline bool is_accumulating() {
  using Objects = at::impl::ThreadLocalPythonObjects;
  return Objects::contains(kAccumulating) && Objects::get(kAccumulating) != nullptr;
}

// One object for good: copies of it live in threads of torch.distributed's, and the last to go would wait there for the
// GIL, which a process group's end holds while it waits for the thread.
inline void set_accumulating(bool on) {
  static const auto* mark = new std::shared_ptr<c10::SafePyObject>(
      std::make_shared<c10::SafePyObject>(Py_NewRef(Py_True), getPyInterpreter()));
  at::impl::ThreadLocalPythonObjects::set(kAccumulating, on ? *mark : nullptr);
}

inline bool has_hooks(torch::autograd::AccumulateGrad& leaf) {
  return !(leaf.pre_hooks().empty() && leaf.post_hooks().empty() && leaf.tensor_pre_hooks().empty() &&
           leaf.retains_grad_hooks().empty()) ||
         torch::autograd::impl::post_acc_grad_hooks(leaf.variable) != nullptr;
}

// Whether this backward adds to the leaf's .grad: torch.autograd.grad hands gradients out, and needs no leaf.
inline bool is_added_to(torch::autograd::AccumulateGrad& leaf) {
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  if (chosen == nullptr || chosen->empty()) return chosen != nullptr;  // empty: every leaf
  const auto found = chosen->find(&leaf);
  return found != chosen->end() && found->second.needed_;
}

// Whether torch would add: it drops gradients of what requires none any more, and refuses those of what is no leaf any
// more.
inline bool is_still_leaf(const at::Tensor& variable) {
  return variable.defined() && variable.requires_grad() && variable.is_leaf();
}

// A dense tensor of its own, like the leaf, that no graph refers to.
inline bool is_plain_gradient(const at::Tensor& grad, const at::Tensor& variable) {
  if (!grad.defined() || grad.requires_grad() || grad.is_inference() || !grad.has_storage()) return false;
  const auto kind = grad.key_set() - harmless();
  const auto backend = c10::DispatchKeySet(grad.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
  if (kind != backend) return false;
  return grad.sizes() == variable.sizes() && grad.scalar_type() == variable.scalar_type() &&
         grad.device() == variable.device() && grad.is_non_overlapping_and_dense();
}

inline bool is_on_current_stream(torch::autograd::AccumulateGrad& leaf, c10::Device device) {
  if (!device.is_cuda()) return true;
  const auto stream = leaf.stream();
  return stream && c10::impl::VirtualGuardImpl(device.type()).getStream(device) == *stream;
}

// The .grad that a backward may add to; undefined where the gradient has to be handed to torch. `read` is what the
// backward reads.
template <class Read>
at::Tensor tensor_to_accumulate_into(torch::autograd::Node* node, const Read& read) {
  // Its very type: another one, derived from it, may do something else with a gradient.
  if (node == nullptr || typeid(*node) != typeid(torch::autograd::AccumulateGrad)) return {};
  auto* leaf = static_cast<torch::autograd::AccumulateGrad*>(node);
  if (c10::GradMode::is_enabled() || !is_still_leaf(leaf->variable)) return {};
  if (has_hooks(*leaf) || !is_added_to(*leaf)) return {};
  const at::Tensor& grad = leaf->variable.grad();
  if (!is_plain_gradient(grad, leaf->variable) || !is_on_current_stream(*leaf, grad.device())) return {};
  for (const at::Tensor& tensor : read)
    if (tensor.defined() && tensor.has_storage() && tensor.storage().is_alias_of(grad.storage())) return {};
  return grad;
}

inline PyObject* accumulate(PyObject*, PyObject* on) {
  HANDLE_TH_ERRORS
  const bool before = is_accumulating();
  set_accumulating(on == Py_True);
  return PyBool_FromLong(before);
  END_HANDLE_TH_ERRORS
}

inline PyObject* is_accumulating_here(PyObject*, PyObject*) { return PyBool_FromLong(is_accumulating() && plain_dispatch()); }

// What a node of torch's own is to Python stands for; null for everything else, such as a user's Function, whose
// attributes are what that user has put there.
inline torch::autograd::Node* node_of(PyObject* object) {
  if (!torch::autograd::THPCppFunction_Check(object)) return nullptr;
  return reinterpret_cast<torch::autograd::THPCppFunction*>(object)->cdata.get();
}

// accumulate_into(nodes, read): for each node that a gradient goes to (None: nobody asks for it) the .grad to add to, or
// None.
inline PyObject* accumulate_into(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *nodes, *values;
  if (!PyArg_ParseTuple(arguments, "O!O!", &PyList_Type, &nodes, &PyList_Type, &values)) return nullptr;
  Tensors read;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); ++i)
    if (PyObject* value = PyList_GET_ITEM(values, i); value != Py_None) read.push_back(THPVariable_Unpack(value));
  auto found = THPObjectPtr(PyList_New(PyList_GET_SIZE(nodes)));
  if (!found) return nullptr;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(nodes); ++i) {  // None for an undefined tensor
    auto* node = node_of(PyList_GET_ITEM(nodes, i));
    PyList_SET_ITEM(found.get(), i, THPVariable_Wrap(tensor_to_accumulate_into(node, read)));
  }
  return found.release();
  END_HANDLE_TH_ERRORS
}

}  // namespace fusegen
