// fusegen's native call path, part 5: the Python module. See fusegen/native/module.py, which builds and loads it.

#include "fusegen_native_fast_path.h"

namespace fusegen {
namespace {

// Adds a compile-time constant by value; false for what cannot be compared (lists, arrays, tensors of other kinds).
bool add_constant(Key& key, PyObject* value) {
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

bool add_argument(Call& call, PyObject* value, int64_t flags) {
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
bool read_call(const Caller& caller, PyObject* args, PyObject* kwargs, Call& call) {
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

PyObject* results_to_python(const Plan& plan, Tensors& results) {
  if (plan.one) return THPVariable_Wrap(std::move(results[0]));
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(plan.visible));
  for (size_t i = 0; tuple != nullptr && i < plan.visible; ++i)
    PyTuple_SET_ITEM(tuple, i, THPVariable_Wrap(std::move(results[i])));
  return tuple;
}

PyObject* run_call(const std::shared_ptr<Plan>& plan, const Call& call) {
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

PyObject* caller_call(PyObject* self, PyObject* const* values, size_t count, PyObject* names) {
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
PyObject* caller_insert(PyObject* self, PyObject* arguments) {
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
PyObject* measure(PyObject* self, PyObject* arguments, bool allocated) {
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

PyObject* caller_recognizes(PyObject* self, PyObject* arguments) { return measure(self, arguments, false); }

PyObject* caller_allocates(PyObject* self, PyObject* arguments) { return measure(self, arguments, true); }

PyObject* caller_clear(PyObject* self, PyObject*) {
  reinterpret_cast<Caller*>(self)->table->clear();
  Py_RETURN_NONE;
}

Py_ssize_t caller_size(PyObject* self) {
  return static_cast<Py_ssize_t>(reinterpret_cast<Caller*>(self)->table->size());
}

PyObject* caller_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
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
int visit_plan(const std::shared_ptr<Plan>& plan, visitproc visit, void* arg) {
  if (plan.use_count() != 1) return 0;
  Py_VISIT(plan->fail);
  if (!plan->training) return 0;
  Py_VISIT(plan->training->python);
  return plan->training->backwards.each(
      [&](const Key&, const std::shared_ptr<Plan>& backward) { return visit_plan(backward, visit, arg); });
}

// An op holds its caller, whose plans hold what computes the op's gradients, and that may hold the op: a declared
// gradient does, and so may a constant.
int caller_traverse(PyObject* self, visitproc visit, void* arg) {
  const auto& caller = *reinterpret_cast<Caller*>(self);
  Py_VISIT(caller.slow_path);
  Py_VISIT(caller.parameters);
  return caller.table->each([&](const Key& key, const std::shared_ptr<Plan>& plan) {
    for (PyObject* object : key.objects) Py_VISIT(object);
    return visit_plan(plan, visit, arg);
  });
}

int caller_forget(PyObject* self) {
  auto& caller = *reinterpret_cast<Caller*>(self);
  Py_CLEAR(caller.slow_path);
  caller.table->clear();
  return 0;
}

void caller_delete(PyObject* self) {
  PyObject_GC_UnTrack(self);
  auto* caller = reinterpret_cast<Caller*>(self);
  Py_CLEAR(caller->slow_path);
  Py_CLEAR(caller->parameters);
  delete caller->table;
  delete caller->flags;
  Py_TYPE(self)->tp_free(self);
}

// -- plans from Python ------------------------------------------------------------------------------------------------

// The words of a plan, in the order in which fusegen/pytorch/calls/native_cache.py writes them.
class Reader {
 public:
  Reader(const char* data, size_t bytes) : at_(data), end_(data + bytes) {}

  int64_t next() {
    if (end_ - at_ < 8) throw std::runtime_error("fusegen: a plan ends early");
    int64_t word;
    std::memcpy(&word, at_, 8);
    at_ += 8;
    return word;
  }

  template <class T>
  T address() { return reinterpret_cast<T>(next()); }

  std::vector<int64_t> list() {
    std::vector<int64_t> words(static_cast<size_t>(next()));
    for (int64_t& word : words) word = next();
    return words;
  }

 private:
  const char *at_, *end_;
};

std::unique_ptr<Planned> read_planned(Reader& words) {
  auto planned = std::make_unique<Planned>();
  planned->matmul = words.address<Planned::Matmul>();
  planned->tell = words.address<Planned::Tell>();
  for (void** handle : {&planned->handle, &planned->operation, &planned->right, &planned->left, &planned->result,
                        &planned->algorithm})
    *handle = words.address<void*>();
  planned->workspace = words.next();
  for (int64_t& attribute : planned->pointers) attribute = words.next();
  planned->adds = words.next();
  return planned;
}

std::unique_ptr<Fused> read_fused(Reader& words) {
  auto fused = std::make_unique<Fused>();
  fused->create = words.address<decltype(fused->create)>();
  fused->tell = words.address<decltype(fused->tell)>();
  fused->finish = words.address<decltype(fused->finish)>();
  fused->execute = words.address<decltype(fused->execute)>();
  fused->destroy = words.address<decltype(fused->destroy)>();
  fused->set_stream = words.address<decltype(fused->set_stream)>();
  fused->handle = words.address<void*>();
  fused->plan = words.address<void*>();
  fused->workspace = words.next();
  fused->unique = words.list();
  fused->constants = words.list();
  return fused;
}

std::unique_ptr<Product> read_product(Reader& words) {
  auto product = std::make_unique<Product>();
  product->kind = words.next();
  product->dtype = static_cast<at::ScalarType>(words.next());
  const int64_t count = words.next();
  if (product->kind == Product::kPlanned) product->planned = read_planned(words);
  if (product->kind == Product::kFused) product->fused = read_fused(words);
  for (int64_t i = count; i > 0; --i) {
    Factor factor;
    factor.kind = words.next();
    factor.index = words.next();
    factor.offset = words.next();
    factor.sizes = words.list();
    factor.strides = words.list();
    product->factors.push_back(std::move(factor));
  }
  return product;
}

Step read_step(Reader& words) {
  Step step;
  step.function = words.address<void*>();
  if (step.function == nullptr) {
    step.product = read_product(words);
    return step;
  }
  step.early = words.next() != 0;
  step.shared = static_cast<unsigned>(words.next());
  for (unsigned& size : step.grid) size = static_cast<unsigned>(words.next());
  for (unsigned& size : step.block) size = static_cast<unsigned>(words.next());
  const auto slots = words.next();
  for (int64_t i = 0; i < slots; ++i) {
    Slot slot{};
    slot.kind = words.next();
    slot.index = words.next();
    slot.offset = words.next();
    slot.format = static_cast<char>(words.next());
    step.slots.push_back(slot);
  }
  for (const int64_t word : words.list()) step.block_image.push_back(static_cast<uint64_t>(word));
  for (const int64_t word : words.list()) step.offsets.push_back(static_cast<uint32_t>(word));
  return step;
}

void read_training(Reader& words, Training& training) {
  const auto saves = words.next();
  for (int64_t i = 0; i < saves; ++i) {
    const bool is_result = words.next() != 0;
    training.saves.push_back({is_result, words.next()});
  }
  training.differentiable = words.list();
}

// plan(words, dtypes of the results, fail, name, backward): name and backward are None where nothing is recorded.
PyObject* make_plan(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const char *data, *name;
  Py_ssize_t bytes;
  PyObject *dtypes, *fail, *backward;
  if (!PyArg_ParseTuple(arguments, "y#O!OzO", &data, &bytes, &PyTuple_Type, &dtypes, &fail, &name, &backward))
    return nullptr;
  Reader words(data, static_cast<size_t>(bytes));
  auto plan = std::make_shared<Plan>();
  plan->cuda = words.next() != 0;
  plan->device = static_cast<c10::DeviceIndex>(words.next());
  plan->launch = words.address<CudaLaunch>();
  plan->launch_ex = words.address<CudaLaunchEx>();
  plan->get_context = words.address<int (*)(void**)>();
  plan->push_context = words.address<int (*)(void*)>();
  plan->pop_context = words.address<int (*)(void**)>();
  plan->context = words.address<void*>();
  plan->shuffle = static_cast<int>(words.next());
  plan->seed = static_cast<uint64_t>(words.next());
  plan->workers = static_cast<int>(words.next());
  plan->stack_slots = words.address<void**>();
  plan->workspace = words.next();
  plan->inputs = words.list();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(dtypes); ++i) {
    auto sizes = words.list();
    auto strides = words.list();
    const auto dtype = reinterpret_cast<THPDtype*>(PyTuple_GET_ITEM(dtypes, i))->scalar_type;
    const int64_t first = words.next(), last = words.next();
    plan->results.push_back({std::move(sizes), std::move(strides), dtype, first, last});
  }
  plan->visible = static_cast<size_t>(words.next());
  plan->one = words.next() != 0;
  plan->gradient_of = words.list();
  for (int64_t i = words.next(); i > 0; --i) {
    Number number;
    number.type = static_cast<char>(words.next());
    const int64_t bits = words.next();
    if (number.type == 'f') std::memcpy(&number.real, &bits, sizeof bits);
    else number.integer = bits;
    plan->fixed.push_back(number);
  }
  for (int64_t i = words.next(); i > 0; --i) plan->steps.push_back(read_step(words));
  for (const Step& step : plan->steps) plan->multiplies = plan->multiplies || step.product;
  if (name != nullptr) {
    plan->training = std::make_unique<Training>();
    plan->training->name = name;
    read_training(words, *plan->training);
    plan->training->python = Py_NewRef(backward);
  }
  plan->fail = Py_NewRef(fail);
  return wrap_plan(std::move(plan));
  END_HANDLE_TH_ERRORS
}

PyMethodDef caller_methods[] = {
    {"insert", caller_insert, METH_VARARGS, nullptr},
    {"recognizes", caller_recognizes, METH_VARARGS, nullptr},
    {"allocates", caller_allocates, METH_VARARGS, nullptr},
    {"clear", caller_clear, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef module_methods[] = {
    {"plan", make_plan, METH_VARARGS, nullptr},
    {"insert_backward", insert_backward, METH_VARARGS, nullptr},
    {"accumulate", accumulate, METH_O, nullptr},
    {"is_accumulating", is_accumulating_here, METH_NOARGS, nullptr},
    {"places", places, METH_VARARGS, nullptr},
    {"install", install_kernels, METH_VARARGS, nullptr},
    {"has_pending_call", has_pending_call, METH_O, nullptr},
    {"record_kernel", record_kernel, METH_VARARGS, nullptr},
    {"forget_kernels", forget_kernels, METH_O, nullptr},
    {"plan_count", plan_count, METH_O, nullptr},
    {"fast_path", make_fast_path, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PySequenceMethods caller_as_sequence{};
PyTypeObject caller_type = bare_type();
PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "fusegen_native", "fusegen's native call path", -1, module_methods,
    nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace fusegen

PyMODINIT_FUNC PyInit_fusegen_native() {
  using namespace fusegen;
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
  if (PyType_Ready(&caller_type) < 0 || !ready_fast_path_type()) return nullptr;
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
