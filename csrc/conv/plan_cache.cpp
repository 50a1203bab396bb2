#include "conv/plan_cache.h"

namespace convbwd {

void PlanKey::add(std::int64_t number) {
  if (count_ < numbers_.size()) numbers_[count_] = number;
  ++count_;
  hash_ = (hash_ ^ static_cast<std::size_t>(number)) * 1099511628211u;
}

void PlanKey::add(const Shape& shape) {
  add(static_cast<std::int64_t>(shape.size()));
  for (const std::int64_t n : shape) add(n);
}

void PlanKey::add(const Tensor& tensor) {
  add(static_cast<std::int64_t>(tensor.dtype));
  add(tensor.shape);
  add(tensor.strides);
  add(tensor.packing);
}

void PlanKey::add(const std::optional<Packing>& packing) {
  add(packing ? static_cast<std::int64_t>(packing->format) : -1);
  if (packing) add(packing->c0), add(packing->groups);
}

PlanKey::PlanKey(const Request& r, int threads, int isa) {
  const auto& mask = r.output_mask;
  add(threads);
  add(isa);
  add(mask[0] | mask[1] << 1 | mask[2] << 2 | r.transposed << 3 | r.channels_last << 4 |
      r.grad_output.has_value() << 5 | r.bias.has_value() << 6 | r.bias_sizes.has_value() << 7 | r.accumulate << 8 |
      r.per_sample << 9);
  std::int64_t choices = 0;  // a byte each, as their types have
  for (const auto choice : {static_cast<std::uint8_t>(r.padding_mode), static_cast<std::uint8_t>(r.algorithm),
                            static_cast<std::uint8_t>(r.precision), static_cast<std::uint8_t>(r.soc)})
    choices = choices << 8 | choice;
  add(choices);
  add(static_cast<std::int64_t>(r.cube_math_type));
  add(r.groups);
  if (r.grad_output) add(*r.grad_output);
  add(r.input);
  add(r.weight);
  if (r.bias) add(*r.bias);
  if (r.bias_sizes) add(*r.bias_sizes);
  for (const Shape* s : {&r.stride, &r.padding, &r.dilation, &r.output_padding}) add(*s);
  for (const Shape& s : r.result_strides) add(s);
  for (const std::int64_t n : r.sums) add(n);
  for (const auto& packing : r.result_packings) add(packing);
  for (const auto& dtype : r.result_dtypes) add(dtype ? static_cast<std::int64_t>(*dtype) : -1);
}

}  // namespace convbwd
