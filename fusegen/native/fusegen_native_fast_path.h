// fusegen's native call path: what torch.ops.fusegen.*.* calls first.
//
// From Python, torch converts every argument to an IValue by the op's schema, asks the dispatcher for a kernel, and
// converts the results back. That takes longer than a launch. So OpOverload._op is replaced by a FastPath. It reads the
// Python objects themselves into the key that BackendKernel would make, and runs the plan of that key if there is one.
// It passes all other calls on to torch: calls that are new, recorded, traced, profiled, or that only torch can judge.
// (Calls with a plan do not see a kernel that somebody registers for an op of ours later.)

#pragma once

#include "fusegen_native_kernel.h"

#include <ATen/record_function.h>

namespace fusegen {

struct FastPath {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* before;  // torch's own
  std::shared_ptr<RegisteredPlans>* registered;
  c10::OperatorHandle* handle;  // whose schema is gone when the op is, at exit
};

// Adds an argument for a parameter of this type; false where torch is to judge. It adds the very words that add_value adds
// for what torch makes of the object: plans are found under the keys of either.
inline bool add_object(BoxedCall& call, PyObject* value, const c10::Type& type, int64_t flags, bool in_list = false) {
  Number number;
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      if (value == Py_None) {
        call.key.words.push_back(tagged(kSingle, 0));
        return true;
      }
      return add_object(call, value, *type.castRaw<c10::OptionalType>()->getElementType(), flags, in_list);
    case c10::TypeKind::TensorType: {
      if (!THPVariable_CheckExact(value)) return false;
      const at::Tensor& tensor = THPVariable_Unpack(value);
      if (c10::GradMode::is_enabled() && tensor.requires_grad()) return false;
      if (!tensor.defined() || !add_tensor(call.key, tensor, false, call.addresses)) return false;
      if (in_list) call.owners.push_back(tensor);  // another thread may empty the list; arguments are the caller's
      return true;
    }
    case c10::TypeKind::ListType: {
      const bool is_list = PyList_CheckExact(value);
      if (!is_list && !PyTuple_Check(value)) return false;
      const c10::Type& inner = *type.castRaw<c10::ListType>()->getElementType();
      const Py_ssize_t count = is_list ? PyList_GET_SIZE(value) : PyTuple_GET_SIZE(value);
      call.key.words.push_back(tagged(kTuple, static_cast<uint64_t>(count)));
      for (Py_ssize_t i = 0; i < count; ++i)
        if (!add_object(call, is_list ? PyList_GET_ITEM(value, i) : PyTuple_GET_ITEM(value, i), inner, flags, true))
          return false;
      return true;
    }
    case c10::TypeKind::StringType: {
      Py_ssize_t bytes;
      const char* text = PyUnicode_CheckExact(value) ? PyUnicode_AsUTF8AndSize(value, &bytes) : nullptr;
      if (text == nullptr) {
        PyErr_Clear();  // a lone surrogate
        return false;
      }
      add_text(call.key, {text, static_cast<size_t>(bytes)});
      return true;
    }
    case c10::TypeKind::ScalarTypeType:
      if (!THPDtype_Check(value)) return false;
      number.type = 'i';
      number.integer = static_cast<int64_t>(reinterpret_cast<THPDtype*>(value)->scalar_type);
      break;
    case c10::TypeKind::BoolType:
      if (!PyBool_Check(value)) return false;
      number.type = 'b';
      number.integer = value == Py_True;
      break;
    case c10::TypeKind::FloatType:
    case c10::TypeKind::NumberType:
      if (PyFloat_CheckExact(value)) {
        number.real = PyFloat_AS_DOUBLE(value);
        break;
      }
      if (type.kind() == c10::TypeKind::FloatType) {
        if (!PyLong_CheckExact(value)) return false;
        number.real = PyLong_AsDouble(value);
        if (number.real == -1 && PyErr_Occurred()) {
          PyErr_Clear();  // too large
          return false;
        }
        break;
      }
      [[fallthrough]];
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: {
      int overflow = 0;
      number.type = 'i';
      number.integer = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : 0;
      if (!PyLong_CheckExact(value) || overflow) return false;
      break;
    }
    default:
      return false;
  }
  add_number(call, number, flags & (number.type == 'f' ? kFloatsVary : kIntegersVary));
  return true;
}

// Reads the arguments in the order of the schema, left-out ones as their defaults; false where torch is to judge.
inline bool read_objects(
    const FastPath& fast_path, PyObject* const* values, size_t given, PyObject* names, BoxedCall& call) {
  const auto& parameters = fast_path.handle->schema().arguments();
  const auto& flags = (*fast_path.registered)->flags;
  const size_t named = names == nullptr ? 0 : static_cast<size_t>(PyTuple_GET_SIZE(names));
  if (given > parameters.size()) return false;
  size_t used = 0;  // of the names
  for (size_t i = 0; i < parameters.size(); ++i) {
    PyObject* value = i < given ? values[i] : nullptr;
    for (size_t at = 0; value == nullptr && at < named && used < named; ++at)
      if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, at), parameters[i].name().c_str()) == 0)
        value = values[given + at], ++used;
    if (i < given && parameters[i].kwarg_only()) return false;
    if (value != nullptr) {
      if (!add_object(call, value, *parameters[i].real_type(), flags[i])) return false;
    } else if (!parameters[i].default_value() || !add_value(call, *parameters[i].default_value(), flags[i])) {
      return false;
    }
  }
  return used == named;
}

inline PyObject* results_by_schema(const c10::FunctionSchema& schema, Tensors& results) {
  const auto& returns = schema.returns();
  const auto count = static_cast<Py_ssize_t>(results.size());
  const bool is_list = returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType;
  if (!is_list && returns.size() == 1) return THPVariable_Wrap(std::move(results[0]));
  auto found = THPObjectPtr(is_list ? PyList_New(count) : PyTuple_New(count));
  for (Py_ssize_t i = 0; found && i < count; ++i) {
    PyObject* result = THPVariable_Wrap(std::move(results[i]));
    if (result == nullptr) return nullptr;
    if (is_list) PyList_SET_ITEM(found.get(), i, result);
    else PyTuple_SET_ITEM(found.get(), i, result);
  }
  return found.release();
}

inline PyObject* fast_path_call(PyObject* self, PyObject* const* values, size_t count, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto& fast_path = *reinterpret_cast<FastPath*>(self);
  // Torch's kernels for autocast come before ours, modes and profilers would not see the call, and what requires gradients
  // is told by add_object.
  const bool is_plain = plain_dispatch() && autocast_word() == 0 && !function_mode_sees() && !at::hasCallbacks();
  if (is_plain && fast_path.handle->hasSchema()) {
    BoxedCall call;
    if (read_objects(fast_path, values, static_cast<size_t>(PyVectorcall_NARGS(count)), names, call)) {
      if (const auto plan = (*fast_path.registered)->plans.find(call.key)) {
        Tensors results;
        run_plan(*plan, call, results);
        return results_by_schema(fast_path.handle->schema(), results);
      }
    }
  }
  return PyObject_Vectorcall(fast_path.before, values, count, names);
  END_HANDLE_TH_ERRORS
}

// It has the hash and the attributes of what it stands before: torch keeps ops in dictionaries by that hash.
inline Py_hash_t fast_path_hash(PyObject* self) { return PyObject_Hash(reinterpret_cast<FastPath*>(self)->before); }

inline PyObject* fast_path_attribute(PyObject* self, PyObject* name) {
  return PyObject_GetAttr(reinterpret_cast<FastPath*>(self)->before, name);
}

inline void fast_path_delete(PyObject* self) {
  auto* fast_path = reinterpret_cast<FastPath*>(self);
  Py_CLEAR(fast_path->before);
  delete fast_path->registered;
  delete fast_path->handle;
  Py_TYPE(self)->tp_free(self);
}

inline PyTypeObject fast_path_type = bare_type();

inline bool ready_fast_path_type() {
  fast_path_type.tp_name = "fusegen_native.FastPath";
  fast_path_type.tp_basicsize = sizeof(FastPath);
  fast_path_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  fast_path_type.tp_vectorcall_offset = offsetof(FastPath, vectorcall);
  fast_path_type.tp_call = PyVectorcall_Call;
  fast_path_type.tp_hash = fast_path_hash;
  fast_path_type.tp_getattro = fast_path_attribute;
  fast_path_type.tp_dealloc = fast_path_delete;
  return PyType_Ready(&fast_path_type) == 0;
}

// fast_path(kernels, op, overload, before): what calls overload `overload` of `op` faster than `before`, torch's own way.
inline PyObject* make_fast_path(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *kernels, *before;
  const char *op, *overload;
  if (!PyArg_ParseTuple(arguments, "OssO", &kernels, &op, &overload, &before)) return nullptr;
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op, overload);
  const auto registered = shared_registered(kernels);
  auto* fast_path = PyObject_New(FastPath, &fast_path_type);
  if (fast_path == nullptr) return nullptr;
  fast_path->vectorcall = fast_path_call;
  fast_path->before = Py_NewRef(before);
  fast_path->registered = new std::shared_ptr<RegisteredPlans>(registered);
  fast_path->handle = new c10::OperatorHandle(handle);
  return reinterpret_cast<PyObject*>(fast_path);
  END_HANDLE_TH_ERRORS
}

}  // namespace fusegen
