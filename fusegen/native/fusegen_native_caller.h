// fusegen's native call path: the Python type Caller, an op's cache of calls. A call is read into the Key of its plan,
// and the plan is run; a call without one goes to the slow path, in Python, which inserts a plan.

#pragma once

#include "fusegen_native_kernel.h"

namespace fusegen {

// Adds a compile-time constant by value; false for what cannot be compared (lists, arrays, tensors of other kinds).
inline bool add_constant(Key& key, PyObject* value) {
  if (value == Py_None || PyBool_Check(value)) {
    key.words.push_back(tagged(kSingle, reinterpret_cast<uintptr_t>(value)));
  } else if (PyLong_CheckExact(value)) {
    int overflow = 0;
    const auto integer = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow) return false;
    key.words.append({tagged(kInteger, 0), static_cast<uint64_t>(integer)});
  } else if (PyFloat_CheckExact(value)) {
    key.words.append({tagged(kFloat, 0), bits_of(PyFloat_AS_DOUBLE(value))});
  } else if (PyUnicode_CheckExact(value)) {
    key.words.append({tagged(kString, 0), static_cast<uint64_t>(PyObject_Hash(value))});
    key.objects.push_back(value);
  } else if (PyTuple_CheckExact(value)) {
    key.words.push_back(tagged(kTuple, static_cast<uint64_t>(PyTuple_GET_SIZE(value))));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i)
      if (!add_constant(key, PyTuple_GET_ITEM(value, i))) return false;
  } else if (PyFunction_Check(value) || PyType_Check(value) || THPDtype_Check(value)) {
    key.words.append({tagged(kObject, 0), reinterpret_cast<uintptr_t>(value)});
    key.objects.push_back(value);
  } else {
    return false;
  }
  return true;
}

struct Call {
  Key key;
  c10::SmallVector<const at::Tensor*, 12> tensors;
  Addresses addresses;
  Numbers numbers;
  bool recording = false;
};

struct Caller {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* slow_path;   // Python: (args, kwargs) -> results; it records its plan in this object
  PyObject* parameters;  // name -> position
  std::vector<int64_t>* flags;
  Plans* table;
};

inline bool add_argument(Call& call, PyObject* value, int64_t flags) {
  if (THPVariable_CheckExact(value)) {
    const at::Tensor& tensor = THPVariable_Unpack(value);
    call.tensors.push_back(&tensor);
    return add_tensor(call.key, tensor, call.recording, call.addresses);
  }
  Number number;
  if (PyFloat_CheckExact(value)) {
    if (!(flags & kFloatsVary)) return add_constant(call.key, value);
    number.real = PyFloat_AS_DOUBLE(value);
  } else if (PyLong_CheckExact(value) || PyBool_Check(value)) {
    if (!(flags & kIntegersVary)) return add_constant(call.key, value);
    number.type = PyBool_Check(value) ? 'b' : 'i';
    int overflow = 0;
    number.integer = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow) return false;
  } else {
    return add_constant(call.key, value);
  }
  call.numbers.push_back(number);
  call.key.words.push_back(tagged(kNumber, static_cast<uint64_t>(number.type)));
  return true;
}

// Reads a call's arguments; false if only Python can judge them.
inline bool read_call(const Caller& caller, PyObject* args, PyObject* kwargs, Call& call) {
  if (!plain_dispatch() || function_mode_sees()) return false;
  call.recording = c10::GradMode::is_enabled();
  call.key.words.append({autocast_word() << 1 | uint64_t{call.recording}, settings_word()});
  const auto given = static_cast<size_t>(PyTuple_GET_SIZE(args));
  if (given > caller.flags->size()) return false;
  for (size_t i = 0; i < given; ++i)
    if (!add_argument(call, PyTuple_GET_ITEM(args, i), (*caller.flags)[i])) return false;
  if (kwargs == nullptr || kwargs == Py_None) return true;
  PyObject *name, *value;
  Py_ssize_t place = 0;
  while (PyDict_Next(kwargs, &place, &name, &value)) {
    PyObject* position = PyDict_GetItem(caller.parameters, name);
    if (position == nullptr) return false;  // out=, or a mistake
    const auto at = static_cast<uint64_t>(PyLong_AsLongLong(position));
    call.key.words.push_back(tagged(kKeyword, at));
    if (at < given || !add_argument(call, value, (*caller.flags)[at])) return false;
  }
  return true;
}

inline PyObject* results_to_python(const Plan& plan, Tensors& results) {
  if (plan.one) return THPVariable_Wrap(std::move(results[0]));
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(plan.visible));
  for (size_t i = 0; tuple != nullptr && i < plan.visible; ++i)
    PyTuple_SET_ITEM(tuple, i, THPVariable_Wrap(std::move(results[i])));
  return tuple;
}

inline PyObject* run_call(const std::shared_ptr<Plan>& plan, const Call& call) {
  Tensors results;
  Stream stream;
  if (plan->cuda) stream = current_stream(plan->device);
  try {
    const MayFree free(*plan);
    run(*plan, call.addresses, call.numbers, stream.handle, results);
  } catch (const LaunchFailure& failure) {
    raise_failure(*plan, failure);
  }
  if (plan->training) record(plan, call.tensors, call.numbers, stream, results);
  return results_to_python(*plan, results);
}

inline PyObject* caller_call(PyObject* self, PyObject* const* values, size_t count, PyObject* names) {
  HANDLE_TH_ERRORS
  auto& caller = *reinterpret_cast<Caller*>(self);
  if (PyVectorcall_NARGS(count) != 2 || names != nullptr || !PyTuple_CheckExact(values[0])) {
    PyErr_SetString(PyExc_TypeError, "a fusegen caller takes a tuple and a dict");
    return nullptr;
  }
  Call call;
  if (read_call(caller, values[0], values[1], call)) {
    if (const auto plan = caller.table->find(call.key)) return run_call(plan, call);
  }
  return PyObject_CallFunctionObjArgs(caller.slow_path, values[0], values[1], nullptr);
  END_HANDLE_TH_ERRORS
}

// insert(args, kwargs, plan): what to do from now on for calls like this one. False if they cannot be told apart.
inline PyObject* caller_insert(PyObject* self, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *args, *kwargs, *plan;
  if (!PyArg_ParseTuple(arguments, "O!O!O", &PyTuple_Type, &args, &PyDict_Type, &kwargs, &plan)) return nullptr;
  auto& caller = *reinterpret_cast<Caller*>(self);
  Call call;
  if (!read_call(caller, args, kwargs, call)) Py_RETURN_FALSE;
  auto held = unwrap_plan(plan);
  if (!caller.table->find(call.key)) caller.table->put(call.key, std::move(held));
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

// For tools/bench/host.py: a call up to the point where its plan is known, and up to its results' memory.
inline PyObject* measure(PyObject* self, PyObject* arguments, bool allocated) {
  HANDLE_TH_ERRORS
  PyObject *args, *kwargs;
  if (!PyArg_ParseTuple(arguments, "O!O!", &PyTuple_Type, &args, &PyDict_Type, &kwargs)) return nullptr;
  auto& caller = *reinterpret_cast<Caller*>(self);
  Call call;
  const auto plan = read_call(caller, args, kwargs, call) ? caller.table->find(call.key) : nullptr;
  if (!plan) Py_RETURN_FALSE;
  if (!allocated) Py_RETURN_TRUE;
  Tensors results;
  for (const Result& result : plan->results)
    results.push_back(allocate(*plan, result.sizes, result.strides, result.dtype));
  return results_to_python(*plan, results);
  END_HANDLE_TH_ERRORS
}

inline PyObject* caller_recognizes(PyObject* self, PyObject* arguments) { return measure(self, arguments, false); }

inline PyObject* caller_allocates(PyObject* self, PyObject* arguments) { return measure(self, arguments, true); }

inline PyObject* caller_clear(PyObject* self, PyObject*) {
  reinterpret_cast<Caller*>(self)->table->clear();
  Py_RETURN_NONE;
}

inline Py_ssize_t caller_size(PyObject* self) {
  return static_cast<Py_ssize_t>(reinterpret_cast<Caller*>(self)->table->size());
}

inline PyObject* caller_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject *slow_path, *parameters, *flags;
  Py_ssize_t most;
  if (!PyArg_ParseTuple(
          arguments, "OO!O!n", &slow_path, &PyDict_Type, &parameters, &PyTuple_Type, &flags, &most))
    return nullptr;
  auto* self = reinterpret_cast<Caller*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = caller_call;
  self->slow_path = Py_NewRef(slow_path);
  self->parameters = Py_NewRef(parameters);
  self->flags = new std::vector<int64_t>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(flags); ++i)
    self->flags->push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(flags, i)));
  self->table = new Plans(static_cast<size_t>(most));
  return reinterpret_cast<PyObject*>(self);
}

// What a plan holds of Python's. One that others hold as well (a graph's node, the stack of a call) is theirs to keep
// alive. Others may let go at any time, but begin to hold under the GIL only (a backward's plan, too, while a node
// holds the forward's): what the collector sees in its first pass, it sees in its second.
inline int visit_plan(const std::shared_ptr<Plan>& plan, visitproc visit, void* arg) {
  if (plan.use_count() != 1) return 0;
  Py_VISIT(plan->fail);
  if (!plan->training) return 0;
  Py_VISIT(plan->training->python);
  return plan->training->backwards.each(
      [&](const Key&, const std::shared_ptr<Plan>& backward) { return visit_plan(backward, visit, arg); });
}

// An op holds its caller, whose plans hold what computes the op's gradients, and that may hold the op: a declared
// gradient does, and so may a constant.
inline int caller_traverse(PyObject* self, visitproc visit, void* arg) {
  const auto& caller = *reinterpret_cast<Caller*>(self);
  Py_VISIT(caller.slow_path);
  Py_VISIT(caller.parameters);
  return caller.table->each([&](const Key& key, const std::shared_ptr<Plan>& plan) {
    for (PyObject* object : key.objects) Py_VISIT(object);
    return visit_plan(plan, visit, arg);
  });
}

inline int caller_forget(PyObject* self) {
  auto& caller = *reinterpret_cast<Caller*>(self);
  Py_CLEAR(caller.slow_path);
  caller.table->clear();
  return 0;
}

inline void caller_delete(PyObject* self) {
  PyObject_GC_UnTrack(self);
  auto* caller = reinterpret_cast<Caller*>(self);
  Py_CLEAR(caller->slow_path);
  Py_CLEAR(caller->parameters);
  delete caller->table;
  delete caller->flags;
  Py_TYPE(self)->tp_free(self);
}

inline PyMethodDef caller_methods[] = {
    {"insert", caller_insert, METH_VARARGS, nullptr},
    {"recognizes", caller_recognizes, METH_VARARGS, nullptr},
    {"allocates", caller_allocates, METH_VARARGS, nullptr},
    {"clear", caller_clear, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

inline PySequenceMethods caller_as_sequence{};
inline PyTypeObject caller_type = bare_type();

// Fills in the type; false, with Python's error set, where that fails.
inline bool ready_caller_type() {
  caller_type.tp_name = "fusegen_native.Caller";
  caller_type.tp_basicsize = sizeof(Caller);
  caller_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  caller_type.tp_vectorcall_offset = offsetof(Caller, vectorcall);
  caller_type.tp_call = PyVectorcall_Call;
  caller_as_sequence.sq_length = caller_size;
  caller_type.tp_as_sequence = &caller_as_sequence;
  caller_type.tp_methods = caller_methods;
  caller_type.tp_new = caller_new;
  caller_type.tp_traverse = caller_traverse;
  caller_type.tp_clear = caller_forget;
  caller_type.tp_dealloc = caller_delete;
  return PyType_Ready(&caller_type) >= 0;
}

}  // namespace fusegen
