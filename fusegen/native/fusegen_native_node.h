// fusegen's native call path: a call as a node of torch's autograd graph.
//
// Ordinary backwards run from prepared plans. Whatever else is asked of the node (a gradient that is to be
// differentiated again, a layout seen for the first time, tensors that only Python can judge) goes to the same Python
// code that serves calls without a native path.

#pragma once

#include "fusegen_native_leaf.h"

namespace fusegen {

// What a recorded call needs beside its launches.
struct Training {
  struct Save {
    bool is_result = false;
    int64_t index = 0;
  };

  std::string name;
  std::vector<Save> saves;
  std::vector<int64_t> differentiable;  // results that have a gradient, in order
  // (plan, needed, saved, cotangents, numbers, accumulate_into) -> a gradient or None each
  PyObject* python = nullptr;
  SharedPlans backwards{1024};  // engine threads do not hold the GIL
};

inline Plan::~Plan() {
  if (!Py_IsInitialized()) return;
  const pybind11::gil_scoped_acquire gil;
  Py_XDECREF(fail);
  if (training) Py_XDECREF(training->python);
}

// A static type whose slots are all empty yet.
inline PyTypeObject bare_type() {
  PyTypeObject type{};
  type.ob_base = {PyObject_HEAD_INIT(nullptr) 0};
  return type;
}

inline constexpr const char* kPlanName = "fusegen.Plan";

inline PyObject* wrap_plan(std::shared_ptr<Plan> plan) {
  auto* held = new std::shared_ptr<Plan>(std::move(plan));
  return PyCapsule_New(held, kPlanName, [](PyObject* capsule) {
    delete static_cast<std::shared_ptr<Plan>*>(PyCapsule_GetPointer(capsule, kPlanName));
  });
}

inline std::shared_ptr<Plan> unwrap_plan(PyObject* capsule) {
  auto* held = static_cast<std::shared_ptr<Plan>*>(PyCapsule_GetPointer(capsule, kPlanName));
  if (!held) throw python_error();
  return *held;
}

// Raises what fusegen's Python says about a failed launch.
[[noreturn]] inline void raise_failure(const Plan& plan, const LaunchFailure& failure) {
  const pybind11::gil_scoped_acquire gil;
  auto done = THPObjectPtr(PyObject_CallFunction(
      plan.fail, "nis", static_cast<Py_ssize_t>(failure.step), failure.code, failure.message.c_str()));
  if (!done) {
    python_error error;
    error.persist();
    throw error;
  }
  throw std::runtime_error("fusegen: a launch failed with code " + std::to_string(failure.code));
}

inline PyObject* to_python(const Number& number) {
  if (number.type == 'f') return PyFloat_FromDouble(number.real);
  return number.type == 'i' ? PyLong_FromLongLong(number.integer) : PyBool_FromLong(number.integer != 0);
}

using Addresses = c10::SmallVector<const char*, 12>;
using Numbers = c10::SmallVector<Number, 8>;

using Needed = c10::SmallVector<bool, 16>;

// What stands in `gradient_of` for a result that has been added to the .grad of an argument; it is its own inverse. A
// result that nobody asked for, computed along, has -1.
inline int64_t added_to(int64_t argument) { return -2 - argument; }

// The key of a backward: torch's settings of products, which gradients are asked for, which results have a cotangent,
// the numbers' types, every tensor that it may read, and those that it may add gradients to (an empty list if there are
// none).
inline bool backward_key(
    const Needed& needed, const Tensors& saved, const torch::autograd::variable_list& cotangents,
    const Numbers& numbers, const Tensors& accumulate_into, Key& key, Addresses& addresses) {
  key.words.push_back(settings_word());
  for (const bool asked : needed) key.words.push_back(asked);
  for (const at::Tensor& cotangent : cotangents) key.words.push_back(cotangent.defined());
  for (const Number& number : numbers) key.words.push_back(number.type);
  for (const at::Tensor& tensor : saved)
    if (!tensor.defined() || !add_tensor(key, tensor, false, addresses)) return false;
  for (const at::Tensor& tensor : cotangents)
    if (tensor.defined() && !add_tensor(key, tensor, false, addresses)) return false;
  for (const at::Tensor& tensor : accumulate_into) {
    key.words.push_back(tensor.defined());
    if (tensor.defined() && !add_tensor(key, tensor, false, addresses)) return false;
  }
  return true;
}

class FusedNode : public torch::autograd::Node {
 public:
  std::shared_ptr<Plan> plan;
  std::vector<torch::autograd::SavedVariable> saved;
  Numbers numbers;
  Stream stream;
  c10::SmallVector<bool, 16> apart;  // arguments whose gradient shares its tensor with nobody; empty if there are none

  std::string name() const override { return plan->training->name; }

  void release_variables() override {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (auto& variable : saved) variable.reset_data();
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& cotangents) override {
    const Training& training = *plan->training;
    const bool any = std::any_of(cotangents.begin(), cotangents.end(), [](const auto& t) { return t.defined(); });
    if (!any) return torch::autograd::variable_list(plan->inputs.size());
    Tensors tensors;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      for (size_t i = 0; i < saved.size(); ++i)
        tensors.push_back(training.saves[i].is_result ? saved[i].unpack(getptr()) : saved[i].unpack());
    }
    Needed needed;
    for (size_t i = 0; i < plan->inputs.size(); ++i) needed.push_back(task_should_compute_output(i));
    Tensors accumulate_into;
    if (is_accumulating() && plain_dispatch())
      accumulate_into = tensors_to_accumulate_into(needed, tensors, cotangents);
    Key key;
    Addresses addresses;
    if (!c10::GradMode::is_enabled() && plain_dispatch() &&
        backward_key(needed, tensors, cotangents, numbers, accumulate_into, key, addresses)) {
      if (const auto found = plan->training->backwards.find(key))
        return separated(run_backward(*found, addresses, cotangents, accumulate_into), cotangents);
    }
    return separated(in_python(needed, tensors, cotangents, accumulate_into), cotangents);
  }

 private:
  // As plan/backward.separated.
  torch::autograd::variable_list separated(
      torch::autograd::variable_list gradients, const torch::autograd::variable_list& cotangents) const {
    for (size_t i = 0; i < apart.size(); ++i) {
      if (!apart[i] || !gradients[i].defined()) continue;
      const auto is_mine = [&](const at::Tensor& other) { return other.is_same(gradients[i]); };
      const bool is_another = std::any_of(cotangents.begin(), cotangents.end(), is_mine) ||
                              std::count_if(gradients.begin(), gradients.end(), is_mine) > 1;
      if (is_another) gradients[i] = gradients[i].clone();
    }
    return gradients;
  }

  // For each argument the .grad that its gradient may be added to; an empty list if there is none.
  Tensors tensors_to_accumulate_into(
      const Needed& needed, const Tensors& tensors, const torch::autograd::variable_list& cotangents) const {
    Tensors read(tensors), accumulate_into(needed.size());
    read.append(cotangents.begin(), cotangents.end());
    bool any = false;
    for (size_t i = 0; i < needed.size(); ++i) {
      if (needed[i]) accumulate_into[i] = tensor_to_accumulate_into(next_edge(i).function.get(), read);
      any |= accumulate_into[i].defined();
    }
    return any ? accumulate_into : Tensors();
  }

  torch::autograd::variable_list run_backward(
      const Plan& backward, const Addresses& addresses, const torch::autograd::variable_list& cotangents,
      const Tensors& accumulate_into) {
    void* handle = nullptr;
    if (backward.cuda) {
      // The engine makes the forward's stream current, so its handle is known without asking Python.
      handle = stream.handle;
      if (current_stream_id(backward.device) != stream.id) {
        const pybind11::gil_scoped_acquire gil;
        handle = current_stream(backward.device).handle;
      }
    }
    Tensors results(backward.gradient_of.size());
    for (size_t i = 0; i < results.size(); ++i) {
      if (backward.gradient_of[i] > -2) continue;
      results[i] = accumulate_into[added_to(backward.gradient_of[i])];
      torch::autograd::impl::bump_version(results[i]);
    }
    try {
      run(backward, addresses, numbers, handle, results);
    } catch (const LaunchFailure& failure) {
      raise_failure(backward, failure);
    }
    torch::autograd::variable_list gradients(plan->inputs.size());
    for (size_t i = 0; i < backward.gradient_of.size(); ++i)
      if (backward.gradient_of[i] >= 0) gradients[backward.gradient_of[i]] = std::move(results[i]);
    for (const Plan::SharedGradient& that : backward.shared_gradients)
      gradients[that.argument] = that.is_gradient ? gradients[that.index] : cotangents[that.index];
    return gradients;
  }

  torch::autograd::variable_list in_python(
      const Needed& needed, const Tensors& tensors, const torch::autograd::variable_list& cotangents,
      const Tensors& accumulate_into) const {
    const pybind11::gil_scoped_acquire gil;
    const auto list = [](size_t size) { return THPObjectPtr(PyList_New(static_cast<Py_ssize_t>(size))); };
    auto asked = list(needed.size()), read = list(tensors.size()), given = list(plan->results.size()), values = list(numbers.size());
    for (size_t i = 0; i < needed.size(); ++i) PyList_SET_ITEM(asked.get(), i, PyBool_FromLong(needed[i]));
    for (size_t i = 0; i < tensors.size(); ++i) PyList_SET_ITEM(read.get(), i, THPVariable_Wrap(tensors[i]));
    for (size_t i = 0; i < plan->results.size(); ++i) PyList_SET_ITEM(given.get(), i, Py_NewRef(Py_None));
    for (size_t i = 0; i < cotangents.size(); ++i)
      if (cotangents[i].defined())
        PyList_SetItem(given.get(), plan->training->differentiable[i], THPVariable_Wrap(cotangents[i]));
    for (size_t i = 0; i < numbers.size(); ++i) PyList_SET_ITEM(values.get(), i, to_python(numbers[i]));
    auto added = list(accumulate_into.size());
    for (size_t i = 0; i < accumulate_into.size(); ++i)
      PyList_SET_ITEM(added.get(), i, THPVariable_Wrap(accumulate_into[i]));
    auto capsule = THPObjectPtr(wrap_plan(plan));
    auto found = THPObjectPtr(PyObject_CallFunctionObjArgs(
        plan->training->python, capsule.get(), asked.get(), read.get(), given.get(), values.get(), added.get(),
        nullptr));
    if (!found) {
      python_error error;
      error.persist();
      throw error;
    }
    torch::autograd::variable_list gradients(plan->inputs.size());
    for (size_t i = 0; i < gradients.size(); ++i) {
      PyObject* item = PyList_GET_ITEM(found.get(), i);
      if (item != Py_None) gradients[i] = THPVariable_Unpack(item);
    }
    return gradients;
  }
};

// torch changed the pointer that edges hold from std::shared_ptr to its own.
using NodePointer = decltype(torch::autograd::Edge::function);

template <class Pointer = NodePointer>
Pointer new_node(FusedNode*& made) {
  made = new FusedNode();
  if constexpr (std::is_constructible_v<Pointer, FusedNode*, void (*)(torch::autograd::Node*)>) {
    return Pointer(made, [](auto* node) { deleteNode(node); });  // torch's own: deep graphs go without recursion
  } else {
    return Pointer::unsafe_steal_from_new(made);
  }
}

// As plan/backward.views_a_leaf.
inline bool views_a_leaf(const at::Tensor& tensor) {
  return tensor.requires_grad() && tensor.is_view() && tensor._base().is_leaf();
}

// Makes `results` outputs of a new node. `tensors` are the arguments that the plan reads, in its order.
inline void record(
    const std::shared_ptr<Plan>& plan, const c10::SmallVectorImpl<const at::Tensor*>& tensors, const Numbers& numbers,
    const Stream& stream, Tensors& results) {
  FusedNode* node = nullptr;
  const NodePointer pointer = new_node(node);
  node->plan = plan;
  node->numbers = numbers;
  node->stream = stream;
  torch::autograd::edge_list edges;
  edges.reserve(plan->inputs.size());
  bool any_apart = false;
  for (const int64_t at : plan->inputs) {
    edges.push_back(torch::autograd::impl::gradient_edge(*tensors[at]));
    node->apart.push_back(views_a_leaf(*tensors[at]));
    any_apart |= node->apart.back();
  }
  if (!any_apart) node->apart.clear();
  node->set_next_edges(std::move(edges));
  for (const int64_t at : plan->training->differentiable) {
    const auto number = node->add_input_metadata(results[at]);
    torch::autograd::impl::set_gradient_edge(results[at], {pointer, number});
  }
  node->saved.reserve(plan->training->saves.size());
  for (const Training::Save& save : plan->training->saves)
    node->saved.emplace_back(save.is_result ? results[save.index] : *tensors[plan->inputs[save.index]], save.is_result);
}

// insert_backward(forward, needed, saved, cotangents, numbers, accumulate_into, backward, shared_gradients): the plan for
// backwards like this one, None where nothing is computed; and gradients that are something else: (argument, 0, a result,
// whose cotangent it is) or (argument, 1, an argument, whose gradient it is).
inline PyObject* insert_backward(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *forward, *asked, *saved, *cotangents, *values, *added, *backward, *shared_gradients;
  if (!PyArg_ParseTuple(
          arguments, "OO!O!O!O!O!OO!", &forward, &PyList_Type, &asked, &PyList_Type, &saved, &PyList_Type, &cotangents,
          &PyList_Type, &values, &PyList_Type, &added, &backward, &PyList_Type, &shared_gradients))
    return nullptr;
  if (!plain_dispatch()) Py_RETURN_FALSE;
  const auto plan = unwrap_plan(forward);
  Needed needed;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(asked); ++i) needed.push_back(PyList_GET_ITEM(asked, i) == Py_True);
  Tensors tensors;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(saved); ++i)
    tensors.push_back(THPVariable_Unpack(PyList_GET_ITEM(saved, i)));
  torch::autograd::variable_list given;
  for (const int64_t at : plan->training->differentiable) {
    PyObject* item = PyList_GET_ITEM(cotangents, at);
    given.push_back(item == Py_None ? at::Tensor() : THPVariable_Unpack(item));
  }
  Tensors accumulate_into;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(added); ++i) {
    PyObject* item = PyList_GET_ITEM(added, i);
    accumulate_into.push_back(item == Py_None ? at::Tensor() : THPVariable_Unpack(item));
  }
  Numbers numbers;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); ++i) {
    PyObject* item = PyList_GET_ITEM(values, i);
    Number number;
    number.type = PyFloat_Check(item) ? 'f' : PyBool_Check(item) ? 'b' : 'i';
    numbers.push_back(number);
  }
  Key key;
  Addresses addresses;
  if (!backward_key(needed, tensors, given, numbers, accumulate_into, key, addresses)) Py_RETURN_FALSE;
  auto held = backward == Py_None ? std::make_shared<Plan>() : unwrap_plan(backward);
  const auto& results = plan->training->differentiable;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(shared_gradients); ++i) {
    long long argument, is_gradient, index;
    if (!PyArg_Parse(PyList_GET_ITEM(shared_gradients, i), "(LLL)", &argument, &is_gradient, &index)) return nullptr;
    // Cotangents come for the results that have a gradient, in order.
    if (!is_gradient) index = std::find(results.begin(), results.end(), index) - results.begin();
    held->shared_gradients.push_back({argument, is_gradient != 0, index});
  }
  plan->training->backwards.put(key, std::move(held));
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

}  // namespace fusegen
