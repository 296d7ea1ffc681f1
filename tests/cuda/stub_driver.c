// libcuda.so.1 with the functions that pyfuser calls: a GPU on which nothing runs, and whose answers are fixed.
// cuda.bindings loads it (LD_LIBRARY_PATH), so that a test can call the driver through NVIDIA's package without a
// driver. It prints what it is given where the test compares it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define CONTEXT ((void*)0x1000)
#define MODULE ((void*)0x2000)
#define FUNCTION ((void*)0x3000)
enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500 };

static _Thread_local void* current;

int cuInit(unsigned flags) { return flags; }

int cuDriverGetVersion(int* version) {
  *version = 13020;
  return SUCCESS;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal ? INVALID_DEVICE : SUCCESS;
}

int cuDeviceGetAttribute(int* value, int kind, int device) {
  *value = kind == 16 ? 132 : -1;  // MULTIPROCESSOR_COUNT
  return device;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = CONTEXT;
  return device;
}

int cuCtxPushCurrent_v2(void* context) {
  current = context;
  return context == CONTEXT ? SUCCESS : INVALID_CONTEXT;
}

int cuCtxPopCurrent_v2(void** context) {
  *context = current;
  current = NULL;
  return SUCCESS;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  static _Thread_local int of_thread;
  int before = of_thread;
  printf("captures: %d, then %d\n", before, *mode);
  fflush(stdout);
  of_thread = *mode;
  *mode = before;
  return SUCCESS;
}

int cuModuleLoadData(void** module, const void* image) {
  *module = MODULE;
  if (!current) return INVALID_CONTEXT;
  return memcmp(image, "\177ELF", 4) ? INVALID_IMAGE : SUCCESS;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = FUNCTION;
  return module == MODULE && !strcmp(name, "kernel") ? SUCCESS : NOT_FOUND;
}

int cuFuncGetAttribute(int* value, int kind, void* function) {
  *value = kind == 1 ? 100 : -1;  // SHARED_SIZE_BYTES
  return function == FUNCTION ? SUCCESS : INVALID_VALUE;
}

int cuFuncSetAttribute(void* function, int kind, int value) {
  printf("set %d to %d\n", kind, value);
  return function == FUNCTION ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorString(int error, const char** text) {
  static char found[32];
  snprintf(found, sizeof found, "error %d", error);
  *text = found;
  return SUCCESS;
}

// A launch of a kernel with an int64_t, a float and a bool.
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned width, unsigned height, unsigned depth,
                   unsigned shared_bytes, void* stream, void** parameters, void** extra) {
  if (!current) return INVALID_CONTEXT;
  printf("launch %d: %u %u %u, %u %u %u, %u, %p: %ld %g %d, %p\n", function == FUNCTION, x, y, z, width, height, depth,
         shared_bytes, stream, (long)*(int64_t*)parameters[0], *(float*)parameters[1], *(char*)parameters[2],
         (void*)extra);
  fflush(stdout);
  return SUCCESS;
}

int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, int* status) {
  char versioned[128];
  void* self = dlopen("libcuda.so.1", RTLD_NOW);
  snprintf(versioned, sizeof versioned, "%s_v2", name);
  *function = dlsym(self, versioned);
  if (!*function) *function = dlsym(self, name);
  if (status) *status = *function ? 0 : 1;
  return *function ? SUCCESS : NOT_FOUND;
}
