// A library that calls itself librccl.so and answers for RCCL and HIP, for the scripted host.
//
//   $RCCL_CLOCK_KHZ  the rate of the GPU's wall clock; unset: HIP does not know it

#include <stdlib.h>

int ncclGetVersion(int *version) {
  *version = 22703;
  return 0;
}

// NCCL's log function.
void log(int level, unsigned long flags, const char *origin, int line, const char *format, ...) {}

int hipGetDevice(int *device) {
  *device = 5;
  return 0;
}

int hipDeviceGetAttribute(int *value, int attribute, int device) {
  const char *rate = getenv("RCCL_CLOCK_KHZ");
  if (attribute != 10017 || device != 5 || rate == NULL) return 1;
  *value = atoi(rate);
  return 0;
}
