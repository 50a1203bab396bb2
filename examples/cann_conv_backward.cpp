// A host program for Ascend: the gradients of a 3x3 convolution by aclnnConvolutionBackward. It is the same source on a
// card; here it runs on the processor.
#include <acl/acl.h>
#include <aclnnop/aclnn_convolution_backward.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

namespace {

void check(int status, const char* what) {
  if (status == ACL_SUCCESS) return;
  std::fprintf(stderr, "%s failed with %d: %s\n", what, status, aclGetRecentErrMsg());
  std::exit(1);
}

// A float tensor on the device.
struct DeviceTensor {
  std::vector<int64_t> shape;
  size_t count;
  void* data = nullptr;
  aclTensor* tensor = nullptr;

  DeviceTensor(std::vector<int64_t> dims, float value)
      : shape(std::move(dims)), count(std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>())) {
    const std::vector<float> host(count, value);
    const size_t bytes = count * sizeof(float);
    check(aclrtMalloc(&data, bytes, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
    check(aclrtMemcpy(data, bytes, host.data(), bytes, ACL_MEMCPY_HOST_TO_DEVICE), "aclrtMemcpy");
    std::vector<int64_t> strides(shape.size(), 1);
    for (size_t a = shape.size() - 1; a-- > 0;) strides[a] = strides[a + 1] * shape[a + 1];
    tensor = aclCreateTensor(shape.data(), shape.size(), ACL_FLOAT, strides.data(), 0, ACL_FORMAT_ND, shape.data(),
                             shape.size(), data);
  }
  ~DeviceTensor() {
    aclDestroyTensor(tensor);
    aclrtFree(data);
  }
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;

  std::vector<float> to_host() const {
    std::vector<float> host(count);
    check(aclrtMemcpy(host.data(), count * sizeof(float), data, count * sizeof(float), ACL_MEMCPY_DEVICE_TO_HOST),
          "aclrtMemcpy");
    return host;
  }
};

aclIntArray* ints(const std::vector<int64_t>& values) { return aclCreateIntArray(values.data(), values.size()); }

}  // namespace

int main() {
  aclrtStream stream = nullptr;
  check(aclInit(nullptr), "aclInit");
  check(aclrtSetDevice(0), "aclrtSetDevice");
  check(aclrtCreateStream(&stream), "aclrtCreateStream");

  bool right = false;
  {
    const DeviceTensor grad_output({1, 2, 4, 4}, 1), input({1, 3, 4, 4}, 1), weight({2, 3, 3, 3}, 1);
    const DeviceTensor grad_input({1, 3, 4, 4}, 0), grad_weight({2, 3, 3, 3}, 0), grad_bias({2}, 0);
    const bool wanted[] = {true, true, true};
    aclBoolArray* const mask = aclCreateBoolArray(wanted, 3);
    aclIntArray *const bias_sizes = ints({2}), *const ones = ints({1, 1}), *const zeros = ints({0, 0});

    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    const auto plan = [&](const aclIntArray* padding) {
      return aclnnConvolutionBackwardGetWorkspaceSize(grad_output.tensor, input.tensor, weight.tensor, bias_sizes, ones,
                                                      padding, ones, false, zeros, 1, mask, 0, grad_input.tensor,
                                                      grad_weight.tensor, grad_bias.tensor, &size, &executor);
    };
    std::printf("without padding: %d", plan(zeros));  // a mistake is answered with a code
    std::printf(" (%s)\n", aclGetRecentErrMsg());

    check(plan(ones), "aclnnConvolutionBackwardGetWorkspaceSize");
    void* workspace = nullptr;
    if (size > 0) check(aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
    check(aclnnConvolutionBackward(workspace, size, executor, stream), "aclnnConvolutionBackward");
    check(aclrtSynchronizeStream(stream), "aclrtSynchronizeStream");

    const std::vector<float> dx = grad_input.to_host(), dw = grad_weight.to_host(), db = grad_bias.to_host();
    std::printf("gradInput, first row: %g %g %g %g\n", dx[0], dx[1], dx[2], dx[3]);
    std::printf("gradWeight, first row: %g %g %g\n", dw[0], dw[1], dw[2]);
    std::printf("gradBias: %g %g\n", db[0], db[1]);
    right = dx[0] == 8 && dx[1] == 12 && dx[5] == 18 && dw[0] == 9 && dw[4] == 16 && db[1] == 16;

    if (size > 0) aclrtFree(workspace);
    aclDestroyBoolArray(mask);
    for (const aclIntArray* array : {bias_sizes, ones, zeros}) aclDestroyIntArray(array);
  }
  check(aclrtDestroyStream(stream), "aclrtDestroyStream");
  check(aclrtResetDevice(0), "aclrtResetDevice");
  check(aclFinalize(), "aclFinalize");
  return right ? 0 : 1;
}
