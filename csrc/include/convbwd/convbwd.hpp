// The C++ face of convbwd: gradients of every 1-, 2- and 3-D convolution, semantics of aten::convolution_backward.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "convbwd/types.hpp"

namespace convbwd {

/// The algorithm of a call: `automatic` lets the planner choose. `reference` is plain loops with double accumulation.
/// `matrix`, a matrix unit's products, and `winograd`, with the tiles that the precision allows, are taken wherever
/// they can serve, for better or worse; `direct` elsewhere.
enum class Algorithm : std::uint8_t { automatic, direct, blas, reference, matrix, winograd };

enum class PaddingMode : std::uint8_t { explicit_, valid, same };

/// The cubeMathType of Ascend's operators: how operands are rounded before they are multiplied. What a mode does
/// depends on the type that all operands promote to together:
///
///             | allow_fp32_down_precision    | use_fp16 | use_hf32
///   float32   | HF32; on ascend910 float16   | float16  | HF32
///   bfloat16  | -                            | float16  | -
///   float64   | error                        | error    | error
///   others    | -                            | -        | -
///
/// HF32 keeps 11 bits of the mantissa, on ascend950 10, which leaves 16-bit operands as they are. ascend910 takes
/// float16 and float32 alone, the latter with allow_fp32_down_precision or use_fp16. Products of less than float64 are
/// summed in float32 whatever the mode; the bias gradient sums operands as they are.
enum class CubeMathType : std::int64_t { keep_dtype, allow_fp32_down_precision, use_fp16, use_hf32 };

/// The generation of Ascend devices that a mode is taken from: Atlas A2 and A3; Ascend 950; Ascend 910 and 310P.
enum class Soc : std::uint8_t { a2, ascend950, ascend910 };

/// One call as the user states it. Of the tensors only dtype, shape and strides are read here, never the data.
/// Sequences hold one entry for all spatial dimensions or one for each; padding may also hold (before, after) of each
/// dimension in turn. `same` is TensorFlow's rule: total = max((ceil(I/s)-1)*s + (k-1)*d + 1 - I, 0), before = total/2.
struct Request {
  const char* function = "convolution_backward";  ///< or "convolution": begins every message
  std::optional<Tensor> grad_output{};            ///< convolution_backward: required; convolution: absent
  Tensor input{}, weight{};
  std::optional<Tensor> bias{};       ///< convolution only
  std::optional<Shape> bias_sizes{};  ///< convolution_backward only; ignored where output_mask[2] is false
  Shape stride{1};
  PaddingMode padding_mode = PaddingMode::explicit_;
  Shape padding{0};
  Shape dilation{1};
  bool transposed = false;
  Shape output_padding{0};
  std::int64_t groups = 1;
  std::array<bool, 3> output_mask{true, true, true};
  bool channels_last = false;  ///< messages print image shapes as (N, *spatial, C); tensors stay channels-first
  /// What messages about the places of results call them.
  std::array<const char*, 3> result_names{"grad_input", "grad_weight", "grad_bias"};
  std::array<Shape, 3> result_strides{};  ///< where results will be written; empty: dense, in (N, *spatial, C) order
                                          ///< where channels_last says so
  std::array<std::optional<Packing>, 3> result_packings{};  ///< or in such a format; its lanes without elements become
                                                            ///< 0, where results are accumulated they stay
  std::array<std::optional<DType>, 3> result_dtypes{};  ///< what results will be rounded to; empty: see Plan::results
  Algorithm algorithm = Algorithm::automatic;
  Precision precision = Precision::default_;  ///< of what `automatic` chooses
  CubeMathType cube_math_type = CubeMathType::keep_dtype;
  Soc soc = Soc::a2;
  bool accumulate = false;  ///< convolution_backward: results are added to what is there, in the type of the result
  bool per_sample = false;  ///< convolution_backward: grad_weight and grad_bias of each image, with a leading N axis
  Sums sums{};              ///< of grad_input or output: those of the image that the request is a part of
};

/// Shape (channels-first) and dtype of a result.
struct Result {
  Shape shape;
  DType dtype = DType::float32;
};

/// One pass of a plan, for people and pictures.
struct PassInfo {
  std::string result;                 ///< "grad_input", "grad_weight", "grad_bias" or "output"
  std::string text;                   ///< algorithm, tiles, tasks, threads, workspace; why no other algorithm
  std::array<std::int64_t, 3> image;  ///< d, h, w of the image that is cut into tiles
  std::array<std::int64_t, 3> tile;   ///< and of a tile; zeros where the pass does not cut it
  double flops = 0;                   ///< two for each product of the definition; for a bias gradient one an element
  double bytes = 0;                   ///< of the operands and the result: each read or written once
  Sums sums{};                        ///< of grad_input or output
};

/// Threads of the library's own pool. Default: CONVBWD_NUM_THREADS, else OMP_NUM_THREADS, else the CPUs of this
/// process. A call uses 256 at most.
CONVBWD_API void set_num_threads(int threads);  ///< throws Error(value) unless threads >= 1
CONVBWD_API int get_num_threads();

/// How one call will be carried out: immutable, made without touching tensor memory, safe to execute from many threads
/// at once. `make` raises every user error of a request (class Error), and Error(value) where CONVBWD_ISA names no
/// instruction set of this machine; std::bad_alloc where there is no memory for the plan itself. One that was moved
/// from can only be assigned to or destroyed.
class CONVBWD_API Plan {
 public:
  static Plan make(const Request& request, int threads = get_num_threads());  ///< throws unless threads >= 1

  /// grad_input, grad_weight, grad_bias of a convolution_backward; {output} of a convolution. Where the request names
  /// no dtype, the wider one of the two operands; grad_bias has that of grad_output. Of 8-bit operands grad_weight and
  /// grad_bias have float32.
  const std::array<Result, 3>& results() const noexcept;

  /// Bytes of scratch memory that one execution takes at most, for all its threads together.
  std::size_t workspace_bytes() const noexcept;

  std::vector<PassInfo> passes() const;

  /// Algorithm, tiles and workspace of each pass, a line each.
  std::string explain() const;

  /// Tensors must have the dtypes, shapes and strides that the plan was made for, and memory where they have elements
  /// (operands: where a gradient that is wanted reads them), else Error(value). Addresses of results are multiples of
  /// the size of an element. Elements of a result must not overlap each other or an operand. A result that the mask
  /// leaves out is not touched. The workspace, where one is given, must hold workspace_bytes(), aligned to 64, else
  /// Error(value). Then nothing is allocated, but for tensors that are packed or per_sample.
  void backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                const std::array<Tensor, 3>& results, std::span<std::byte> workspace = {}) const;
  void forward(const Tensor& input, const Tensor& weight, const Tensor* bias, const Tensor& output,
               std::span<std::byte> workspace = {}) const;

  /// Gradients of tensors of exactly the dtypes, shapes and strides that the plan was made for, known by their
  /// addresses: grad_output, input, weight; grad_input, grad_weight, grad_bias.
  void backward(const std::array<const void*, 3>& operands, const std::array<void*, 3>& results,
                std::span<std::byte> workspace = {}) const;

 private:
  struct Impl;
  explicit Plan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

/// Converts `count` elements, each rounded once. `saturate` is for 8-bit types: what is beyond the largest number
/// becomes that, NaN becomes 0. The arrays do not overlap. Throws Error(value) for a count below 0, and for `saturate`
/// with another type.
CONVBWD_API void convert(void* to, DType to_type, const void* from, DType from_type, std::int64_t count,
                         bool saturate = false);

/// Facts about this build: one (name, value) pair each.
CONVBWD_API std::vector<std::pair<std::string, std::string>> build_info();

}  // namespace convbwd
