// fusegen's native call path as a Python module: what Python calls of it. fusegen/native/module.py builds and loads it.
// Its files, each including those that it needs, lowest first:
//
//   _table.h       what has been remembered, by key
//   _fused.h       a product and its epilogue as one kernel of cuDNN's
//   _product.h     matrix products among a plan's steps
//   _plan.h        what a call looks like (Key), and what is done for it (Plan)
//   _reader.h      a plan as Python hands it over
//   _leaf.h        gradients that products add to a leaf's .grad
//   _node.h        a call as a node of torch's autograd graph
//   _list.h        lists of tensors, as fg.foreach reads them
//   _kernel.h      the kernels that torch's dispatcher calls for registered ops
//   _caller.h      an op's cache of calls
//   _fast_path.h   what torch.ops.fusegen.*.* calls first

#include "fusegen_native_caller.h"
#include "fusegen_native_fast_path.h"
#include "fusegen_native_list.h"
#include "fusegen_native_reader.h"

namespace fusegen {
namespace {

PyMethodDef module_methods[] = {
    {"plan", make_plan, METH_VARARGS, nullptr},
    {"insert_backward", insert_backward, METH_VARARGS, nullptr},
    {"accumulate", accumulate, METH_O, nullptr},
    {"is_accumulating", is_accumulating_here, METH_NOARGS, nullptr},
    {"accumulate_into", accumulate_into, METH_VARARGS, nullptr},
    {"install", install_kernels, METH_VARARGS, nullptr},
    {"has_pending_call", has_pending_call, METH_O, nullptr},
    {"record_kernel", record_kernel, METH_VARARGS, nullptr},
    {"forget_kernels", forget_kernels, METH_O, nullptr},
    {"plan_count", plan_count, METH_O, nullptr},
    {"fast_path", make_fast_path, METH_VARARGS, nullptr},
    {"read_tensors", read_tensors, METH_O, nullptr},
    {"watch_reports", watch_reports, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "fusegen_native", "fusegen's native call path", -1, module_methods,
    nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace fusegen

PyMODINIT_FUNC PyInit_fusegen_native() {
  using namespace fusegen;
  if (!ready_caller_type() || !ready_fast_path_type()) return nullptr;
  PyObject* module = PyModule_Create(&module_definition);
  if (module == nullptr) return nullptr;
  auto torch_c = THPObjectPtr(PyImport_ImportModule("torch._C"));
  if (!torch_c) return nullptr;
  raw_stream_function = PyObject_GetAttrString(torch_c.get(), "_cuda_getCurrentRawStream");
  if (raw_stream_function == nullptr) PyErr_Clear();  // a build without CUDA
  auto devices = THPObjectPtr(PyImport_ImportModule("torch.utils._device"));
  PyObject* context = devices ? PyObject_GetAttrString(devices.get(), "DeviceContext") : nullptr;
  if (context != nullptr && PyType_Check(context)) device_context = reinterpret_cast<PyTypeObject*>(context);
  PyErr_Clear();
  if (PyModule_AddObject(module, "Caller", Py_NewRef(reinterpret_cast<PyObject*>(&caller_type))) < 0) return nullptr;
  return module;
}
