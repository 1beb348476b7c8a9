/* A stand-in for libnvidia-ml.so.1. Every answer is read again at each call from the text file named in FAKE_NVML, one
   key=value a line, so that a test changes the cards while a process runs. A missing key is NOT_SUPPORTED (3), a value
   "!N" is the error N. Handles are the index plus one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } rates_t;

static int look(const char *key, char *value, size_t size) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    size_t length = strlen(key);
    if (!file) return 9; /* DRIVER_NOT_LOADED */
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, key, length) || line[length] != '=') continue;
        fclose(file);
        if (line[length + 1] == '!') return atoi(line + length + 2);
        snprintf(value, size, "%s", line + length + 1);
        return 0;
    }
    fclose(file);
    return 3;
}

static int of(void *device, const char *name, char *value, size_t size) {
    char key[128];
    snprintf(key, sizeof key, "%d.%s", (int)(long)device - 1, name);
    return look(key, value, size);
}

static int text(int code, const char *value, char *out, unsigned int size) {
    if (!code) snprintf(out, size, "%s", value);
    return code;
}

static int number(void *device, const char *name, unsigned int *out) {
    char value[256];
    int code = of(device, name, value, sizeof value);
    if (!code) *out = (unsigned int)strtoul(value, NULL, 10);
    return code;
}

int nvmlInitWithFlags(unsigned int flags) {
    char value[256];
    int code = look("init", value, sizeof value);
    (void)flags;
    return code == 3 ? 0 : code;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) {
    return code == 9 ? "Driver Not Loaded" : code == 15 ? "GPU is lost" : code == 3 ? "Not Supported" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char *out, unsigned int size) {
    char value[256];
    int code = look("driver", value, sizeof value);
    return text(code, value, out, size);
}
int nvmlDeviceGetCount_v2(unsigned int *count) {
    char value[256];
    int code = look("count", value, sizeof value);
    if (!code) *count = (unsigned int)atoi(value);
    return code;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    char value[256];
    int code;
    *device = (void *)(long)(index + 1);
    code = of(*device, "handle", value, sizeof value);
    return code == 3 ? 0 : code;
}
int nvmlDeviceGetUUID(void *device, char *out, unsigned int size) {
    char value[256];
    int code = of(device, "uuid", value, sizeof value);
    return text(code, value, out, size);
}
int nvmlDeviceGetName(void *device, char *out, unsigned int size) {
    char value[256];
    int code = of(device, "name", value, sizeof value);
    return text(code, value, out, size);
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    char total[256], used[256];
    int code = of(device, "total", total, sizeof total);
    if (!code) code = of(device, "used", used, sizeof used);
    if (code) return code;
    memory->total = strtoull(total, NULL, 10);
    memory->used = strtoull(used, NULL, 10);
    memory->free = memory->total - memory->used;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    char value[256];
    int code = of(device, "compute", value, sizeof value);
    if (!code && sscanf(value, "%d.%d", major, minor) != 2) code = 999;
    return code;
}
int nvmlDeviceGetUtilizationRates(void *device, rates_t *rates) {
    rates->memory = 0;
    return number(device, "utilization", &rates->gpu);
}
int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) { return number(device, "power", milliwatts); }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *celsius) {
    (void)sensor;
    return number(device, "temperature", celsius);
}
