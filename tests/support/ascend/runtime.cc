// What MindSpore asks of CANN's runtime and does not ignore: sizes, handles, host memory for device memory.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace {
int device = 0;
long sent = 0;
const long kQueueDepth = 400;  // tensors sent until the queue of samples holds its writer back, as a full one does

void *handle() { return calloc(1, 64); }
}  // namespace

extern "C" {
const char *aclrtGetSocName() { return "Ascend910B4"; }
const char *aclGetRecentErrMsg() { return ""; }
long aclrtGetDeviceCount(uint32_t *count) { *count = 64; return 0; }
long aclrtSetDevice(int number) { device = number; return 0; }
long aclrtGetDevice(int *number) { *number = device; return 0; }
long aclrtGetRunMode(int *mode) { *mode = 1; return 0; }
long aclrtGetMemInfo(int, size_t *free_bytes, size_t *all) { *free_bytes = 60ull << 30; *all = 64ull << 30; return 0; }

long aclrtMalloc(void **place, size_t size, int) { *place = malloc(size + 1); return 0; }
long aclrtMallocHost(void **place, size_t size) { *place = malloc(size + 1); return 0; }
long aclrtFree(void *place) { free(place); return 0; }
long aclrtFreeHost(void *place) { free(place); return 0; }
long aclrtMemcpy(void *to, size_t, const void *from, size_t size, int) { memcpy(to, from, size); return 0; }
long aclrtMemcpyAsync(void *to, size_t, const void *from, size_t size, int, void *) { memcpy(to, from, size); return 0; }
long aclrtMemset(void *to, size_t, int value, size_t size) { memset(to, value, size); return 0; }

long aclrtCreateContext(void **made, int) { *made = handle(); return 0; }
long aclrtGetCurrentContext(void **made) { static char context[64]; *made = context; return 0; }
long aclrtCreateStream(void **made) { *made = handle(); return 0; }
long aclrtCreateStreamWithConfig(void **made, uint32_t, uint32_t) { *made = handle(); return 0; }
long aclrtCreateEvent(void **made) { *made = handle(); return 0; }
long aclrtCreateEventWithFlag(void **made, uint32_t) { *made = handle(); return 0; }
long aclrtCreateEventExWithFlag(void **made, uint32_t) { *made = handle(); return 0; }

void *acltdtCreateChannel(uint32_t, const char *) { return handle(); }
void *acltdtCreateChannelWithCapacity(uint32_t, const char *, size_t) { return handle(); }
void *acltdtCreateDataset() { return handle(); }
void *acltdtCreateDataItem(int, const int64_t *, size_t, int, void *, size_t) { return handle(); }
long acltdtDestroyDataset(void *made) { free(made); return 0; }
long acltdtDestroyDataItem(void *made) { free(made); return 0; }
long acltdtSendTensor(void *, void *, int) { if (++sent > kQueueDepth) usleep(200000); return 0; }
long acltdtQueryChannelSize(void *, size_t *size) { *size = sent > 0; return 0; }
}
