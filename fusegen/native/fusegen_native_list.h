// Lists of tensors, read for fusegen/foreach_op.py: what a plan depends on of each, and where its elements are.
#pragma once

#include "fusegen_native_node.h"

namespace fusegen {

// read_tensors(list) -> (words, addresses), or None where only Python can judge.
inline PyObject* read_tensors(PyObject*, PyObject* given) {
  const auto list = THPObjectPtr(PySequence_Fast(given, "read_tensors takes a list"));
  if (!list) return nullptr;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(list.get());
  Key key;
  Addresses addresses;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* value = PySequence_Fast_GET_ITEM(list.get(), i);
    if (!THPVariable_CheckExact(value) || !add_tensor(key, THPVariable_Unpack(value), false, addresses)) Py_RETURN_NONE;
  }
  auto found = THPObjectPtr(PyList_New(count));
  if (!found) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* address = PyLong_FromVoidPtr(const_cast<char*>(addresses[static_cast<size_t>(i)]));
    if (address == nullptr) return nullptr;
    PyList_SET_ITEM(found.get(), i, address);
  }
  const auto* words = reinterpret_cast<const char*>(key.words.data());
  const auto bytes = static_cast<Py_ssize_t>(key.words.size() * sizeof(uint64_t));
  return Py_BuildValue("y#N", words, bytes, found.release());
}

}  // namespace fusegen
