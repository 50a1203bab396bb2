// Layer conv: which algorithm computes an unknown.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "convbwd/convbwd.hpp"
#include "engine/pass.h"

namespace convbwd {

/// A pass, and the time that it is expected to take on one thread.
struct Candidate {
  std::unique_ptr<Pass> pass;
  double nanoseconds = 0;
  std::string name() const;
};
/// All that serve within the budget, which is set here; at least one, the one to take first.
std::vector<Candidate> candidates(PassSpec spec, Algorithm algorithm);

/// The first of them, and what to say of the choice.
struct Choice {
  std::unique_ptr<Pass> pass;
  std::string reason;
};
Choice choose(const PassSpec& spec, Algorithm algorithm);

}  // namespace convbwd
