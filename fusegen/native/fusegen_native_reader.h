// fusegen's native call path: a plan as Python hands it over (fusegen/pytorch/calls/native_cache.py), a list of 64-bit
// integers, read into a Plan.

#pragma once

#include "fusegen_native_node.h"

namespace fusegen {

// The fields of a plan, in the order in which fusegen/pytorch/calls/native_cache.py writes them.
class Reader {
 public:
  Reader(const char* data, size_t bytes) : at_(data), end_(data + bytes) {}

  int64_t next() {
    if (end_ - at_ < 8) throw std::runtime_error("fusegen: a plan ends early");
    int64_t field;
    std::memcpy(&field, at_, 8);
    at_ += 8;
    return field;
  }

  template <class T>
  T address() { return reinterpret_cast<T>(next()); }

  std::vector<int64_t> list() {
    std::vector<int64_t> fields(static_cast<size_t>(next()));
    for (int64_t& field : fields) field = next();
    return fields;
  }

 private:
  const char *at_, *end_;
};

inline std::unique_ptr<Planned> read_planned(Reader& fields) {
  auto planned = std::make_unique<Planned>();
  planned->matmul = fields.address<Planned::Matmul>();
  planned->set_attribute = fields.address<Planned::SetAttribute>();
  for (void** handle : {&planned->handle, &planned->operation, &planned->right, &planned->left, &planned->result,
                        &planned->algorithm})
    *handle = fields.address<void*>();
  planned->workspace = fields.next();
  for (int64_t& attribute : planned->pointers) attribute = fields.next();
  planned->adds = fields.next();
  return planned;
}

inline std::unique_ptr<Fused> read_fused(Reader& fields) {
  auto fused = std::make_unique<Fused>();
  fused->create = fields.address<decltype(fused->create)>();
  fused->set_attribute = fields.address<decltype(fused->set_attribute)>();
  fused->finish = fields.address<decltype(fused->finish)>();
  fused->execute = fields.address<decltype(fused->execute)>();
  fused->destroy = fields.address<decltype(fused->destroy)>();
  fused->set_stream = fields.address<decltype(fused->set_stream)>();
  fused->handle = fields.address<void*>();
  fused->plan = fields.address<void*>();
  fused->workspace = fields.next();
  fused->unique = fields.list();
  fused->constants = fields.list();
  return fused;
}

inline std::unique_ptr<Product> read_product(Reader& fields) {
  auto product = std::make_unique<Product>();
  product->kind = fields.next();
  product->dtype = static_cast<at::ScalarType>(fields.next());
  const int64_t count = fields.next();
  if (product->kind == Product::kPlanned) product->planned = read_planned(fields);
  if (product->kind == Product::kFused) product->fused = read_fused(fields);
  for (int64_t i = count; i > 0; --i) {
    Factor factor;
    factor.kind = fields.next();
    factor.index = fields.next();
    factor.offset = fields.next();
    factor.sizes = fields.list();
    factor.strides = fields.list();
    product->factors.push_back(std::move(factor));
  }
  return product;
}

inline Step read_step(Reader& fields) {
  Step step;
  step.function = fields.address<void*>();
  if (step.function == nullptr) {
    step.product = read_product(fields);
    return step;
  }
  step.early = fields.next() != 0;
  step.shared = static_cast<unsigned>(fields.next());
  for (unsigned& size : step.grid) size = static_cast<unsigned>(fields.next());
  for (unsigned& size : step.block) size = static_cast<unsigned>(fields.next());
  const auto slots = fields.next();
  for (int64_t i = 0; i < slots; ++i) {
    Slot slot{};
    slot.kind = fields.next();
    slot.index = fields.next();
    slot.offset = fields.next();
    slot.format = static_cast<char>(fields.next());
    step.slots.push_back(slot);
  }
  for (const int64_t field : fields.list()) step.block_image.push_back(static_cast<uint64_t>(field));
  for (const int64_t field : fields.list()) step.offsets.push_back(static_cast<uint32_t>(field));
  return step;
}

inline void read_training(Reader& fields, Training& training) {
  const auto saves = fields.next();
  for (int64_t i = 0; i < saves; ++i) {
    const bool is_result = fields.next() != 0;
    training.saves.push_back({is_result, fields.next()});
  }
  training.differentiable = fields.list();
}

// plan(fields, dtypes of the results, fail, name, backward): name and backward are None where nothing is recorded.
inline PyObject* make_plan(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const char *data, *name;
  Py_ssize_t bytes;
  PyObject *dtypes, *fail, *backward;
  if (!PyArg_ParseTuple(arguments, "y#O!OzO", &data, &bytes, &PyTuple_Type, &dtypes, &fail, &name, &backward))
    return nullptr;
  Reader fields(data, static_cast<size_t>(bytes));
  auto plan = std::make_shared<Plan>();
  plan->cuda = fields.next() != 0;
  plan->device = static_cast<c10::DeviceIndex>(fields.next());
  plan->launch = fields.address<CudaLaunch>();
  plan->launch_ex = fields.address<CudaLaunchEx>();
  plan->get_context = fields.address<int (*)(void**)>();
  plan->push_context = fields.address<int (*)(void*)>();
  plan->pop_context = fields.address<int (*)(void**)>();
  plan->context = fields.address<void*>();
  plan->shuffle = static_cast<int>(fields.next());
  plan->seed = static_cast<uint64_t>(fields.next());
  plan->workers = static_cast<int>(fields.next());
  plan->stack_slots = fields.address<void**>();
  plan->workspace = fields.next();
  plan->inputs = fields.list();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(dtypes); ++i) {
    auto sizes = fields.list();
    auto strides = fields.list();
    const auto dtype = reinterpret_cast<THPDtype*>(PyTuple_GET_ITEM(dtypes, i))->scalar_type;
    const int64_t first = fields.next(), last = fields.next();
    plan->results.push_back({std::move(sizes), std::move(strides), dtype, first, last});
  }
  plan->visible = static_cast<size_t>(fields.next());
  plan->one = fields.next() != 0;
  plan->gradient_of = fields.list();
  for (int64_t i = fields.next(); i > 0; --i) {
    Number number;
    number.type = static_cast<char>(fields.next());
    const int64_t bits = fields.next();
    if (number.type == 'f') std::memcpy(&number.real, &bits, sizeof bits);
    else number.integer = bits;
    plan->fixed.push_back(number);
  }
  for (int64_t i = fields.next(); i > 0; --i) plan->steps.push_back(read_step(fields));
  for (const Step& step : plan->steps) plan->multiplies = plan->multiplies || step.product;
  if (name != nullptr) {
    plan->training = std::make_unique<Training>();
    plan->training->name = name;
    read_training(fields, *plan->training);
    plan->training->python = Py_NewRef(backward);
  }
  plan->fail = Py_NewRef(fail);
  return wrap_plan(std::move(plan));
  END_HANDLE_TH_ERRORS
}

}  // namespace fusegen
