// fusegen's native call path: a plan as Python hands it over (fusegen/pytorch/calls/native_cache.py), a list of 64-bit
// integers, read into a Plan.

#pragma once

#include "fusegen_native_node.h"

namespace fusegen {

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

inline std::unique_ptr<Planned> read_planned(Reader& words) {
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

inline std::unique_ptr<Fused> read_fused(Reader& words) {
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

inline std::unique_ptr<Product> read_product(Reader& words) {
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

inline Step read_step(Reader& words) {
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

inline void read_training(Reader& words, Training& training) {
  const auto saves = words.next();
  for (int64_t i = 0; i < saves; ++i) {
    const bool is_result = words.next() != 0;
    training.saves.push_back({is_result, words.next()});
  }
  training.differentiable = words.list();
}

// plan(words, dtypes of the results, fail, name, backward): name and backward are None where nothing is recorded.
inline PyObject* make_plan(PyObject*, PyObject* arguments) {
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

}  // namespace fusegen
