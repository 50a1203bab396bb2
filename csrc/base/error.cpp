#include "convbwd/types.hpp"

namespace convbwd {

Error::~Error() = default;

}  // namespace convbwd
