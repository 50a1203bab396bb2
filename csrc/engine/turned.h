// Layer engine: a problem with h and w exchanged, for passes that have more to offer along w.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "engine/pass.h"

namespace convbwd {

inline Operands turned(Operands o) {
  for (View* v : {&o.x, &o.w, &o.y}) {
    std::swap(v->size[3], v->size[4]);
    std::swap(v->stride[3], v->stride[4]);
    v->settle_strides();
  }
  return o;
}

inline PassSpec turned(PassSpec spec) {
  Problem& p = spec.problem;
  for (auto* of_axes : {&p.x, &p.w, &p.y, &p.stride, &p.dilation, &p.pad_before})
    std::swap((*of_axes)[1], (*of_axes)[2]);
  spec.operands = turned(spec.operands);
  std::swap(spec.sums[4], spec.sums[5]);
  spec.turned = !spec.turned;
  return spec;
}

/// A pass for the problem as it was, by one for `turned(spec)`, which copies columns of pixels.
class Turned final : public EstimatedPass {
 public:
  Turned(const PassSpec& spec, std::unique_ptr<EstimatedPass> pass) : EstimatedPass(spec), pass_(std::move(pass)) {}
  double nanoseconds() const override { return kByColumns * pass_->nanoseconds(); }
  double cost() const override { return kByColumns * pass_->cost(); }
  std::size_t workspace_bytes() const override { return pass_->workspace_bytes(); }
  std::string explain() const override { return pass_->explain() + ", h and w exchanged"; }
  Index3 tile() const override {
    const Index3 tile = pass_->tile();
    return {tile[0], tile[2], tile[1]};
  }
  Sums summation() const override {
    Sums sums = pass_->summation();
    std::swap(sums[4], sums[5]);
    return sums;
  }
  void run(const Operands& operands, std::byte* workspace) const override { pass_->run(turned(operands), workspace); }

 private:
  // Times as long as for rows of as many taps (Zen 4; 1.1 to 1.3 for 7x1 and 3x1, 64 to 512 channels).
  static constexpr double kByColumns = 1.2;
  const std::unique_ptr<EstimatedPass> pass_;
};

}  // namespace convbwd
