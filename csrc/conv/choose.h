// Layer conv: which algorithm computes an unknown.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "convbwd/convbwd.hpp"
#include "engine/pass.h"

namespace convbwd {

/// A pass, the time that it is expected to take on one thread, and the factor by which that counts more where two
/// would not take half of it.
struct Candidate {
  std::unique_ptr<Pass> pass;
  double nanoseconds = 0, factor = 1;
  double cost() const { return nanoseconds * factor; }
  std::string name() const;
};
/// All that serve within the budget, or within what the problem may take where that is 0; at least one, the one to take
/// first.
std::vector<Candidate> candidates(PassSpec spec, Algorithm algorithm);

/// The first of them.
std::unique_ptr<Pass> choose(const PassSpec& spec, Algorithm algorithm);
/// Why that one, unless the reference was asked for: what it and the others are expected to take, and what would take
/// less but is refused.
std::string reason(const PassSpec& spec, Algorithm algorithm);

}  // namespace convbwd
