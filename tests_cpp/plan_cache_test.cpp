// Kept plans: every field of a request tells two of them apart, in each combination.
#include "conv/plan_cache.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

namespace convbwd::test {
namespace {

using Change = std::function<void(Request&)>;

TEST(PlanKey, TellsChoicesApart) {
  std::vector<PlanKey> keys;
  Request r;
  for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::direct, Algorithm::blas, Algorithm::reference,
                                    Algorithm::matrix, Algorithm::winograd})
    for (const Precision precision : {Precision::default_, Precision::strict, Precision::fast})
      for (const PaddingMode padding : {PaddingMode::explicit_, PaddingMode::valid, PaddingMode::same})
        for (const Soc soc : {Soc::a2, Soc::ascend950, Soc::ascend910}) {
          r.algorithm = algorithm, r.precision = precision, r.padding_mode = padding, r.soc = soc;
          keys.emplace_back(r, 1, 0);
        }
  for (std::size_t i = 0; i < keys.size(); ++i)
    for (std::size_t j = 0; j < keys.size(); ++j) EXPECT_EQ(keys[i] == keys[j], i == j) << i << ", " << j;
}

TEST(PlanKey, TellsEveryFieldApart) {
  const std::vector<Change> changes{[](Request&) {},
                                    [](Request& r) { r.grad_output.emplace(); },
                                    [](Request& r) { r.input.shape = {1, 2, 3}; },
                                    [](Request& r) { r.input.strides = {1, 2, 3}; },
                                    [](Request& r) { r.input.dtype = DType::float64; },
                                    [](Request& r) { r.input.packing.emplace(); },
                                    [](Request& r) { r.weight.shape = {1, 2, 3}; },
                                    [](Request& r) { r.bias.emplace(); },
                                    [](Request& r) { r.bias_sizes.emplace(); },
                                    [](Request& r) { r.stride = {2}; },
                                    [](Request& r) { r.padding = {2}; },
                                    [](Request& r) { r.dilation = {2}; },
                                    [](Request& r) { r.output_padding = {2}; },
                                    [](Request& r) { r.transposed = true; },
                                    [](Request& r) { r.groups = 2; },
                                    [](Request& r) { r.output_mask[0] = false; },
                                    [](Request& r) { r.output_mask[1] = false; },
                                    [](Request& r) { r.output_mask[2] = false; },
                                    [](Request& r) { r.channels_last = true; },
                                    [](Request& r) { r.result_strides[0] = {1, 2, 3}; },
                                    [](Request& r) { r.result_strides[1] = {1, 2, 3}; },
                                    [](Request& r) { r.result_packings[0].emplace(); },
                                    [](Request& r) { r.result_packings[2].emplace(); },
                                    [](Request& r) { r.result_dtypes[0] = DType::float32; },
                                    [](Request& r) { r.result_dtypes[1] = DType::float32; },
                                    [](Request& r) { r.cube_math_type = CubeMathType::use_hf32; },
                                    [](Request& r) { r.accumulate = true; },
                                    [](Request& r) { r.per_sample = true; },
                                    [](Request& r) { r.sums[0] = 1; },
                                    [](Request& r) { r.sums[1] = 1; }};
  std::vector<PlanKey> keys;
  for (const Change& change : changes) {
    Request r;
    change(r);
    keys.emplace_back(r, 1, 0);
  }
  keys.emplace_back(Request{}, 2, 0);
  keys.emplace_back(Request{}, 1, 1);
  for (std::size_t i = 0; i < keys.size(); ++i)
    for (std::size_t j = 0; j < keys.size(); ++j) EXPECT_EQ(keys[i] == keys[j], i == j) << i << ", " << j;
}

// Requests as long as they can be: five axes and strides of their own everywhere.
TEST(PlanKey, HoldsTheLongestRequest) {
  const Tensor tensor{nullptr, DType::float32, {1, 2, 3, 4, 5}, {5, 4, 3, 2, 1}, Packing{}};
  Request r;
  r.grad_output = r.input = r.weight = tensor;
  r.bias_sizes = {1};
  r.stride = r.dilation = r.output_padding = {1, 1, 1};
  r.padding = {1, 1, 1, 1, 1, 1};
  r.result_strides = {Shape(5), Shape(6), Shape(2)};
  for (auto& packing : r.result_packings) packing.emplace();
  for (auto& dtype : r.result_dtypes) dtype = DType::float64;
  EXPECT_TRUE(PlanKey(r, 1, 0).whole());
}

TEST(PlanCache, ForgetsTheLeastRecentlyUsed) {
  PlanCache<int> cache(2);
  const auto key = [](int threads) { return PlanKey(Request{}, threads, 0); };
  for (int i = 1; i < 3; ++i) cache.insert(key(i), std::make_shared<const int>(i));
  EXPECT_EQ(*cache.find(key(1)), 1);
  cache.insert(key(3), std::make_shared<const int>(3));
  EXPECT_EQ(cache.find(key(2)), nullptr);
  EXPECT_EQ(*cache.find(key(1)), 1);
  EXPECT_EQ(*cache.find(key(3)), 3);
}

}  // namespace
}  // namespace convbwd::test
