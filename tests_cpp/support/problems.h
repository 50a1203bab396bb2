// Problems that are hard on the engine, and what their results are by definition.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "base/problem.h"
#include "support/random.h"
#include "support/tensor.h"

namespace convbwd::test {

/// A problem with as many outputs as fit; `after` is the padding behind the image where it is not the same as before.
inline Problem problem(Index n, Index groups, Index ci, Index co, const Index3& x, const Index3& w,
                       const Index3& stride = {1, 1, 1}, const Index3& dilation = {1, 1, 1},
                       const Index3& pad = {0, 0, 0}, const Index3& after = {-1, -1, -1}) {
  Problem p{n, groups, ci, co, x, w, {}, stride, dilation, pad};
  for (std::size_t a = 0; a < 3; ++a)
    p.y[a] = (x[a] + pad[a] + (after[a] < 0 ? pad[a] : after[a]) - dilation[a] * (w[a] - 1) - 1) / stride[a] + 1;
  return p;
}

inline std::vector<Problem> hard_problems() {
  return {
      problem(1, 1, 1, 1, {1, 1, 1}, {1, 1, 1}),
      problem(2, 1, 17, 19, {1, 9, 11}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}),
      problem(1, 1, 32, 64, {1, 6, 6}, {1, 1, 1}),  // weights may stay in place
      problem(2, 1, 32, 48, {1, 2, 2}, {1, 1, 1}),
      problem(3, 2, 41, 37, {1, 1, 2},
              {1, 1, 1}),  // but for the last of them; rows of the weights' gradient are results
      problem(1, 2, 16, 32, {1, 1, 2}, {1, 1, 2}),
      problem(3, 1, 64, 16, {1, 7, 5}, {1, 1, 1}),
      problem(1, 1, 17, 40, {1, 9, 9}, {1, 1, 1}),                                    // the smaller image is packed
      problem(1, 1, 200, 33, {1, 3, 3}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}),  // chunks of channels
      problem(1, 1, 3, 9, {1, 60, 60}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}),   // many boxes
      problem(1, 1, 2, 3, {1, 1, 1500}, {1, 1, 9}, {1, 1, 1}, {1, 1, 1}, {0, 0, 4}),  // boxes along a row
      problem(1, 1, 1, 70, {1, 31, 34}, {1, 30, 33}),  // long windows, chunks of channels
      // Dots mask padding in copies of y: planes that are padding alone, and boxes with uneven padding.
      problem(2, 2, 13, 1, {1, 11, 9}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}),
      problem(2, 1, 7, 2, {1, 33, 150}, {1, 6, 3}, {1, 1, 1}, {1, 2, 3}, {0, 4, 7}, {0, 1, 2}),
      problem(2, 1, 13, 4, {1, 1, 5000}, {1, 1, 7}, {1, 1, 1}, {1, 1, 3}, {0, 0, 4}, {0, 0, 30}),
      problem(3, 2, 2, 1, {7, 4, 5}, {5, 1, 1}, {1, 1, 1}, {1, 1, 1}, {3, 1, 0}, {0, 2, 1}),
      // The same in copies of x.
      problem(2, 1, 2, 13, {1, 11, 9}, {1, 3, 4}, {1, 1, 1}, {1, 1, 1}, {1, 0, 3}),
      problem(2, 1, 1, 7, {1, 33, 150}, {1, 6, 3}, {1, 1, 1}, {1, 2, 3}, {0, 4, 7}, {0, 1, 2}),
      problem(2, 1, 1, 9, {1, 1, 5000}, {1, 1, 7}, {1, 1, 1}, {1, 1, 3}, {0, 0, 30}, {0, 0, 4}),
      problem(40, 1, 5, 6, {1, 3, 3}, {1, 2, 2}),                                    // boxes of images
      problem(90, 1, 18, 4, {1, 1, 2}, {1, 1, 2}, {1, 1, 1}, {1, 1, 1}, {0, 0, 1}),  // images are the long axis
      problem(2, 1, 5, 4, {5, 6, 7}, {2, 3, 3}, {2, 1, 2}, {1, 2, 1}, {1, 2, 0}),
      problem(1, 1, 4, 7, {1, 40, 40}, {1, 3, 3}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}),
      problem(2, 1, 9, 20, {1, 8, 9}, {1, 1, 1}, {1, 2, 2}),    // phases without a tap
      problem(2, 2, 20, 150, {2, 7, 9}, {1, 1, 1}, {1, 2, 2}),  // the image is packed in steps
      problem(2, 1, 6, 5, {1, 10, 13}, {1, 2, 2}, {1, 3, 3}),
      problem(1, 1, 6, 5, {1, 12, 12}, {1, 3, 3}, {1, 2, 2}, {1, 2, 2}, {0, 2, 2}),  // taps of one phase only
      problem(1, 1, 3, 4, {1, 17, 19}, {1, 4, 4}, {1, 3, 3}, {1, 2, 2}, {0, 3, 1}),
      problem(2, 1, 3, 21, {1, 16, 24}, {1, 4, 8}, {1, 4, 8}),  // patches
      problem(1, 1, 2, 5, {1, 27, 26}, {1, 8, 8}, {1, 9, 8}),   // patches with gaps
      problem(2, 1, 32, 70, {1, 7, 6}, {1, 3, 2}, {1, 3, 2}),   // weights and their gradient in place, as rows of taps
      problem(1, 2, 16, 33, {4, 3, 12}, {2, 1, 4}, {2, 1, 4}),
      problem(1, 1, 3, 300, {1, 16, 33}, {1, 16, 16}, {1, 16, 16}),
      problem(3, 1, 16, 9, {1, 5, 7}, {1, 2, 3}, {1, 1, 1}, {1, 4, 3}),  // and of a single window
      problem(1, 1, 4, 6, {8, 8, 8}, {4, 4, 4}, {4, 4, 4}),
      problem(2, 1, 20, 7, {1, 9, 10}, {1, 3, 3}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}),  // patches across the border
      problem(1, 2, 9, 6, {4, 7, 8}, {2, 2, 5}, {2, 2, 5}, {1, 1, 1}, {1, 0, 4}, {0, 1, 3}),
      problem(1, 1, 5, 4, {1, 5, 2}, {1, 2, 4}, {1, 2, 4}, {1, 1, 1}, {0, 3, 5}, {0, 2, 1}),  // narrower than a patch
      problem(1, 1, 2, 3, {1, 1, 3001}, {1, 1, 3}, {1, 1, 3}, {1, 1, 1}, {0, 0, 2}),          // boxes of patches
      problem(1, 1, 3, 2, {1, 1201, 8}, {1, 2, 3}, {1, 2, 3}, {1, 1, 1}, {0, 1, 2}),
      problem(1, 1, 6, 5, {1, 7, 11}, {1, 3, 3}, {1, 3, 1}, {1, 1, 1}, {0, 2, 1}),  // patches along h only
      problem(1, 1, 4, 6, {1, 8, 29}, {1, 1, 9}, {1, 1, 9}, {1, 1, 1}, {0, 0, 7}),
      problem(3, 1, 5, 18, {1, 7, 6}, {1, 7, 6}),  // a single window
      problem(2, 1, 500, 3, {1, 3, 3}, {1, 3, 3}),
      problem(3, 2, 17, 15, {2, 1, 3}, {3, 3, 3}, {3, 2, 3}, {1, 1, 1}, {1, 1, 0}),  // across the border
      problem(2, 1, 3, 2, {5, 9, 10}, {6, 9, 11}, {1, 1, 1}, {1, 1, 1}, {1, 0, 1}, {0, 0, 0}),
      problem(2, 1, 3, 4, {1, 9, 4}, {1, 5, 3}, {1, 4, 1}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}),
      problem(1, 1, 3, 4, {1, 4, 5}, {1, 5, 6}, {1, 1, 1}, {1, 1, 1}, {0, 3, 3}),    // kernels above the image
      problem(1, 1, 2, 3, {1, 2, 1}, {1, 5, 3}, {1, 1, 1}, {1, 3, 2}, {0, 8, 3}),    // taps in padding only
      problem(2, 1, 16, 16, {1, 1, 1}, {1, 1, 1}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}),  // all taps in padding
      problem(1, 1, 1, 40, {1, 1, 1}, {1, 1, 1}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}),
      problem(1, 1, 2, 2, {1, 6, 7}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 2, 0}, {0, 0, 3}),   // asymmetric padding
      problem(1, 2, 1, 1, {1, 8, 16}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {0, 2, 0}),  // behind the image only
      problem(2, 1, 40, 33, {1, 7, 9}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {0, 0, 2}),
      problem(1, 1, 2, 3, {3, 4, 5}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 0, 0}),
      problem(2, 3, 5, 7, {1, 7, 9}, {1, 3, 2}, {1, 1, 2}, {1, 1, 1}, {0, 1, 1}),
      problem(1, 2, 16, 24, {1, 5, 5}, {1, 3, 3}, {1, 2, 1}, {1, 1, 1}, {0, 1, 1}),
      problem(2, 6, 1, 1, {1, 13, 11}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}),  // depthwise
      problem(1, 5, 1, 1, {1, 19, 23}, {1, 7, 7}, {1, 1, 1}, {1, 1, 1}, {0, 3, 3}),
      problem(1, 3, 1, 1, {1, 18, 17}, {1, 5, 5}, {1, 2, 2}, {1, 1, 1}, {0, 2, 2}),
      problem(1, 3, 1, 2, {1, 12, 17}, {1, 3, 5}, {1, 1, 1}, {1, 2, 3}, {0, 2, 6}),
      problem(2, 4, 1, 1, {1, 1, 90}, {1, 1, 9}, {1, 1, 1}, {1, 1, 1}, {0, 0, 8}, {0, 0, 0}),
      problem(1, 2, 1, 1, {1, 1, 50}, {1, 1, 25}, {1, 1, 1}, {1, 1, 2}, {0, 0, 24}),
      problem(1, 2, 1, 1, {6, 7, 8}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}),
      problem(3, 33, 1, 1, {1, 9, 9}, {1, 3, 3}),                                   // batches of dots, rows shifted
      problem(5, 37, 1, 1, {1, 7, 6}, {1, 3, 4}, {1, 2, 2}, {1, 1, 1}, {0, 1, 2}),  // blocks of channels
      problem(2, 17, 1, 1, {3, 5, 7}, {2, 6, 7}, {2, 1, 1}, {1, 1, 2}, {1, 5, 6}, {1, 2, 5}),
      problem(2, 5, 1, 1, {1, 6, 1}, {1, 2, 2}, {1, 1, 1}, {1, 1, 1}, {0, 0, 1}),     // a column between zeros
      problem(1, 16, 1, 1, {1, 9, 9}, {1, 2, 1}, {1, 1, 3}, {1, 4, 1}),               // phases without a tap
      problem(3, 18, 1, 1, {1, 34, 35}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}),  // channels side by side
      problem(1, 2, 20, 9, {2, 9, 10}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}),   // rows of phases together
      problem(2, 1, 20, 12, {1, 47, 61}, {1, 1, 1}),                                  // dots in place, box by box
      problem(2, 2, 7, 3, {2, 9, 31}, {1, 1, 2}),                                     // tiles of several channels
      problem(30, 1, 24, 18, {1, 7, 7}, {1, 1, 1}),                                   // rows behind each other
      problem(30, 1, 24, 18, {1, 7, 8}, {1, 1, 1}, {1, 2, 2}),                        // short rows that are apart
      problem(2, 1, 40, 5, {1, 9, 10}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}),   // columns of input channels
      problem(2, 2, 35, 70, {1, 7, 6}, {1, 3, 3}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}),   // few pixels, many weights
      problem(1, 1, 20, 64, {3, 5, 6}, {2, 3, 2}, {1, 2, 1}, {1, 1, 2}, {1, 1, 1}),
      problem(1, 1, 18, 90, {1, 6, 19}, {1, 2, 9}, {1, 1, 2}, {1, 1, 1}, {0, 1, 4}),
      problem(1, 2, 33, 3, {4, 6, 7}, {2, 3, 2}, {1, 1, 1}, {1, 2, 3}, {2, 0, 5}, {0, 5, 0}),
      problem(20, 1, 64, 2, {1, 1, 3}, {1, 1, 2}, {1, 1, 1}, {1, 1, 1}, {0, 0, 4}, {0, 0, 1}),
      problem(30, 2, 64, 1, {1, 3, 3}, {1, 1, 1}),
      problem(9, 1, 130, 4, {1, 6, 5}, {1, 6, 4}, {1, 1, 1}, {1, 1, 1}, {0, 0, 1}, {0, 0, 0}),
      problem(1, 1, 10, 12, {1, 1, 1024}, {1, 1, 3}, {1, 1, 1}, {1, 1, 1},
              {0, 0, 1}),                                                              // planes that meet in the caches
      problem(1, 1, 1, 1, {1, 190, 200}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}),  // boxes of planes
      problem(1, 2, 3, 1, {1, 150, 160}, {1, 3, 3}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}),
      problem(1, 2, 3, 4, {5, 7, 9}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}),  // rows that take turns
      problem(2, 1, 2, 3, {4, 6, 8}, {2, 2, 2}, {2, 2, 2}),
      problem(1, 1, 2, 3, {5, 7, 6}, {1, 3, 3}, {2, 2, 2}, {1, 1, 1}, {0, 1, 1}),  // and planes of zeros
      problem(1, 1, 3, 2, {6, 7, 9}, {3, 3, 3}, {1, 2, 2}, {1, 1, 1}, {1, 1, 1}),
      problem(1, 1, 40, 2, {1, 20, 30}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}),
      problem(1, 1, 3, 40, {1, 20, 30}, {1, 5, 5}, {1, 1, 1}, {1, 1, 1}, {0, 2, 2}),
      problem(1, 1, 12, 10, {1, 1, 700}, {1, 1, 5}, {1, 1, 3}, {1, 1, 2}, {0, 0, 4}),
      problem(1, 1, 2, 2, {1, 3, 4}, {1, 1, 1}, {1, 1, 1}, {1, 9, 1 << 20}),             // dilation of a single tap
      problem(2, 1, 2, 3, {1, 1, 4}, {1, 1, 1}, {1, 1, 5000}, {1, 1, 1}, {0, 0, 5000}),  // mostly padding
  };
}

inline Problem random_problem(Random& random) {
  for (;;) {
    Index3 x, w, stride, dilation, pad, after;
    const Index first = random.integer(0, 2);
    const bool depthwise = random.integer(0, 4) == 0;
    bool fits = true;
    for (Index a = 0; a < 3; ++a) {
      const auto i = static_cast<std::size_t>(a);
      const bool used = a >= first;
      x[i] = used ? random.integer(1, 9) : 1;
      w[i] = used ? random.integer(1, 4) : 1;
      stride[i] = used ? random.integer(1, 3) : 1;
      dilation[i] = used ? random.integer(1, 3) : 1;
      pad[i] = used && random.integer(0, 1) ? random.integer(0, 4) : 0;
      after[i] = random.integer(0, 1) ? pad[i] : used ? random.integer(0, 3) : 0;
      fits &= x[i] + pad[i] + after[i] >= dilation[i] * (w[i] - 1) + 1;
    }
    if (!fits) continue;
    return problem(random.integer(1, 3), random.integer(1, 3), depthwise ? 1 : random.integer(1, 18),
                   depthwise ? 1 : random.integer(1, 18), x, w, stride, dilation, pad, after);
  }
}

inline Index5 x_size(const Problem& p) { return {p.n, p.groups * p.ci, p.x[0], p.x[1], p.x[2]}; }
inline Index5 w_size(const Problem& p) { return {p.groups * p.co, p.ci, p.w[0], p.w[1], p.w[2]}; }
inline Index5 y_size(const Problem& p) { return {p.n, p.groups * p.co, p.y[0], p.y[1], p.y[2]}; }

/// Calls f(index in x, index in w, index in y) for every product of a problem.
template <class F>
void for_each_product(const Problem& p, F&& f) {
  for_each_index(y_size(p), [&](const Index5& y) {
    for_each_index({1, p.ci, p.w[0], p.w[1], p.w[2]}, [&](const Index5& w) {
      Index5 x{y[0], y[1] / p.co * p.ci + w[1], 0, 0, 0};
      for (std::size_t a = 0; a < 3; ++a) {
        x[a + 2] = y[a + 2] * p.stride[a] + w[a + 2] * p.dilation[a] - p.pad_before[a];
        if (x[a + 2] < 0 || x[a + 2] >= p.x[a]) return;
      }
      f(x, Index5{y[1], w[1], w[2], w[3], w[4]}, y);
    });
  });
}

}  // namespace convbwd::test
