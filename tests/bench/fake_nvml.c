/* A stand-in for libnvidia-ml.so.1. Every answer is read again at each call from the text file named in FAKE_NVML, one
   key=value a line, so that a test changes the cards while a process runs. A missing key is NOT_SUPPORTED (3), a value
   "!N" is the error N. Handles are the index plus one; those of slices add 1000 for the first slice, 2000 for the
   second, and their keys begin with "0.s0.". Built with -DOLD it has no third version of the lists of processes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned int gpu, memory; } rates_t;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gpu_instance, compute_instance; } process_t;
typedef struct {
    char legacy[16];
    unsigned int domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_t;

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
    int handle = (int)(long)device;
    if (handle < 1000) snprintf(key, sizeof key, "%d.%s", handle - 1, name);
    else snprintf(key, sizeof key, "%d.s%d.%s", handle % 1000 - 1, handle / 1000 - 1, name);
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
    return code == 9    ? "Driver Not Loaded"
           : code == 15 ? "GPU is lost"
           : code == 16 ? "GPU requires reset"
           : code == 3  ? "Not Supported"
                        : "Unknown Error";
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    char value[256];
    int code = look("cuda", value, sizeof value);
    if (!code) *version = atoi(value);
    return code;
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
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2_t *memory) {
    char total[256], used[256];
    int code = of(device, "total2", total, sizeof total);
    if (!code) code = of(device, "used", used, sizeof used);
    if (code) return code;
    memory->total = strtoull(total, NULL, 10);
    memory->used = strtoull(used, NULL, 10);
    memory->reserved = 0;
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
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned int *milliwatts) { return number(device, "limit", milliwatts); }
int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned int *lanes) { return number(device, "lanes", lanes); }
int nvmlDeviceGetPciInfo_v3(void *device, pci_t *pci) {
    char value[256];
    int code = of(device, "bus", value, sizeof value);
    memset(pci, 0, sizeof *pci);
    return text(code, value, pci->bus_id, sizeof pci->bus_id);
}

/* "pid:bytes,pid:na"; an empty list is no process. */
static int processes(void *device, const char *name, unsigned int *count, process_t *out) {
    char value[512], *part, *rest = value;
    unsigned int found = 0, room = *count;
    int code = of(device, name, value, sizeof value);
    if (code) return code;
    while ((part = strsep(&rest, ",")) && *part) {
        char *used = strchr(part, ':');
        if (out && found < room) {
            out[found].pid = (unsigned int)strtoul(part, NULL, 10);
            out[found].used = used && used[1] != 'n' ? strtoull(used + 1, NULL, 10) : ~0ULL;
            out[found].gpu_instance = out[found].compute_instance = ~0U;
        }
        found++;
    }
    *count = found;
    return found > room || (found && !out) ? 7 : 0; /* INSUFFICIENT_SIZE */
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *d, unsigned int *n, process_t *o) { return processes(d, "processes", n, o); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(void *d, unsigned int *n, process_t *o) { return processes(d, "graphics", n, o); }
#ifndef OLD
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned int *n, process_t *o) { return processes(d, "processes", n, o); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *d, unsigned int *n, process_t *o) { return processes(d, "graphics", n, o); }
#endif

#ifndef OLD
/* Fields: "recovery" is the recovery action, "reset_status" and "drain_status" are those of drivers before it. */
typedef struct {
    unsigned int field, scope;
    long long timestamp, latency;
    unsigned int type, code;
    union {
        double real;
        unsigned int number;
        unsigned long long large;
    } value;
} field_t;
int nvmlDeviceGetFieldValues(void *device, int count, field_t *fields) {
    char value[256];
    int code = of(device, "fields", value, sizeof value);
    if (code && code != 3) return code;
    for (int i = 0; i < count; i++) {
        unsigned int field = fields[i].field;
        const char *name = field == 230 ? "recovery" : field == 226 ? "reset_status" : field == 227 ? "drain_status" : "none";
        fields[i].code = (unsigned int)number(device, name, &fields[i].value.number);
    }
    return 0;
}
#endif

int nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending) {
    int code = number(device, "mig", current);
    *pending = *current;
    return code;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned int *count) { return number(device, "slices", count); }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned int index, void **slice) {
    char value[256];
    int code;
    *slice = (void *)((long)device + 1000L * (index + 1));
    code = of(*slice, "uuid", value, sizeof value);
    return code == 3 ? 6 : 0; /* NOT_FOUND */
}
