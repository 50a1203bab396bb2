// A gradient of each image for itself: the pass of one image, repeated. Images are the tasks where there are enough of
// them, else each image's own tasks share the threads; the bits are the same.
#include "engine/pass.h"

namespace convbwd {
namespace {

class PerSample final : public Pass {
 public:
  PerSample(std::unique_ptr<Pass> one, Index samples, Index step, int slots)
      : one_(std::move(one)), samples_(samples), step_(step), slots_(slots) {}

  std::size_t workspace_bytes() const override { return static_cast<std::size_t>(slots_ * slot_bytes()); }
  std::string explain() const override {
    return "for each of " + std::to_string(samples_) + " images, " + std::to_string(slots_) +
           " at a time: " + one_->explain();
  }
  Index3 tile() const override { return one_->tile(); }

  void run(const Operands& o, std::byte* workspace) const override {
    parallel_for(samples_, slots_, [&](Index n, int slot) {
      Operands sample = o;
      for (View* image : {&sample.x, &sample.y}) {
        if (!image->data) continue;
        image->data = advance(image->data, image->dtype, n * image->stride[0]);
        image->size[0] = 1;
      }
      for (View* result : {&sample.w, &sample.bias})
        if (result->data) result->data = advance(result->data, result->dtype, n * step_);
      one_->run(sample, workspace + slot * slot_bytes());
    });
  }

 private:
  Index slot_bytes() const { return round_up(static_cast<Index>(one_->workspace_bytes()), 64); }

  const std::unique_ptr<Pass> one_;
  const Index samples_, step_;
  const int slots_;
};

}  // namespace

std::unique_ptr<Pass> make_per_sample(std::unique_ptr<Pass> one, Index samples, Index step, int slots) {
  return std::make_unique<PerSample>(std::move(one), samples, step, slots);
}

}  // namespace convbwd
