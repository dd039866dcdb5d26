/* Makes the storage refuse: while the file $CHAOS_ERRNO holds a number, every creation of a file or
 * folder under $CHAOS_STORAGE fails with it. Loaded by LD_PRELOAD into the programs of a node. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int refused(const char *path) {
    const char *storage = getenv("CHAOS_STORAGE"), *file = getenv("CHAOS_ERRNO");
    if (!storage || !file || strncmp(path, storage, strlen(storage)) != 0)
        return 0;
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    char digits[16] = "";
    int fd = real(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    if (read(fd, digits, sizeof digits - 1) < 0)
        digits[0] = 0;
    close(fd);
    return errno = atoi(digits);
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
