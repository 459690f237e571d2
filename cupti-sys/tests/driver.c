// As much of a driver as the libcupti of CUDA 13.2 to 13.5 wants to see before it does anything, even before it steps
// through a buffer. Found by watching what it looks up in libcuda.so.1. There is no GPU behind it, and nothing of CUPTI
// that needs one works.
//
// From 13.2 on, every function asks the driver which function to run in its place; that is how several subscribers
// share CUPTI. The driver is given the library's own list, and here it answers with what stands there already.

#include <stddef.h>
#include <string.h>

enum { FUNCTIONS = 256, WHICH_FUNCTION = 67 };

static int no(void) { return 1; }

static int which_function(void **function, void *const *list, size_t place) {
    *function = list[place];
    return 0;
}

int cuGetExportTable(const void **table, const unsigned char *id) {
    // The first bytes of the table that has the answer. What else is asked for is refused by its functions.
    static const unsigned char sharing[] = {0x7c, 0xb6, 0x3f, 0x9b};
    static void *with[FUNCTIONS], *without[FUNCTIONS];
    for (size_t i = 1; i < FUNCTIONS; i++) {
        with[i] = without[i] = (void *)no;
    }
    // A table begins with its size.
    with[0] = without[0] = (void *)sizeof with;
    with[WHICH_FUNCTION] = (void *)which_function;
    *table = memcmp(id, sharing, sizeof sharing) == 0 ? with : without;
    return 0;
}

// Looked up, and not called. Without any one of them the library takes it that there is no driver.
int cuDriverGetVersion(void) { return 1; }
int cuDeviceGetCount(void) { return 1; }
int cuDeviceGet(void) { return 1; }
int cuDeviceGetAttribute(void) { return 1; }
int cuDeviceGetPCIBusId(void) { return 1; }
