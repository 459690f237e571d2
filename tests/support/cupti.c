// A CUPTI that ends the process when any of its functions is called, or answers every call with
// ANSWER. With DRIVER, also a CUDA driver with DEVICES GPUs, or none. For preloading.

#include <stdlib.h>
#include <unistd.h>

#ifdef DRIVER

int cuDriverGetVersion(int *version) {
  *version = 13000;
  return 0;
}

int cuDeviceGetCount(int *count) {
#if DEVICES > 0
  *count = DEVICES;
  return 0;
#else
  return 3; // not initialised
#endif
}

#else

#ifdef ANSWER
#define TOUCHED return ANSWER;
#else
#define TOUCHED                                                     \
  if (write(STDERR_FILENO, "CUPTI was touched\n", 18) != 18) _exit(1); \
  abort();
#endif

#define FUNCTION(name) \
  int name(void) { TOUCHED }

int cuptiGetVersion(unsigned *version) {
#ifdef ANSWER
  *version = 28;
  return 0;
#else
  (void)version;
  TOUCHED
#endif
}

// Only the functions without which nothing can be recorded.
FUNCTION(cuptiGetTimestamp)
FUNCTION(cuptiSubscribe)
FUNCTION(cuptiUnsubscribe)
FUNCTION(cuptiEnableCallback)
FUNCTION(cuptiGetCallbackName)
FUNCTION(cuptiSetThreadIdType)
FUNCTION(cuptiGetThreadIdType)
FUNCTION(cuptiActivityRegisterCallbacks)
FUNCTION(cuptiActivityRegisterTimestampCallback)
FUNCTION(cuptiActivityEnable)
FUNCTION(cuptiActivityEnableAndDump)
FUNCTION(cuptiActivityDisable)
FUNCTION(cuptiActivityFlushAll)
FUNCTION(cuptiActivityGetNextRecord)
FUNCTION(cuptiActivityGetNumDroppedRecords)
FUNCTION(cuptiActivityPushExternalCorrelationId)
FUNCTION(cuptiActivityPopExternalCorrelationId)

// From before CUDA 12.0.
#ifndef OLD
FUNCTION(cuptiGetGraphNodeId)
#endif

// Added in CUDA 13.2, which crashes in the first call if it cannot use the driver.
#ifdef CUDA_13_2
FUNCTION(cuptiActivityGetStructSize)
#endif

#endif
