/* Loaded by LD_PRELOAD into the programs of a machine, steered by two files that are read anew.
 *
 * $CHAOS_CLOCK holds the seconds by which the clock is ahead; monotonic clocks stay. While
 * $CHAOS_ERRNO holds a number, every creation of a file or folder under $CHAOS_STORAGE fails with it.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define READ_ANEW_NS 200000000L

/* System calls, not libc: this runs inside the functions that it replaces. */
static long number_in(const char *variable) {
    const char *file = getenv(variable);
    char digits[16] = "";
    int fd = file ? syscall(SYS_openat, AT_FDCWD, file, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return 0;
    if (read(fd, digits, sizeof digits - 1) < 0)
        digits[0] = 0;
    close(fd);
    return atol(digits);
}

static long ahead(void) {
    static __thread long seconds, read_at;
    struct timespec now;
    int before = errno;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    long nanoseconds = now.tv_sec * 1000000000L + now.tv_nsec;
    if (!read_at || nanoseconds - read_at > READ_ANEW_NS) {
        seconds = number_in("CHAOS_CLOCK");
        read_at = nanoseconds;
    }
    errno = before;
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *found) {
    int result = syscall(SYS_clock_gettime, clock, found);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        found->tv_sec += ahead();
    return result;
}

int gettimeofday(struct timeval *found, void *zone) {
    int result = syscall(SYS_gettimeofday, found, zone);
    found->tv_sec += ahead();
    return result;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found)
        *found = now.tv_sec;
    return now.tv_sec;
}

static int refused(const char *path) {
    const char *storage = getenv("CHAOS_STORAGE");
    if (!storage || strncmp(path, storage, strlen(storage)) != 0)
        return 0;
    int number = number_in("CHAOS_ERRNO");
    if (number)
        errno = number;
    return number;
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;                                  \
        va_end(rest);                                                                              \
        int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #name);                             \
        return flags & O_CREAT && refused(path) ? -1 : real(path, flags, mode);                    \
    }

OPEN(open)
OPEN(open64)

int mkdir(const char *path, mode_t mode) {
    int (*real)(const char *, mode_t) = dlsym(RTLD_NEXT, "mkdir");
    return refused(path) ? -1 : real(path, mode);
}
