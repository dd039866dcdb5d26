/* An NVML without a GPU: its values come from the file that FAKE_NVML names, read at each call.
 *
 * Lines are `key value`. `count 2`; `0.uuid GPU-a`; for instance 1 of GPU 0 the prefix is `0:1`.
 * `0.error 15` is what each call for a GPU returns; `0.lost 15`
 * leaves what the listing reads; `0.events_error 15` fails its registration for events; `hang nvmlDeviceGetPowerUsage` makes a call
 * never return; `event 0 79` is one Xid error. A value without a line is not supported.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
typedef unsigned int u32;
typedef unsigned long long u64;

static int look(const char *key, char *value, size_t size) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *space = strchr(line, ' ');
        if (!space) continue;
        *space = 0;
        line[strcspn(space + 1, "\n") + (size_t)(space + 1 - line)] = 0;
        if (!strcmp(line, key)) {
            snprintf(value, size, "%s", space + 1);
            found = 1;
        }
    }
    if (file) fclose(file);
    return found;
}

static void hang_if_set(const char *function) {
    char value[256];
    while (look("hang", value, sizeof value) && !strcmp(value, function)) usleep(20000);
}

/* A handle is 1000 * (GPU + 1), and one more than the place of an instance on top. */
static void name_of(uintptr_t handle, char *name, size_t size) {
    u32 gpu = (u32)(handle / 1000 - 1), place = (u32)(handle % 1000);
    if (place) snprintf(name, size, "%u:%u", gpu, place - 1);
    else snprintf(name, size, "%u", gpu);
}

static int get(uintptr_t handle, const char *field, const char *function, char *value, size_t size) {
    char name[64], key[128];
    hang_if_set(function);
    snprintf(key, sizeof key, "%u.error", (u32)(handle / 1000 - 1));
    if (look(key, value, size)) return atoi(value);
    snprintf(key, sizeof key, "%u.lost", (u32)(handle / 1000 - 1));
    if (!strstr("name memory mig pci", field) && look(key, value, size)) return atoi(value);
    name_of(handle, name, sizeof name);
    snprintf(key, sizeof key, "%s.%s", name, field);
    return look(key, value, size) ? OK : NOT_SUPPORTED;
}

static int number(uintptr_t handle, const char *field, const char *function, u64 *to) {
    char value[256];
    int code = get(handle, field, function, value, sizeof value);
    if (code == OK) *to = strtoull(value, NULL, 10);
    return code;
}

static int small(uintptr_t handle, const char *field, const char *function, u32 *to) {
    u64 wide = 0;
    int code = number(handle, field, function, &wide);
    if (code == OK) *to = (u32)wide;
    return code;
}

int nvmlInitWithFlags(u32 flags) {
    char value[256];
    (void)flags;
    hang_if_set("nvmlInit");
    return look("init_error", value, sizeof value) ? atoi(value) : OK;
}

int nvmlShutdown(void) {
    char value[256];
    return look("shutdown_error", value, sizeof value) ? atoi(value) : OK;
}

const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "some error"; }

int nvmlSystemGetDriverVersion(char *to, u32 size) {
    char value[256] = "580.1";
    look("driver", value, sizeof value);
    snprintf(to, size, "%s", value);
    return OK;
}

int nvmlDeviceGetCount_v2(u32 *count) {
    char value[256];
    *count = look("count", value, sizeof value) ? (u32)atoi(value) : 0;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, void **device) {
    char key[64], value[256];
    snprintf(key, sizeof key, "%u.error", index);
    if (look(key, value, sizeof value)) return atoi(value);
    *device = (void *)(uintptr_t)(1000 * (index + 1));
    return OK;
}

int nvmlDeviceGetUUID(void *device, char *to, u32 size) {
    char name[64], key[128], value[256];
    name_of((uintptr_t)device, name, sizeof name); /* also of a lost one, as drivers do */
    snprintf(key, sizeof key, "%s.uuid", name);
    if (!look(key, value, sizeof value)) return NOT_FOUND;
    snprintf(to, size, "%s", value);
    return OK;
}

int nvmlDeviceGetName(void *device, char *to, u32 size) {
    char value[256];
    int code = get((uintptr_t)device, "name", "nvmlDeviceGetName", value, sizeof value);
    if (code == OK) snprintf(to, size, "%s", value);
    return code;
}

struct memory { u64 total, unused, used; };
int nvmlDeviceGetMemoryInfo(void *device, struct memory *to) {
    int code = number((uintptr_t)device, "memory", "nvmlDeviceGetMemoryInfo", &to->total);
    if (code == OK) {
        to->used = 0;
        number((uintptr_t)device, "memory_used", "nvmlDeviceGetMemoryInfo", &to->used);
        to->unused = to->total - to->used;
    }
    return code;
}

struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char address[32]; };
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *to) {
    memset(to, 0, sizeof *to);
    return get((uintptr_t)device, "pci", "nvmlDeviceGetPciInfo", to->address, sizeof to->address);
}

int nvmlDeviceGetMigMode(void *device, u32 *current, u32 *pending) {
    *pending = 0;
    return small((uintptr_t)device, "mig", "nvmlDeviceGetMigMode", current);
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, u32 *count) {
    (void)device;
    *count = 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, u32 index, void **instance) {
    char key[64], value[256];
    uintptr_t handle = (uintptr_t)device + index + 1;
    snprintf(key, sizeof key, "%u:%u.uuid", (u32)(handle / 1000 - 1), index);
    if (!look(key, value, sizeof value)) return NOT_FOUND;
    *instance = (void *)handle;
    return OK;
}

struct rates { u32 gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *device, struct rates *to) {
    to->memory = 0;
    return small((uintptr_t)device, "utilization", "nvmlDeviceGetUtilizationRates", &to->gpu);
}

int nvmlDeviceGetPowerUsage(void *device, u32 *milliwatts) {
    return small((uintptr_t)device, "power", "nvmlDeviceGetPowerUsage", milliwatts);
}

int nvmlDeviceGetTemperature(void *device, u32 sensor, u32 *to) {
    (void)sensor;
    return small((uintptr_t)device, "temperature", "nvmlDeviceGetTemperature", to);
}

int nvmlDeviceGetClockInfo(void *device, u32 kind, u32 *megahertz) {
    const char *field = kind == 1 ? "sm_clock" : "memory_clock";
    return small((uintptr_t)device, field, "nvmlDeviceGetClockInfo", megahertz);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *bits) {
    return number((uintptr_t)device, "throttle", "nvmlDeviceGetClocks", bits);
}

int nvmlDeviceGetPcieReplayCounter(void *device, u32 *count) {
    return small((uintptr_t)device, "pcie_replays", "nvmlDeviceGetPcieReplayCounter", count);
}

int nvmlDeviceGetTotalEccErrors(void *device, u32 kind, u32 counter, u64 *count) {
    char field[32];
    snprintf(field, sizeof field, "ecc%u%u", kind, counter);
    return number((uintptr_t)device, field, "nvmlDeviceGetTotalEccErrors", count);
}

int nvmlDeviceGetRemappedRows(void *device, u32 *one, u32 *two, u32 *pending, u32 *failed) {
    *one = *two = *failed = 0;
    return small((uintptr_t)device, "remap_pending", "nvmlDeviceGetRemappedRows", pending);
}

struct field { u32 id, scope; int64_t at, latency; u32 type; int code; union { u64 count; double d; } value; };
int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields) {
    for (int i = 0; i < count; i++) {
        char field[32];
        snprintf(field, sizeof field, "field%u", fields[i].id);
        fields[i].code = number((uintptr_t)device, field, "nvmlDeviceGetFieldValues", &fields[i].value.count);
    }
    return OK;
}

struct process { u32 pid; u64 memory; u32 instance, compute; };
static int process(void *device, const char *field, u32 *count, struct process *to) {
    char value[256];
    u32 pid, space = *count;
    u64 memory;
    int code = get((uintptr_t)device, field, "nvmlDeviceGetRunningProcesses", value, sizeof value);
    *count = 0;
    if (code == NOT_SUPPORTED) return OK;
    if (code != OK || sscanf(value, "%u %llu", &pid, &memory) != 2) return code;
    *count = 1;
    if (space < 1) return INSUFFICIENT_SIZE;
    to->pid = pid;
    to->memory = memory;
    to->instance = to->compute = 0xFFFFFFFF;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, u32 *count, struct process *to) {
    return process(device, "process", count, to);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, u32 *count, struct process *to) {
    return process(device, "graphics", count, to);
}

int nvmlEventSetCreate(void **set) { *set = (void *)1; return OK; }

int nvmlDeviceRegisterEvents(void *device, u64 types, void *set) {
    char key[64], value[256];
    (void)types; (void)set;
    snprintf(key, sizeof key, "%u.events_error", (u32)((uintptr_t)device / 1000 - 1));
    return look(key, value, sizeof value) ? atoi(value) : OK;
}

struct event { void *device; u64 type, data; u32 instance, compute; };
int nvmlEventSetWait_v2(void *set, struct event *to, u32 milliseconds) {
    static int sent;
    char value[256];
    u32 gpu;
    (void)set; (void)milliseconds;
    if (!sent && look("event", value, sizeof value) && sscanf(value, "%u %llu", &gpu, &to->data) == 2) {
        sent = 1;
        to->device = (void *)(uintptr_t)(1000 * (gpu + 1));
        to->type = 8;
        return OK;
    }
    usleep(20000);
    return TIMEOUT;
}
