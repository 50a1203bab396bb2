// The runtime: order and errors of streams, memory, the life of the device.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "acl/acl.h"
#include "cann/stream.h"

namespace convbwd::cann {
namespace {

class Runtime : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
  }
};

std::string text(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

TEST(StreamTest, WorksInOrder) {
  std::vector<int> order;
  Stream stream;
  for (int i = 0; i < 100; ++i) stream.push([&order, i] { order.push_back(i); });
  EXPECT_EQ(stream.synchronize(), nullptr);
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(StreamTest, WorksAside) {
  std::atomic<bool> go = false;
  Stream stream;
  stream.push([&] { go.wait(false); });
  go = true;  // were the task not aside, nobody would come here
  go.notify_one();
  EXPECT_EQ(stream.synchronize(), nullptr);
}

TEST(StreamTest, ErrorsComeBackOnce) {
  Stream stream;
  bool after = false;
  stream.push([] { throw std::runtime_error("first"); });
  stream.push([] { throw std::runtime_error("second"); });
  stream.push([&] { after = true; });
  EXPECT_EQ(text(stream.synchronize()), "first");
  EXPECT_TRUE(after);
  EXPECT_EQ(text(stream.synchronize()), "");
}

TEST(StreamTest, FinishesBeforeItGoes) {
  int done = 0;
  {
    Stream stream;
    for (int i = 0; i < 10; ++i) stream.push([&] { ++done; });
  }
  EXPECT_EQ(done, 10);
}

TEST(StreamTest, WorksInAForkedChild) {
  Stream stream;
  auto unused = std::make_unique<Stream>();
  stream.push([] {});
  EXPECT_EQ(stream.synchronize(), nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // does not wait for a thread that is not there
    int done = 0;
    stream.push([&] { ++done; });
    const bool failed = stream.synchronize() != nullptr;
    unused.reset();
    _exit(failed || done != 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  stream.push([] { throw std::runtime_error("still the parent's"); });
  EXPECT_EQ(text(stream.synchronize()), "still the parent's");
}

TEST(RuntimeTest, WantsToBeInitialised) {
  void* p = nullptr;
  EXPECT_EQ(aclrtSetDevice(0), ACL_ERROR_UNINITIALIZE);
  EXPECT_STREQ(aclGetRecentErrMsg(), "aclrtSetDevice: aclInit must be called first");
  EXPECT_STREQ(aclGetRecentErrMsg(), "");
  EXPECT_EQ(aclFinalize(), ACL_ERROR_UNINITIALIZE);
  EXPECT_EQ(aclInit(nullptr), ACL_SUCCESS);
  EXPECT_EQ(aclInit(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
  EXPECT_EQ(aclrtMalloc(&p, 8, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_CONTEXT_NULL);
  EXPECT_EQ(aclrtCreateStream(&p), ACL_ERROR_RT_CONTEXT_NULL);
  EXPECT_EQ(p, nullptr);
  EXPECT_EQ(aclrtResetDevice(0), ACL_ERROR_RT_CONTEXT_NULL);
  EXPECT_EQ(aclrtSetDevice(1), ACL_ERROR_RT_INVALID_DEVICEID);
  EXPECT_EQ(aclrtSetDevice(-1), ACL_ERROR_RT_INVALID_DEVICEID);
  EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
}

TEST_F(Runtime, StreamsOutliveNothing) {
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtDestroyStream(nullptr), ACL_ERROR_INVALID_PARAM);
  ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_ERROR_INVALID_PARAM);
  SetUp();
}

TEST_F(Runtime, CopiesInOrderOfAStream) {
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  std::array<char, 64> host{}, back{};
  void* device = nullptr;
  ASSERT_EQ(aclrtMalloc(&device, host.size(), ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(device) % 64, 0u);
  host.fill('x');
  EXPECT_EQ(aclrtMemcpyAsync(device, 64, host.data(), 64, ACL_MEMCPY_HOST_TO_DEVICE, stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemcpyAsync(back.data(), 64, device, 64, ACL_MEMCPY_DEVICE_TO_HOST, stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeDevice(), ACL_SUCCESS);
  EXPECT_EQ(back, host);
  EXPECT_EQ(aclrtMemset(device, 64, 'y', 32), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemcpy(back.data(), 64, device, 64, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  EXPECT_EQ(std::string(back.data(), 64), std::string(32, 'y') + std::string(32, 'x'));
  EXPECT_EQ(aclrtFree(device), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
}

TEST_F(Runtime, MemoryUsedWrongly) {
  char host[128] = {};
  void *device = nullptr, *pinned = nullptr;
  EXPECT_EQ(aclrtMalloc(nullptr, 8, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMalloc(&device, 0, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMalloc(&device, SIZE_MAX, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_BAD_ALLOC);
  EXPECT_EQ(aclrtMalloc(&device, SIZE_MAX / 2, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_BAD_ALLOC);
  ASSERT_EQ(aclrtMalloc(&device, 100, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  ASSERT_EQ(aclrtMallocHost(&pinned, 100), ACL_SUCCESS);

  const auto copy = [&](void* dst, std::size_t most, const void* src, std::size_t count) {
    return aclrtMemcpy(dst, most, src, count, ACL_MEMCPY_HOST_TO_DEVICE);
  };
  EXPECT_EQ(copy(nullptr, 8, host, 8), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(copy(device, 8, nullptr, 8), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(copy(device, 8, host, 9), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(copy(device, 128, host, 101), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_STREQ(aclGetRecentErrMsg(), "aclrtMemcpy: dst must have 101 bytes, got 100 in its allocation");
  EXPECT_EQ(copy(host, 128, static_cast<char*>(device) + 90, 11), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(copy(host, 128, static_cast<char*>(pinned) + 90, 10), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemcpy(device, 8, host, 8, static_cast<aclrtMemcpyKind>(9)), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(aclrtMemcpyAsync(device, 8, host, 8, ACL_MEMCPY_HOST_TO_DEVICE, host), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMemset(device, 8, 0, 9), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(aclrtMemset(device, 200, 0, 101), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(aclrtMemset(nullptr, 8, 0, 8), ACL_ERROR_INVALID_PARAM);

  EXPECT_EQ(aclrtFree(pinned), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtFreeHost(pinned), ACL_SUCCESS);
  EXPECT_EQ(aclrtFree(device), ACL_SUCCESS);
  EXPECT_EQ(aclrtFree(device), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtFree(host), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtFree(nullptr), ACL_ERROR_INVALID_PARAM);
}

TEST_F(Runtime, ContextsSetTheDevice) {
  std::int32_t device = -1;
  std::uint32_t count = 0;
  EXPECT_EQ(aclrtGetDevice(&device), ACL_SUCCESS);
  EXPECT_EQ(aclrtGetDeviceCount(&count), ACL_SUCCESS);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(aclrtGetDevice(nullptr), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtGetDeviceCount(nullptr), ACL_ERROR_INVALID_PARAM);
  aclrtContext context = nullptr;
  EXPECT_EQ(aclrtCreateContext(nullptr, 0), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtCreateContext(&context, 3), ACL_ERROR_RT_INVALID_DEVICEID);
  ASSERT_EQ(aclrtCreateContext(&context, 0), ACL_SUCCESS);
  EXPECT_EQ(aclrtSetCurrentContext(context), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyContext(context), ACL_SUCCESS);
  EXPECT_EQ(aclrtSetCurrentContext(context), ACL_ERROR_RT_CONTEXT_NULL);
  EXPECT_EQ(aclrtDestroyContext(context), ACL_ERROR_INVALID_PARAM);
}

TEST_F(Runtime, ContextsEndWithTheRuntime) {
  aclrtContext context = nullptr;
  ASSERT_EQ(aclrtCreateContext(&context, 0), ACL_SUCCESS);
  ASSERT_EQ(aclFinalize(), ACL_SUCCESS);
  SetUp();
  EXPECT_EQ(aclrtSetCurrentContext(context), ACL_ERROR_RT_CONTEXT_NULL);
  EXPECT_EQ(aclrtDestroyContext(context), ACL_ERROR_INVALID_PARAM);
  std::int32_t device = -1;
  EXPECT_EQ(aclrtGetDevice(&device), ACL_SUCCESS);
}

TEST_F(Runtime, EventsOrderStreams) {
  std::array<aclrtStream, 2> streams{};
  for (aclrtStream& stream : streams) ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  std::array<aclrtEvent, 2> events{};
  for (aclrtEvent& event : events) ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
  const auto [start, end] = events;
  aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_NOT_READY;
  EXPECT_EQ(aclrtQueryEventStatus(start, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_EVENT_RECORDED_STATUS_COMPLETE);
  EXPECT_EQ(aclrtSynchronizeEvent(start), ACL_SUCCESS);
  float ms = -1;
  EXPECT_EQ(aclrtEventElapsedTime(&ms, start, end), ACL_ERROR_INVALID_PARAM);
  EXPECT_STREQ(aclGetRecentErrMsg(), "aclrtEventElapsedTime: startEvent must be recorded, and its stream's work done");

  // 16 MB take some milliseconds; the other stream reads them when they are there.
  std::vector<char> memory(std::size_t{1} << 24, 'x');
  char last = '\0';
  for (int i = 0; i < 20; ++i) {
    const char value = static_cast<char>('a' + i);
    EXPECT_EQ(aclrtRecordEvent(start, streams[0]), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemsetAsync(memory.data(), memory.size(), value, memory.size(), streams[0]), ACL_SUCCESS);
    EXPECT_EQ(aclrtRecordEvent(end, streams[0]), ACL_SUCCESS);
    EXPECT_EQ(aclrtStreamWaitEvent(streams[1], end), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemcpyAsync(&last, 1, &memory.back(), 1, ACL_MEMCPY_DEVICE_TO_HOST, streams[1]), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(streams[1]), ACL_SUCCESS);
    ASSERT_EQ(last, value);
  }
  EXPECT_EQ(aclrtSynchronizeEvent(end), ACL_SUCCESS);
  EXPECT_EQ(aclrtQueryEventStatus(end, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_EVENT_RECORDED_STATUS_COMPLETE);
  EXPECT_EQ(aclrtEventElapsedTime(&ms, start, end), ACL_SUCCESS);
  EXPECT_GT(ms, 0);
  EXPECT_EQ(aclrtEventElapsedTime(nullptr, start, end), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtQueryEventStatus(end, nullptr), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtRecordEvent(end, &ms), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtCreateEvent(nullptr), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMemsetAsync(memory.data(), 1, 0, 2, streams[0]), ACL_ERROR_RT_PARAM_INVALID);

  EXPECT_EQ(aclrtRecordEvent(end, streams[0]), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyEvent(end), ACL_SUCCESS);  // at work still
  EXPECT_EQ(aclrtDestroyEvent(start), ACL_SUCCESS);
  for (const auto& call : {aclrtDestroyEvent(end), aclrtRecordEvent(end, streams[0]), aclrtSynchronizeEvent(end),
                           aclrtStreamWaitEvent(streams[0], end), aclrtQueryEventStatus(nullptr, &status)})
    EXPECT_EQ(call, ACL_ERROR_INVALID_PARAM);
  for (const aclrtStream stream : streams) EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
}

// A child finds all locks free, whatever other threads were at.
TEST_F(Runtime, FindsAllLocksFreeInAForkedChild) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer's own allocator has locks that a child may find held";
#endif
  const auto calls = [] {
    void* memory = nullptr;
    std::int32_t device = -1;
    aclrtEvent event = nullptr;
    return aclrtGetDevice(&device) + aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST) + aclrtFree(memory) +
           aclrtCreateEvent(&event) + aclrtDestroyEvent(event);
  };
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (!stop) calls();
  });
  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      _exit(calls() != 0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    if (status != 0) break;
  }
  stop = true;
  other.join();
}

TEST(RuntimeTest, MessagesAreThereUntilTheEnd) {
  static const struct AtExit {
    ~AtExit() {
      for (int i = 0; i < 2; ++i) {
        aclrtFree(nullptr);
        if (std::strcmp(aclGetRecentErrMsg(), "aclrtFree: devPtr must not be null") != 0) _exit(1);
      }
    }
  } at_exit;
  EXPECT_EQ(aclrtFree(nullptr), ACL_ERROR_INVALID_PARAM);
  EXPECT_STREQ(aclGetRecentErrMsg(), "aclrtFree: devPtr must not be null");
  EXPECT_EQ(aclrtFree(nullptr), ACL_ERROR_INVALID_PARAM);
}

TEST_F(Runtime, MessagesBelongToTheirThread) {
  EXPECT_EQ(aclrtFree(nullptr), ACL_ERROR_INVALID_PARAM);
  std::thread([] { EXPECT_STREQ(aclGetRecentErrMsg(), ""); }).join();
  EXPECT_STREQ(aclGetRecentErrMsg(), "aclrtFree: devPtr must not be null");
}

TEST(RuntimeTest, ElementTypes) {
  EXPECT_EQ(aclFloat16ToFloat(0x3c00), 1.0F);
  EXPECT_EQ(aclFloatToFloat16(65504.0F), 0x7bff);
  for (const auto& [type, bytes] : std::vector<std::pair<aclDataType, std::size_t>>{
           {ACL_FLOAT, 4}, {ACL_BF16, 2}, {ACL_HIFLOAT8, 1}, {ACL_DOUBLE, 8}, {ACL_COMPLEX128, 16}, {ACL_INT4, 0}})
    EXPECT_EQ(aclDataTypeSize(type), bytes);
}

}  // namespace
}  // namespace convbwd::cann
