// A second device over ordinary memory: torch's own device rules with the processor's arithmetic.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>

namespace {

const c10::Device SECOND(c10::DeviceType::PrivateUse1, 0);

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* place = bytes ? std::malloc(bytes) : nullptr;
    return {place, place, &std::free, SECOND};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

// One stream, on which all is done at once: an event is over when it is recorded.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::DeviceType::PrivateUse1;
  c10::DeviceType type() const override { return static_type; }
  c10::Device exchangeDevice(c10::Device) const override { return SECOND; }
  c10::Device getDevice() const override { return SECOND; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, SECOND);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};

Memory memory;
Hooks hooks;

const c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

at::ScalarType known(std::optional<at::ScalarType> dtype) {
  auto type = c10::dtype_or_default(dtype);
  TORCH_CHECK(type != at::kDouble, SECOND, " has no double precision");
  return type;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, KEYS, known(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, KEYS,
                                           known(dtype));
}

// The same memory, seen as the processor's.
at::Tensor as_cpu(const at::Tensor& t) {
  if (!t.defined() || t.device().is_cpu()) return t;
  auto storage = c10::Storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(),
                              c10::DataPtr(t.storage().mutable_data(), c10::kCPU));
  auto view = at::detail::make_tensor<at::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return view;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  as_cpu(to).copy_(as_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

// Tensors of two devices meet nowhere, but that elementwise operations take a single number, which
// is how torch hands on the numbers of a program.
void check(const c10::OperatorHandle& op, const at::Tensor& t) {
  if (!t.defined() || t.device() == SECOND) return;
  bool number = t.dim() == 0 && op.hasTag(at::Tag::pointwise);
  TORCH_CHECK(number, op.schema().name(), ": expected all tensors on ", SECOND,
              ", but found one of shape ", t.sizes(), " on ", t.device());
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  TORCH_CHECK(!op.hasTag(at::Tag::nondeterministic_seeded), op.schema().name(), ": ", SECOND,
              " draws no random numbers, its streams would be others");
  for (const auto& value : torch::jit::last(stack, op.schema().arguments().size())) {
    if (value.isTensor()) check(op, value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& t : value.toTensorList()) check(op, t);
    if (value.isOptionalTensorList())
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorList())
        if (t) check(op, *t);
  }
  at::native::cpu_fallback(op, stack);
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& w,
                       const std::optional<at::Tensor>& b, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef more, int64_t groups) {
  TORCH_CHECK(x.device() == SECOND && w.device() == SECOND && (!b || !b->defined() || b->device() == SECOND),
              "convolution: expected all tensors on ", SECOND);
  std::optional<at::Tensor> bias = b ? std::optional<at::Tensor>(as_cpu(*b)) : b;
  return at::convolution(as_cpu(x), as_cpu(w), bias, stride, padding, dilation, transposed, more,
                         groups)
      .to(SECOND);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& g, const at::Tensor& x, const at::Tensor& w, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef more,
    int64_t groups, std::array<bool, 3> wanted) {
  std::vector<int64_t> bias{transposed ? w.size(1) * groups : w.size(0)};
  auto [gx, gw, gb] = at::convolution_backward(
      as_cpu(g), as_cpu(x), as_cpu(w), at::OptionalIntArrayRef(bias), stride, padding, dilation,
      transposed, more, groups, wanted);
  auto back = [](const at::Tensor& t) { return t.defined() ? t.to(SECOND) : t; };
  return {back(gx), back(gw), back(gb)};
}

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &memory);
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("resize_", at::native::resize_);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}
