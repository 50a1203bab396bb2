// AscendCL on this processor: what host programs of CANN's operators need of it.
#pragma once

#include "acl/acl_base.h"
#include "acl/acl_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

/// The configuration file, which may be null, is not read. A second call gives ACL_ERROR_REPEAT_INITIALIZE.
ACL_FUNC_VISIBILITY aclError aclInit(const char* configPath);
/// Waits for all streams and destroys them. Without aclInit: ACL_ERROR_UNINITIALIZE.
ACL_FUNC_VISIBILITY aclError aclFinalize(void);

#ifdef __cplusplus
}
#endif
